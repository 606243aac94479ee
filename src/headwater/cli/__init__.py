"""The command line: the only place where the concrete parts meet, and where the environment is read."""

__all__: list[str] = []
