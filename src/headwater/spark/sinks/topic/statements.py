"""The SQL of the sink: statements with their parameters named."""

from collections.abc import Iterable
from typing import Final

from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.spark.sinks.topic")


def lock_partitions(topic_id: int, partitions: Iterable[int]) -> Statement[int]:
    return SQL["lock_partitions"].bind(int, topic_id=topic_id, partitions=sorted(set(partitions)))


def forget_other_pieces(pipeline: str, sink: str, attempt: str) -> Statement[None]:
    return SQL["forget_other_pieces"].bind(type(None), pipeline=pipeline, sink=sink, attempt=attempt)
