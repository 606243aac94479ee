"""The SQL of the parts: statements with their parameters and rows named."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Final

from headwater.postgres.statements import Query, Statement, load
from headwater.topics.frame import Framed

SQL: Final = load("benchmarks.topics")


@dataclass(frozen=True, slots=True)
class Window:
    """Where a claim of the reference begins, and how many messages it has."""

    first: int
    delta: int


@dataclass(frozen=True, slots=True)
class Row:
    payload: bytes
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Written:
    """What the server counted so far."""

    wal_bytes: float
    flushes: float
    commits: float
    dead_rows: float


def create_reference() -> Statement[None]:
    return SQL["create_reference"].compose()


def create_reference_partition(partition: int) -> Statement[None]:
    return of_partition("create_reference_partition", partition).compose()


def drop_reference_partition(partition: int) -> Statement[None]:
    return of_partition("drop_reference_partition", partition).compose()


def insert_counter(partition: int) -> Statement[int]:
    return SQL["insert_counter"].bind(int, partition=partition)


def insert_reference_group(group: str, partition: int) -> Statement[int]:
    return SQL["insert_reference_group"].bind(int, group=group, partition=partition)


def write_reference(partition: int, payloads: Sequence[bytes]) -> Statement[int]:
    return of_partition("write_reference", partition).bind(
        int, partition=partition, count=len(payloads), payloads=list(payloads)
    )


def claim_reference(group: str, partition: int, batch: int) -> Statement[Window]:
    return SQL["claim_reference"].bind(Window, group=group, partition=partition, batch=batch)


def read_reference(partition: int, first: int, last: int) -> Statement[Row]:
    return of_partition("read_reference", partition).bind(Row, first=first, last=last)


def count_reference_readers() -> Statement[int]:
    return SQL["count_reference_readers"].bind(int)


def count_owners() -> Statement[int]:
    return SQL["count_owners"].bind(int)


def drop_topics() -> Statement[None]:
    return SQL["drop_topics"].compose()


def read_meter() -> Statement[Written]:
    return SQL["read_meter"].bind(Written)


def read_wal_of_readers(application_name: str) -> Statement[float]:
    return SQL["read_wal_of_readers"].bind(float, application_name=application_name)


def read_sizes() -> Statement[float]:
    return SQL["read_sizes"].bind(float)


def hold() -> Statement[str]:
    return SQL["hold"].bind(str)


def fill_wal() -> Statement[None]:
    return SQL["fill_wal"].compose()


def switch_wal() -> Statement[None]:
    return SQL["switch_wal"].compose()


def reuse_wal() -> Statement[None]:
    return SQL["reuse_wal"].compose()


def create_orders() -> Statement[None]:
    return SQL["create_orders"].compose()


def insert_order(total: int) -> Statement[int]:
    return SQL["insert_order"].bind(int, total=total)


def pause(seconds: float) -> Statement[str]:
    return SQL["pause"].bind(str, seconds=seconds)


def create_deferred() -> Statement[None]:
    return SQL["create_deferred"].compose()


def insert_deferred(topic_id: int, partitions: Sequence[int], frames: Sequence[Framed]) -> Statement[int]:
    return SQL["insert_deferred"].bind(
        int,
        topic_id=topic_id,
        partitions=list(partitions),
        counts=[one.count for one in frames],
        codecs=[one.codec for one in frames],
        frames=[one.frame for one in frames],
    )


def create_copied() -> Statement[None]:
    return SQL["create_copied"].compose()


def insert_copied(partitions: Sequence[int], firsts: Sequence[int], payloads: Sequence[bytes]) -> Statement[int]:
    return SQL["insert_copied"].bind(int, partitions=list(partitions), firsts=list(firsts), payloads=list(payloads))


def vacuum_copied() -> Statement[None]:
    return SQL["vacuum_copied"].compose()


@cache
def of_partition(name: str, partition: int) -> Query:
    """A query of the file with the table of a partition in place of `topicpartition1`."""
    return Query(name, SQL[name].text.replace("topicpartition1", f"topicpartition{int(partition)}"))
