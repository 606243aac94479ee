"""The Creek consumer: tables of a PostgreSQL kept equal to those that Creek streams tell of, what creek-pg-client is for."""

__all__: list[str] = []
