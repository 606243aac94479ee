"""How a subscriber reads, checked before anything starts."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal, TypeAlias, get_args

from headwater.errors import SettingsError
from headwater.model.settings import find_strangers, find_too_small

Mode: TypeAlias = Literal["partition", "shared"]
Delivery: TypeAlias = Literal["at-least-once", "at-most-once"]
Expired: TypeAlias = Literal["fail", "earliest"]
# A place in a topic: its oldest messages, its end, an offset, or a time.
Start: TypeAlias = Literal["earliest", "latest"] | int | datetime

_CHOICES: Final = {"mode": Mode, "delivery": Delivery, "on_expired": Expired}


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberSettings:
    """How a member of a group reads, and what it does with what fails."""

    # One reader of a partition at a time, in order; or any number, each with a range of its own.
    mode: Mode = "partition"
    # What is lost with a member comes again, unless that would be worse than missing it.
    delivery: Delivery = "at-least-once"
    # Where a group begins that nobody has read with before.
    start: Start = "earliest"
    # In a batch: what a handler deals with in well under a second.
    max_messages: int = 500
    # In a batch, and once more in what is read ahead. A single message may have more.
    max_bytes: int = 4 << 20
    # How long a member may give no sign before its partitions are others': longer than a pause of a busy process, and of a
    # handler that blocks the event loop. After a crash others wait for so long.
    lease: timedelta = timedelta(seconds=30)
    # From one poll to the next while messages come: about what a commit takes, so that polls are not mostly in vain.
    poll_least: timedelta = timedelta(milliseconds=3)
    # And while nothing comes, which is twice as long each time up to this. Also how soon a pause is heard of.
    poll_longest: timedelta = timedelta(milliseconds=500)
    # So often something is given out without a commit before its messages go out one by one; what fails then is dead.
    max_attempts: int = 5
    # Woken by LISTEN, on one more connection of the line, which must not go through a pooler in transaction mode.
    listens: bool = True
    # Whether a commit waits for the disk. Without, it costs no flush; a crash of the server, not of a member, gives out
    # again what was committed in the last second before it.
    commit_waits: bool = False
    # What to do where retention was quicker than the group: stop with PositionExpired, or go on from the oldest there is.
    on_expired: Expired = "fail"
    # Segments are begun and dropped so often, which needs the owner of the tables; None leaves that to others.
    maintain_every: timedelta | None = timedelta(minutes=1)

    def __post_init__(self) -> None:
        if faults := list(find_strangers(self, "a subscriber")) or [*find_too_small(self, "a subscriber"), *self._misfits()]:
            raise SettingsError(*faults)

    @property
    def is_at_most_once(self) -> bool:
        return self.delivery == "at-most-once"

    def _misfits(self) -> Iterator[str]:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                yield f"{name} of a subscriber is {getattr(self, name)!r}; give {' or '.join(get_args(choices))}"
        if self.poll_longest < self.poll_least:
            yield "poll_longest of a subscriber is shorter than poll_least; make it at least as long"
        yield from start_faults(self.start)


def start_faults(start: object) -> Iterator[str]:
    """What is wrong with a place in a topic, if anything."""
    is_known = not isinstance(start, bool) and isinstance(start, int | datetime)
    if not is_known and start not in ("earliest", "latest"):
        yield f"{start!r} is no place in a topic; give earliest, latest, an offset, or a datetime with a time zone"
    elif isinstance(start, int) and start < 0:
        yield f"offset {start} is below 0; offsets begin there"
    elif isinstance(start, datetime) and start.tzinfo is None:
        yield f"the time {start} has no time zone; give one, such as datetime.now(UTC)"
