"""An event on its way through the relay: written with a lease, handed over after the commit, kept until it is settled."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from headwater.outbox.event import EncodedEvent

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(slots=True)
class LeasedEvent:
    """An event that is ready to be written, and what its row says of who sends it.

    Whoever writes it sets `created_at` to what the server has put there, and hands it over after the commit. Without a lease
    (`locked_by` is None) there is nothing to hand over: a relay finds it in the table.
    """

    event: EncodedEvent
    locked_by: str | None
    lease_seconds: float | None
    # By the monotonic clock: when it is no longer ours.
    deadline: float
    created_at: datetime | None = None

    @property
    def is_leased(self) -> bool:
        return self.locked_by is not None

    @property
    def row(self) -> Mapping[str, object]:
        """What to write, by column; `locked_until` is `clock_timestamp()` and `lease_seconds` more, or null."""
        event = self.event
        return {
            "id": event.id,
            "topic": event.topic,
            "type": event.type,
            "key": event.key,
            "payload": event.payload,
            "headers": event.headers,
            "locked_by": self.locked_by,
            "lease_seconds": self.lease_seconds,
        }


@dataclass(slots=True)
class Entry:
    """An event in memory, whose row this instance holds until `deadline`; times are of the monotonic clock."""

    id: str
    created_us: int
    topic: str
    type: str
    key: str | None
    payload: str
    headers: str
    # As the row says, without those of `tries`.
    attempts: int
    deadline: float
    # When its transaction was committed; None for one that was found in the table.
    committed: float | None = None
    # Attempts since it is in memory.
    tries: int = 0

    @property
    def size(self) -> int:
        """Of what it takes in memory, about."""
        return len(self.payload)

    def empty(self) -> None:
        """Keep only what is needed to write down what became of it."""
        self.payload = self.headers = ""

    @classmethod
    def of(cls, event: EncodedEvent, created_us: int, deadline: float, committed: float) -> "Entry":
        return cls(
            str(event.id),
            created_us,
            event.topic,
            event.type,
            event.key,
            event.payload,
            event.headers,
            0,
            deadline,
            committed,
        )


def microseconds(at: datetime) -> int:
    """Of a time with a zone, since 1970."""
    return (at - _EPOCH) // _MICROSECOND
