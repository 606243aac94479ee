"""What Spark can read: the data sources that `register` makes known to a session."""

__all__: list[str] = []
