"""How much goes to the broker at a time: so many events, and no more of their payloads than fit in. Pure."""

from collections import deque
from typing import Final

from headwater.outbox.relay.entry import Entry

# Through a slow network within a confirm timeout, and more than enough for a broker to be busy with.
_MOST_BYTES: Final = 8 << 20


def take_portion(waiting: deque[Entry], most: int, most_bytes: int = _MOST_BYTES) -> list[Entry]:
    """Take entries from the front: one at least, if there is one."""
    taken: list[Entry] = []
    size = 0
    while waiting and len(taken) < most:
        size += waiting[0].size
        if taken and size > most_bytes:
            break
        taken.append(waiting.popleft())
    return taken
