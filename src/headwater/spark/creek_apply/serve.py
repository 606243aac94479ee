"""The run of a consumer: a query for each stream, and what was asked for by SQL, until it is told to stop."""

import logging
import random
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.creek.consumer import statements
from headwater.errors import HeadwaterError, PipelineFailed, PositionError
from headwater.postgres.backoff import Backoff
from headwater.postgres.connect import Connection, translated
from headwater.postgres.statements import execute_sync
from headwater.spark.checkpoint import Checkpoint
from headwater.spark.creek_apply.asked import Listener, Worker
from headwater.spark.creek_apply.counts import Counts
from headwater.spark.creek_apply.keeping import Keeper
from headwater.spark.creek_apply.settings import PIPELINE, ApplySettings
from headwater.spark.creek_apply.sink import ApplySink, prepare_target
from headwater.spark.failure import translate
from headwater.spark.lease import Lease
from headwater.spark.sources import register
from headwater.spark.sources.creek.offset import Offset
from headwater.spark.sources.creek.options import access_options

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
# How often subscriptions are looked through when nobody has said that something is new.
_KEEP_SECONDS = 5.0
# With the waits between them about ten seconds: enough for a process that was killed, and for a server that restarts.
_TRIES = 5


class _Stop(Exception):
    """The next batch is not to be begun."""


@dataclass(slots=True)
class _Running:
    """A query on a stream, and the directory that Spark keeps for it."""

    query: StreamingQuery
    directory: str
    is_delivering: bool = False
    failure: BaseException | None = field(default=None)


class Consumer:
    """Applies Creek streams to a target. `stopping` asks it to end after the batches that it is at.

    One run at a time has a target. Another one stands by, and takes over when the first has ended, however it ended.
    """

    def __init__(self, spark: SparkSession, settings: ApplySettings, stopping: Event, counts: Counts | None = None) -> None:
        self._spark, self._settings, self._stopping = spark, settings, stopping
        self._counts = counts or Counts()
        self._sink, self._keeper = ApplySink(settings), Keeper(settings)
        self._lease = Lease(settings.url, PIPELINE)
        self._running: dict[str, _Running] = {}

    def run(self, *, once: bool = False) -> None:
        """Run until asked to stop, or with `once` until what the streams hold by now is applied.

        A target or a NATS that is away is waited for; what fails for a reason that we do not know is tried some times in a
        row. Anything else is raised.
        """
        prepare_target(self._settings.url)
        failures = 0
        try:
            while not self._stopping.is_set():
                applied = self._counts.applied
                try:
                    if self._may_run(once=once):
                        self._serve(once=once)
                        if once and self._lease.is_held:
                            return
                except HeadwaterError as error:
                    failures = 1 if self._counts.applied > applied else failures + 1
                    self._recover(error, failures, once=once)
        finally:
            self._lease.release()

    def _may_run(self, *, once: bool) -> bool:
        """Wait until no other run has the target."""
        if self._lease.is_held or self._lease.take():
            return True
        holder = self._lease.holder() or "a session that cannot be seen"
        if once:
            raise HeadwaterError(f"another consumer runs on this target ({holder}); stop it, or leave it to it")
        _log.info("another consumer runs on this target (%s), and is taken over from when it ends", holder)
        return self._lease.wait(self._stopping)

    def _recover(self, error: HeadwaterError, failures: int, *, once: bool) -> None:
        """Wait before everything is started again; raises the error if that cannot help."""
        # What a stream has lost is told of its tables, and the others go on.
        may_pass = error.retryable or isinstance(error, PositionError)
        is_limited = once or isinstance(error, PipelineFailed | PositionError)
        if not may_pass or (is_limited and failures >= _TRIES):
            raise error
        wait = Backoff().after(failures, random.random()).total_seconds()
        _log.warning("%s; trying again in %.1f s", error, wait)
        self._stopping.wait(wait)

    @property
    def _is_ending(self) -> bool:
        return self._stopping.is_set() or not self._lease.is_held

    def _serve(self, *, once: bool) -> None:
        """One run, from taking over to its end or a failure."""
        register(self._spark)
        url = self._settings.url
        with translated(url), closing(Listener(url)) as listener, closing(self._sink):
            self._sink.open()
            execute_sync(listener.connection, statements.return_requests())
            worker = Worker(self._spark, self._settings, self._counts)
            try:
                if once:
                    worker.work_off(listener.connection)
                    self._run_once(listener.connection)
                else:
                    self._follow(listener, worker)
            finally:
                self._stop_all()
                worker.stop()

    def _run_once(self, connection: Connection) -> None:
        for stream in self._keeper.look(connection, self._sink.epoch):
            self._start(stream, once=True)
        while self._running and not self._is_ending:
            self._look()
            time.sleep(_LOOK_SECONDS)

    def _follow(self, listener: Listener, worker: Worker) -> None:
        keep_at = 0.0
        while not self._is_ending:
            if time.monotonic() >= keep_at:
                for stream in self._keeper.look(listener.connection, self._sink.epoch, self._running):
                    if stream not in self._running:
                        self._start(stream, once=False)
                worker.begin(listener.connection)
                keep_at = time.monotonic() + _KEEP_SECONDS
            if listener.wait(_LOOK_SECONDS):
                keep_at = 0.0
            self._look()

    def _look(self) -> None:
        """Raise what a query has failed for; forget those that have ended."""
        for stream, running in list(self._running.items()):
            if running.query.isActive:
                continue
            self._forget(stream)
            failure = running.failure or running.query.exception()
            if failure is not None and not isinstance(failure, _Stop):
                raise translate(failure)

    def _start(self, stream: str, *, once: bool) -> None:
        """Start a query on a stream. All that it has to know is in the target, so it needs nothing of an earlier one."""
        directory = tempfile.mkdtemp(prefix="headwater-creek-")
        checkpoint = Checkpoint(self._spark, directory)
        messages = self._spark.readStream.format("headwater.creek").options(**self._options(stream)).load()
        writer = messages.writeStream.queryName(f"creek {stream}").option("checkpointLocation", directory)
        writer = writer.foreachBatch(partial(self._deliver, stream, checkpoint))
        if once:
            writer = writer.trigger(availableNow=True)
        self._running[stream] = _Running(writer.start(), directory)
        _log.info("stream %s: followed", stream)

    def _deliver(self, stream: str, checkpoint: Checkpoint, batch: DataFrame, number: int) -> None:
        """Apply one batch; it is committed only when this returns."""
        running = self._running_of(stream)
        running.is_delivering = True
        try:
            if self._is_ending:
                raise _Stop
            end = Offset.from_json(checkpoint.logged(number))
            written = self._sink.write(batch, end)
            self._counts.add(end.step, written)
            if written.letters:
                said = (
                    "stream %s: the target refused %d changes, which are kept as dead letters; see `headwater letters list`"
                )
                _log.warning(said, stream, written.letters)
        except BaseException as exc:
            running.failure = exc
            raise
        finally:
            running.is_delivering = False

    def _running_of(self, stream: str) -> _Running:
        # The first batch may begin before `start` has returned.
        while stream not in self._running:
            time.sleep(_LOOK_SECONDS / 10)
        return self._running[stream]

    def _stop_all(self) -> None:
        """End all queries between two batches, and at once without the lease."""
        deadline = time.monotonic() + 60
        for stream, running in list(self._running.items()):
            while running.is_delivering and self._lease.is_held and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS / 10)
            with suppress(Exception):
                running.query.stop()
            self._forget(stream)

    def _forget(self, stream: str) -> None:
        running = self._running.pop(stream)
        shutil.rmtree(running.directory, ignore_errors=True)

    def _options(self, stream: str) -> Mapping[str, str]:
        settings = self._settings
        return {
            **access_options(settings.access),
            "namespace": settings.namespace,
            "generation": settings.generation.value,
            "stream": stream,
            "shape": "wire",
            "lanes": str(settings.lanes),
            "maxBytesPerTrigger": str(settings.max_bytes),
            "subscriptionsUrl": settings.url,
        }
