"""All that knows PostgreSQL and no capability of ours: connections, statements, migrations, catalog, types, replication."""

__all__: list[str] = []
