"""What a consumer of Creek keeps in its target database: which tables it follows, how far each is, what was asked for."""

__all__: list[str] = []
