"""How fast an outbox is relayed from the WAL to a broker, and from its table when the slot was lost."""
