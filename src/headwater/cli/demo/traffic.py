"""The traffic: mixed small transactions from one connection, and one of 100,000 rows from another in their midst.

Each writer counts what it has committed, so that what is delivered can be held against it. What is rolled back is counted
apart: none of it may ever be delivered.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from random import Random
from threading import Event, Thread
from typing import Final, Self

from headwater.capture import emit_mark
from headwater.cli.demo import writes
from headwater.cli.demo.writes import Write
from headwater.model import Lsn, Op
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.statements import execute_sync

LOAD_ROWS: Final = 100_000
# Some statements rather than one, so that a stop need not wait for all of it.
_LOAD_STEPS = 10
_ABORTED_ROWS = 5_000
# Early enough to be delivered before the end, late enough that there is something to see before it.
_LOAD_AT = 0.3
# Some 300 transactions a second: lively, with both cores of a small machine left to Spark and the server.
_PAUSE_SECONDS = 0.02
_ROUNDS_PER_TRUNCATE = 16
# For the statement that is being run when the traffic is stopped.
_STOP_SECONDS = 10.0


class Writer:
    """A connection that writes in transactions, and counts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.written: Counter[tuple[str, Op]] = Counter()
        self.transactions = 0
        self.rolled_back = Counter[str]()

    def commit(self, first: Iterable[Write], undone: Sequence[Write] = (), then: Iterable[Write] = ()) -> None:
        """One transaction; what is `undone` is written under a savepoint in its midst, and rolled back."""
        with self._connection.transaction():
            counts = self._run(first)
            if undone:
                with self._connection.transaction(force_rollback=True):
                    self.rolled_back.update(savepoints=1, rows=self._run(undone).total())
            counts.update(self._run(then))
        # Another thread reads the counts at any time: they are replaced, and never change.
        self.written = self.written + counts
        self.transactions += bool(counts.total())

    def roll_back(self, all_of_it: Iterable[Write]) -> None:
        """One transaction that comes to nothing."""
        with self._connection.transaction(force_rollback=True):
            self.rolled_back.update(transactions=1, rows=self._run(all_of_it).total())

    def _run(self, some: Iterable[Write]) -> Counter[tuple[str, Op]]:
        counts: Counter[tuple[str, Op]] = Counter()
        for write in some:
            rows = execute_sync(self._connection, write.statement)
            counts[write.table, write.op] += 1 if write.op is Op.TRUNCATE else rows
        return counts


def write_first(connection: Connection) -> Writer:
    """One round of all small transactions, for a pipeline to begin with: its first batch takes Spark some seconds."""
    writer = Writer(connection)
    for transaction in _round(Random(), 0):
        writer.commit(transaction)
    return writer


class Traffic:
    """Threads that write until the time is up; `end` is then the WAL position behind all that they wrote.

    `loading` tells that the large transaction has begun, `loaded_at` when it had committed, by the monotonic clock.
    """

    def __init__(self, url: str, seconds: float, first: Writer) -> None:
        """To write for so many seconds; what `first` has written is a part of it."""
        self._url, self._seconds = url, seconds
        self._stopping = Event()
        self._mixer = Thread(target=self._guarded, args=(self._mix,), name="demo traffic", daemon=True)
        self._loader = Thread(target=self._guarded, args=(self._load,), name="demo load", daemon=True)
        self._writers = [first]
        self.loading = False
        self.loaded_at: float | None = None
        self.failure: Exception | None = None
        self.end: Lsn | None = None

    def __enter__(self) -> Self:
        self._loader.start()
        self._mixer.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping.set()
        for thread in (self._mixer, self._loader):
            thread.join(_STOP_SECONDS)

    @property
    def written(self) -> Counter[tuple[str, Op]]:
        """How many changes of each table and kind were committed."""
        return sum((writer.written for writer in self._writers), Counter())

    @property
    def transactions(self) -> int:
        """How many transactions were committed that changed anything."""
        return sum(writer.transactions for writer in self._writers)

    @property
    def rolled_back(self) -> Counter[str]:
        """How many `transactions`, `savepoints` and `rows` were rolled back."""
        return sum((writer.rolled_back for writer in self._writers), Counter())

    def _guarded(self, write: Callable[[Connection, Writer], None]) -> None:
        try:
            with closing(connect_sync(self._url)) as connection:
                writer = Writer(connection)
                self._writers.append(writer)
                write(connection, writer)
        except Exception as exc:  # noqa: BLE001 - whatever ends the thread must reach the demo
            self.failure = exc

    def _mix(self, connection: Connection, writer: Writer) -> None:
        random, deadline, number = Random(), time.monotonic() + self._seconds, 0
        while time.monotonic() < deadline and not self._stopping.wait(_PAUSE_SECONDS):
            for transaction in _round(random, number):
                writer.commit(transaction)
            writer.commit([writes.advance_orders(1)], undone=[writes.place_orders(2), writes.remove_customers(1)])
            writer.roll_back([writes.add_customers(1), writes.pay(3), writes.empty_cart(1)])
            number += 1
        self._loader.join()
        self.end = emit_mark(connection)

    def _load(self, _connection: Connection, writer: Writer) -> None:
        """The large transaction, with a savepoint in its midst that is rolled back."""
        if self._stopping.wait(self._seconds * _LOAD_AT):
            return
        self.loading = True
        half = LOAD_ROWS // 2
        aborted = [writes.write_readings(LOAD_ROWS + 1, LOAD_ROWS + _ABORTED_ROWS)]
        writer.commit(self._readings(1, half), undone=aborted, then=self._readings(half + 1, LOAD_ROWS))
        self.loaded_at = time.monotonic()

    def _readings(self, first: int, last: int) -> Iterator[Write]:
        rows = LOAD_ROWS // _LOAD_STEPS
        for start in range(first, last + 1, rows):
            if not self._stopping.is_set():
                yield writes.write_readings(start, start + rows - 1)


def _round(random: Random, number: int) -> Iterator[list[Write]]:
    """The transactions of one round; the first one holds every kind of change to every table."""
    yield [writes.add_customers(random.randint(2, 4))]
    yield [writes.place_orders(random.randint(2, 10))]
    yield [writes.advance_orders(random.randint(1, 4)), writes.pay(random.randint(1, 2))]
    yield [writes.change_email()]
    yield [writes.write_documents(random.randint(1, 2)), writes.retitle_documents(random.randint(1, 4))]
    yield [writes.rewrite_documents(1)]
    yield [writes.fill_cart(random.randint(2, 6)), writes.change_cart(random.randint(1, 3))]
    yield [writes.empty_cart(1), writes.remove_orders(2), writes.remove_customers(1), writes.remove_documents(1)]
    if number % _ROUNDS_PER_TRUNCATE == 0:
        yield [writes.truncate_cart(), writes.fill_cart(2)]
