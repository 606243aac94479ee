"""The numbers of a producer, checked before anything starts."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from headwater.errors import SettingsError
from headwater.model.settings import find_strangers, find_too_small

# What may be no time at all.
_LEAST: Final = {"linger": timedelta(0), "ring_every": timedelta(0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """How a producer gathers messages, how much of them it keeps waiting, and how long it tries."""

    # What comes while a batch is under way is the next one, so that batches grow under load by themselves. A time to wait
    # for more is for those who would rather have fewer commits than quick ones.
    linger: timedelta = timedelta(0)
    # Of one append, by the bytes of its messages: larger ones are not quicker, and others wait longer for their partition.
    batch_bytes: int = 4 << 20
    # Who sends more waits until there is room: a second of what one producer can do.
    waiting_messages: int = 20_000
    # Of the same, for those who send large ones. What is sent in one go may be beyond both.
    waiting_bytes: int = 64 << 20
    # An append takes milliseconds. A server that gives no answer for so long is taken for gone, and the batch is sent again
    # on another connection; it is not appended twice.
    answer_within: timedelta = timedelta(seconds=10)
    # How long a batch is tried: a restart or a failover of the server fits in. Then its senders get the error.
    give_up_after: timedelta = timedelta(seconds=60)
    # Batches that are under way at once, each on a connection. Only messages without a key in a topic with several
    # partitions use more than one, and only while they come faster than one can write them.
    connections: int = 2
    # Wake those who wait for the topic, after the commit and on a connection of its own. They poll all the same.
    rings: bool = True
    # From one ring to the next: quicker than anybody polls, and few enough that the server does not feel them.
    ring_every: timedelta = timedelta(milliseconds=5)
    # For close: to append what still waits.
    close_within: timedelta = timedelta(seconds=10)
    # Segments are begun and dropped so often, which needs the owner of the tables; None leaves that to others. No segment is
    # shorter than a minute.
    maintain_every: timedelta | None = timedelta(minutes=1)

    def __post_init__(self) -> None:
        if faults := list(find_strangers(self, "the producer")) or list(find_too_small(self, "the producer", _LEAST)):
            raise SettingsError(*faults)
