"""Message brokers, one folder each: how to reach them, publish to them and read from them. They know no capability."""

__all__: list[str] = []
