"""Entries for tests, made from little."""

from headwater.outbox.relay.entry import Entry


def entry(
    id_: str = "a",
    *,
    attempts: int = 0,
    tries: int = 0,
    deadline: float = 1000.0,
    committed: float | None = 0.0,
    payload: str = "{}",
) -> Entry:
    """Of a transaction that was committed at 0, unless told otherwise."""
    made = Entry(id_, 0, "orders", "OrderCreated", None, payload, "{}", attempts, deadline, committed)
    made.tries = tries
    return made
