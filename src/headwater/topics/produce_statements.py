"""The SQL of producers: statements with their parameters and rows named."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headwater.postgres.statements import Statement, load
from headwater.topics.frame import Framed
from headwater.topics.statements import frame_columns, of_topic

SQL: Final = load("headwater.topics", "sql/produce.sql")


@dataclass(frozen=True, slots=True)
class Appended:
    """The offset of the first message of each frame, and how many partitions the topic has.

    There are no offsets if so much was staged before that it has to be asked again.
    """

    first_offsets: list[int] | None
    partitions: int


def append_batch(
    topic_id: int, partitions: Sequence[int], frames: Sequence[Framed], producer: UUID, sequence: int
) -> Statement[Appended]:
    return of_topic(SQL["append_batch"], topic_id).bind(
        Appended, topic_id=topic_id, producer=producer, sequence=sequence, **frame_columns(partitions, frames)
    )


def ring_aside(topic_id: int, partitions: Iterable[int]) -> Statement[bool]:
    return SQL["ring_aside"].bind(bool, topic_id=topic_id, partitions=",".join(str(one) for one in partitions))
