"""Reading a table by Spark for somebody who takes its rows one bundle after the other, in no order.

Each cut is a job of one task. No more of them are given to Spark at a time than it has cores, over all snapshots, so that
the tasks of a stream never find a line of ours before them. What is read waits in a short queue: a taker that is slow stops
the readers, and the memory of the driver has an end.
"""

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, Full, Queue
from threading import Event, Semaphore
from typing import Final

from py4j.protocol import Py4JError
from pyspark import InheritableThread
from pyspark.sql import SparkSession

from headwater.capture.pieces import Piece
from headwater.errors import ConnectionLost, HeadwaterError, SourceError
from headwater.spark.creek import task
from headwater.spark.creek.cuts import CUT_PAGES, Cut, Cuts
from headwater.spark.creek.task import Bundle, RowTask
from headwater.spark.failure import translate

# One writer is no faster than a few readers.
_MOST_READERS: Final = 4
# A task has some tenths of a second to do, and may have to wait for others; a server that is silent for so long is lost.
_PATIENCE_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.2


class ReadingCancelled(Exception):
    """What was not read yet never will be."""


class RowMisfit(SourceError):
    """A row that the plain schema cannot hold, though none was to be expected."""


class _Done:
    """A reader has ended."""


class Cores:
    """How many tasks the snapshots of one producer may have at Spark at a time."""

    def __init__(self, spark: SparkSession) -> None:
        self.count = max(1, spark.sparkContext.defaultParallelism)
        self._free = Semaphore(self.count)

    @contextmanager
    def one(self, ending: Event) -> Iterator[bool]:
        """Waits for one; whether there is one, and not the end."""
        while not (is_mine := self._free.acquire(timeout=_LOOK_SECONDS)) and not ending.is_set():
            pass
        try:
            yield is_mine and not ending.is_set()
        finally:
            if is_mine:
                self._free.release()


class TableReading:
    """The rows of a table's pieces, once."""

    def __init__(self, spark: SparkSession, cores: Cores, row_task: RowTask, pieces: Sequence[Piece]) -> None:
        self._context, self._cores, self._task = spark.sparkContext, cores, row_task
        self._cuts = Cuts(pieces, CUT_PAGES)
        self._count = min(_MOST_READERS, cores.count, len(pieces))
        self._read: Queue[Bundle | Exception | _Done] = Queue(maxsize=max(1, self._count))
        self._ending = Event()
        self._group = f"creek-snapshot-{uuid.uuid4().hex}"

    def bundles(self) -> Iterator[Bundle]:
        """All rows; raises what kept a task from reading its part, and ConnectionLost if nothing comes any more.

        It ends without an error only when every row was handed out: after `cancel` it raises ReadingCancelled.
        """
        threads = [
            InheritableThread(target=self._run, name=f"{self._group}-{number}", daemon=True) for number in range(self._count)
        ]
        for thread in threads:
            thread.start()
        try:
            left = len(threads)
            while left:
                match self._next():
                    case _Done():
                        left -= 1
                    case Exception() as error:
                        raise error
                    case Bundle() as bundle:
                        yield bundle
        finally:
            self.cancel()
            for thread in threads:
                thread.join(timeout=_LOOK_SECONDS)

    def cancel(self) -> None:
        """Give up what is being read."""
        if not self._ending.is_set():
            self._ending.set()
            with suppress(Py4JError, OSError):
                self._context.cancelJobGroup(self._group)

    def _next(self) -> Bundle | Exception | _Done:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            if self._ending.is_set():
                return ReadingCancelled()
            with suppress(Empty):
                return self._read.get(timeout=_LOOK_SECONDS)
        return ConnectionLost(f"nothing was read for {_PATIENCE_SECONDS:.0f} s")

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, "snapshot on request")
            while not self._ending.is_set() and (cut := self._cuts.take()) is not None:
                self._read_cut(cut)
        except Exception as exc:  # noqa: BLE001 - whatever ends a reader must reach the taker
            self._put(exc if isinstance(exc, HeadwaterError) else translate(exc))
        finally:
            self._put(_Done())

    def _read_cut(self, cut: Cut) -> None:
        with self._cores.one(self._ending) as is_mine:
            if not is_mine:
                return
            bundles = self._context.parallelize([cut], 1).mapPartitions(self._task).collect()
        match bundles[-1:]:
            case [task.TOO_MUCH]:
                self._cuts.give_back(cut)
            case [task.MISFIT]:
                table = cut.piece.relation.table
                raise RowMisfit(f"a row of {table} does not go into its plain schema; ask again, for a widened snapshot")
            case _:
                self._cuts.note_read()
                for data in bundles:
                    self._put(Bundle.from_bytes(data))

    def _put(self, item: Bundle | Exception | _Done) -> None:
        while not self._ending.is_set():
            with suppress(Full):
                self._read.put(item, timeout=_LOOK_SECONDS)
                return
