"""A pipeline: one query that reads changes, transforms them, and writes each batch to every sink; then Spark commits it.

`Pipeline.run` is what `headwater run` does. What a batch holds is confirmed to the source only after all sinks have made it
durable and Spark has committed it, so whatever fails, the batch comes again, and sinks leave out what they have already.
"""

import json
import logging
import random
import time
from collections.abc import Sequence
from contextlib import closing
from threading import Event

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater.capture.provision import provision
from headwater.errors import HeadwaterError, PipelineFailed, SlotMissing
from headwater.postgres.backoff import Backoff
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.migrate import Component, migrate
from headwater.postgres.replication.slot import find_slot
from headwater.spark.checkpoint import Checkpoint
from headwater.spark.failure import translate
from headwater.spark.reporter import Delivered, Reporter
from headwater.spark.settings import PipelineSettings
from headwater.spark.shape import Shape
from headwater.spark.sinks.sink import Sink, Span, Written
from headwater.spark.sources import register
from headwater.spark.state import Phase, Report, fetch_report
from headwater.spark.transform import apply_transform

_log = logging.getLogger(__name__)

# How often to look whether to stop, or whether the query has ended.
_LOOK_SECONDS = 0.2
# With the waits between them about ten seconds: enough for a process that was killed, and for a server that restarts.
_TRIES = 5


class _Stop(Exception):
    """The next batch is not to be begun."""


class Pipeline:
    """A pipeline on a session and its sinks; `stopping` asks it to end after the batch that it is at."""

    def __init__(self, spark: SparkSession, settings: PipelineSettings, sinks: Sequence[Sink], stopping: Event) -> None:
        self._spark, self._settings, self._sinks, self._stopping = spark, settings, sinks, stopping
        self._checkpoint = Checkpoint(spark, settings.checkpoint)
        self._reporter = Reporter(settings)
        self._delivering = False
        self._failure: BaseException | None = None

    @property
    def report(self) -> Report:
        """How far it is, and how fast."""
        return self._reporter.report

    def run(self, *, once: bool = False) -> None:
        """Run until asked to stop, or with `once` until what has committed by now is delivered.

        A target or a server that is away is tried again for ever; what fails for a reason that we do not know, such as a
        process of Spark's that died, some times in a row. With `once` that goes for both. Anything else is raised.
        """
        failures = 0
        prepare(self._settings)
        self._reporter.start()
        try:
            while not self._stopping.is_set():
                delivered = self._reporter.report.rows
                try:
                    self._run(once=once)
                    break
                except HeadwaterError as exc:
                    failures = 1 if self._reporter.report.rows > delivered else failures + 1
                    is_limited = once or isinstance(exc, PipelineFailed)
                    if not exc.retryable or (is_limited and failures >= _TRIES):
                        raise
                    wait = Backoff().after(failures, random.random()).total_seconds()
                    self._reporter.enter(Phase.RETRYING, str(exc))
                    _log.warning("%s; trying again in %.1f s", exc, wait, extra={"pipeline": self._settings.name})
                    self._stopping.wait(wait)
            self._reporter.enter(Phase.STOPPED)
        except BaseException as exc:
            self._reporter.enter(Phase.FAILED, str(exc) or type(exc).__name__)
            raise
        finally:
            self._reporter.stop()

    def _run(self, *, once: bool) -> None:
        """One query, from the opening of the sinks to its end."""
        try:
            for sink in self._sinks:
                sink.open()
            query = self._start(once=once)
            self._reporter.enter(Phase.RUNNING)
            self._follow(query)
        finally:
            for sink in self._sinks:
                sink.close()

    def _start(self, *, once: bool) -> StreamingQuery:
        register(self._spark)
        self._failure = None
        changes = self._spark.readStream.format("headwater.changes").options(**self._options()).load()
        writer = changes.writeStream.queryName(self._settings.name).foreachBatch(self._deliver)
        writer = writer.option("checkpointLocation", self._settings.checkpoint)
        if once:
            writer = writer.trigger(availableNow=True)
        elif self._settings.trigger_interval:
            writer = writer.trigger(
                processingTime=f"{self._settings.trigger_interval.total_seconds() * 1000:.0f} milliseconds"
            )
        return writer.start()

    def _follow(self, query: StreamingQuery) -> None:
        """Wait for the end of the query; when asked to stop, end it between two batches."""
        try:
            # Spark counts in milliseconds; its annotation asks for whole seconds.
            while not query.awaitTermination(_LOOK_SECONDS):  # type: ignore[arg-type]
                if self._stopping.is_set() and not self._delivering:
                    query.stop()
        except Exception as exc:
            if not self._stopping.is_set():
                raise translate(self._failure or exc) from exc
            _log.debug("the query ended with the stop", exc_info=exc)

    def _deliver(self, batch: DataFrame, number: int) -> None:
        """Write one batch to every sink; it is committed only when this returns."""
        self._delivering = True
        try:
            if self._stopping.is_set():
                raise _Stop
            began = time.monotonic()
            start, end, content = self._checkpoint.range_of(number)
            results = self._write(batch, Span(start, end))
            self._reporter.add(Delivered(end, content, results, time.monotonic() - began))
        except BaseException as exc:
            self._failure = exc
            raise
        finally:
            self._delivering = False

    def _write(self, batch: DataFrame, span: Span) -> dict[str, tuple[Written, float]]:
        shape, changes, transform = self._shape, batch, self._settings.transform
        if transform is not None:
            changes = apply_transform(batch, transform)
            if len(self._sinks) > 1:
                changes = changes.persist()
        try:
            return {sink.name: _timed(sink, changes, shape, span) for sink in self._sinks}
        finally:
            if changes is not batch:
                changes.unpersist()

    @property
    def _shape(self) -> Shape:
        return Shape.WIRE if self._settings.transform is None else Shape.ENVELOPE

    def _options(self) -> dict[str, str]:
        source, transform = self._settings.source, self._settings.transform
        options = {
            "url": source.url,
            "slot": source.slot,
            "publication": source.publication,
            "tables": ",".join(source.tables),
            "shape": self._shape.value,
            "lanes": str(source.lanes),
            "laneBy": source.lane_by.value,
            "maxBytesPerTrigger": str(source.max_bytes),
            "maxRowsPerTrigger": str(source.max_rows or 0),
        }
        if transform is not None:
            options |= {"mask": json.dumps(dict(transform.mask)), "hash": ",".join(transform.hash), "salt": transform.salt}
        return options


def prepare(settings: PipelineSettings) -> None:
    """Make what a pipeline needs in the databases: its own tables, the publication, and the slot, in this order.

    The slot of a pipeline that has run before is never made anew: what was written since it was lost would be missing.
    """
    with translated(settings.state_url), closing(connect_sync(settings.state_url)) as connection:
        migrate(connection, Component.of("headwater.spark"))
        saved = fetch_report(connection, settings.name)
    source = settings.source
    if saved is not None and saved.slot == source.slot and saved.report.position is not None:
        with translated(source.url), closing(connect_sync(source.url)) as connection:
            if find_slot(connection, source.slot) is None:
                raise SlotMissing(source.slot)
    provision(source.url, source.slot, source.publication, source.tables)


def _timed(sink: Sink, changes: DataFrame, shape: Shape, span: Span) -> tuple[Written, float]:
    began = time.monotonic()
    written = sink.write(changes, shape, span)
    return written, time.monotonic() - began
