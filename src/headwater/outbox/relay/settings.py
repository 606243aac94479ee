"""The numbers of a relay, checked before anything starts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from headwater.errors import SettingsError
from headwater.model.settings import find_strangers, find_too_small, said
from headwater.outbox.event import MAX_PAYLOAD_BYTES

# Between the end of a lease by our clock and by the server's: for a stall of this process, and for a confirm that is a
# little late. Two clocks that begin together differ by less.
LEASE_MARGIN: Final = timedelta(seconds=1)
_MOST_LANES: Final = 1024
# What is not to be at least 1, nor more than no time at all.
_LEAST: Final[Mapping[str, Any]] = {
    "quick_retries": 0,
    "restarts": 0,
    "partitions_ahead": timedelta(0),
    "partition_length": timedelta(hours=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay waits, batches and tries again.

    Events of committed transactions wait in memory, at most `intake_events` of them; what was not taken and what was found
    in the table waits apart, at most `retry_events`; and what became of them waits to be written down, at most
    `save_events`. What has no room in the first is found in the table a moment later; where the others are full, the one
    before waits.
    """

    # Ten seconds of a thousand transactions each, in some 10 MB: longer than a broker takes to come back from a hiccup.
    # Beyond that the table is the better place.
    intake_events: int = 10_000
    # Of their payloads, for those who send large ones.
    intake_bytes: int = 64 << 20
    # Four claims: enough that the broker never waits for the database.
    retry_events: int = 4_000
    # Of their payloads; what is claimed in one go may be beyond it.
    retry_bytes: int = 64 << 20
    # As much as one confirm timeout brings at 2,000 events/s, should the database be away.
    save_events: int = 20_000
    # In one go to the broker, and so unconfirmed at most. All that waits is taken at once: under load the window fills by
    # itself, and without load nothing waits for others.
    window: int = 2_000
    # From the beginning of one such go to that of the next, at the least: each costs about a millisecond of this process,
    # whether it has one event or fifty. An event that comes after a pause is sent at once.
    send_every: timedelta = timedelta(milliseconds=10)
    # The same while more than 300 events come in a second: then the process has better things to do.
    send_every_busy: timedelta = timedelta(milliseconds=40)
    # How long an instance has an event to itself: after its death others take it over when this has passed.
    lease: timedelta = timedelta(seconds=30)
    # How long a broker may take to confirm, whatever its own settings say. It has to fit into the lease twice.
    confirm_timeout: timedelta = timedelta(seconds=10)
    # At once, after a wait between 0 and `quick_wait`, doubled each time: for a nack or a connection that was just lost.
    quick_retries: int = 2
    quick_wait: timedelta = timedelta(milliseconds=50)
    # Then from the table, after a wait between 0 and this time, doubled each time up to a limit.
    retry_wait: timedelta = timedelta(seconds=1)
    longest_wait: timedelta = timedelta(minutes=5)
    # Then it is dead: kept and listed, and sent again when somebody says so. By the waits above that is three to four hours
    # of a broker that is there and does not take it, such as a queue that is full over lunch.
    max_attempts: int = 100
    # How often the table is searched for what nobody holds, and how many are claimed by one statement.
    revive_every: timedelta = timedelta(seconds=2)
    claim_rows: int = 1_000
    # What became of events is written down when there are so many of them, or after so long: what a crash would send twice.
    save_rows: int = 500
    save_every: timedelta = timedelta(milliseconds=100)
    # Events of one key in their order: the table is read in order, by lanes that each have one owner at a time.
    order_by_key: bool = False
    lanes: int = 16
    # A task that fails is started again, so often within a time; then the relay has failed.
    restarts: int = 5
    restarts_within: timedelta = timedelta(minutes=1)
    # For stop: to drain, to hear from the broker and to write it down.
    stop_within: timedelta = timedelta(seconds=10)
    # For a relay that is the first to serve a table: what waits there is marked as published, not delivered.
    skip_existing: bool = False
    # Partitions are made ahead, and dropped when all in them was published so long ago; None keeps them for ever. Both
    # need the owner of the table.
    retention: timedelta | None = timedelta(days=7)
    partitions_ahead: timedelta = timedelta(days=7)
    partition_length: timedelta = timedelta(days=1)
    maintain_every: timedelta = timedelta(hours=1)
    # What one payload may have.
    max_bytes: int = MAX_PAYLOAD_BYTES

    def __post_init__(self) -> None:
        if faults := list(find_strangers(self, "the relay")) or [
            *find_too_small(self, "the relay", _LEAST),
            *self._misfits(),
        ]:
            raise SettingsError(*faults)

    def _misfits(self) -> Iterator[str]:
        if self.lanes > _MOST_LANES:
            yield f"lanes of the relay is {self.lanes}; give {_MOST_LANES} or fewer, since more are not useful"
        least = 2 * (self.confirm_timeout + LEASE_MARGIN)
        if self.lease < least:
            yield (
                f"the lease of {said(self.lease)} is too short for a confirm_timeout of {said(self.confirm_timeout)}: "
                f"what waits its turn and is then under way must stay ours; make it {said(least)} or longer"
            )
        if self.send_every_busy < self.send_every:
            yield "send_every_busy of the relay is shorter than send_every; make it at least as long"
        if self.longest_wait < self.retry_wait:
            yield "longest_wait of the relay is shorter than retry_wait; make it at least as long"

    @property
    def lane_count(self) -> int:
        """0 where no order is kept."""
        return self.lanes if self.order_by_key else 0
