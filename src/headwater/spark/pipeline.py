"""A pipeline: one query that reads changes, transforms them, and writes each batch to every sink; then Spark commits it.

`Pipeline.run` is what `headwater run` does. What a batch holds is confirmed to the source only after all sinks have made it
durable and Spark has committed it, so whatever fails, the batch comes again, and sinks leave out what they have already.
"""

import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from threading import Event

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headwater import failpoints
from headwater.errors import HeadwaterError, PipelineFailed, SlotLost, SourceError
from headwater.postgres.backoff import Backoff
from headwater.postgres.catalog import read_server
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.migrate import Component, migrate
from headwater.postgres.replication.publication import find_publication
from headwater.spark.checkpoint import Checkpoint
from headwater.spark.failure import translate
from headwater.spark.feed import build_feed
from headwater.spark.lease import Lease
from headwater.spark.reporter import Delivered, Reporter
from headwater.spark.rules import SlotLossRule
from headwater.spark.settings import PipelineSettings, TopicSettings
from headwater.spark.shape import Shape
from headwater.spark.sinks.sink import Loading, Sink, Span, Written
from headwater.spark.sources import register
from headwater.spark.state import Phase, Report, claim_slot
from headwater.spark.transform import apply_transform
from headwater.spark.warm_up import warm_up

_log = logging.getLogger(__name__)

# How often to look whether to stop, or whether the query has ended.
_LOOK_SECONDS = 0.2
# With the waits between them about ten seconds: enough for a process that was killed, and for a server that restarts.
_TRIES = 5


class _Stop(Exception):
    """The next batch is not to be begun."""


class Pipeline:
    """A pipeline on a session and its sinks; `stopping` asks it to end after the batch that it is at.

    One run at a time has a pipeline. Another one stands by, and takes over when the first has ended, however it ended. What
    `beside` gives is there while batches are delivered, after the sinks were opened.
    """

    def __init__(  # noqa: PLR0913 - what it runs on and delivers to, and who else takes part
        self,
        spark: SparkSession,
        settings: PipelineSettings,
        sinks: Sequence[Sink],
        stopping: Event,
        reporter: Reporter | None = None,
        beside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._spark, self._settings, self._sinks, self._stopping = spark, settings, sinks, stopping
        self._feed, self._checkpoint = build_feed(settings), Checkpoint(spark, settings.checkpoint)
        self._reporter, self._beside = reporter or Reporter(settings), beside
        self._lease = Lease(settings.state_url, settings.name)
        self._has_begun = self._is_provided = self._delivering = False
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
        failures, is_done = 0, False
        try:
            while not is_done and not self._stopping.is_set():
                delivered = self._reporter.report.rows
                try:
                    if self._may_run(once=once):
                        self._run(once=once)
                        is_done = once and not self._is_ending
                        if is_done:
                            self._feed.require_all_read()
                except HeadwaterError as exc:
                    failures = 1 if self._reporter.report.rows > delivered else failures + 1
                    self._recover(exc, failures, once=once)
            self._reporter.enter(Phase.STOPPED)
        except KeyboardInterrupt:
            self._reporter.enter(Phase.STOPPED)
            raise
        except BaseException as exc:
            self._reporter.enter(Phase.FAILED, str(exc) or type(exc).__name__)
            raise
        finally:
            self._reporter.stop()
            self._feed.close()
            self._lease.release()

    def _may_run(self, *, once: bool) -> bool:
        """Whether to start a query now. Waits while another run has the pipeline, and while it is paused."""
        while not self._stopping.is_set():
            self._reporter.look()
            if not self._lease.is_held:
                self._take_over(once=once)
            elif not self._is_provided:
                self._provide()
            elif not self._lease.is_paused:
                return True
            elif once:
                raise HeadwaterError(f"pipeline {self._settings.name!r} is paused; let it go on with `headwater resume`")
            else:
                self._reporter.enter(Phase.PAUSED)
                self._stopping.wait(_LOOK_SECONDS)
        return False

    def _take_over(self, *, once: bool) -> None:
        """Get the right to run; waits as long as another run has it."""
        name, facts = self._settings.name, {"pipeline": self._settings.name}
        self._is_provided = False
        if self._has_begun:
            # What is written of the pipeline may be another run's by now.
            self._reporter.stand_by()
        if not self._lease.take():
            holder = self._lease.holder() or "a session that cannot be seen"
            if once:
                raise HeadwaterError(f"pipeline {name!r} runs elsewhere ({holder}); stop that run, or leave it to it")
            self._reporter.stand_by()
            _log.info("pipeline %s: runs elsewhere (%s), and is taken over when that ends", name, holder, extra=facts)
            warm_up(self._spark)
            _log.info("pipeline %s: ready to take over", name, extra=facts)
            if not self._lease.wait(self._stopping):
                return
            _log.info("pipeline %s: the other run has ended", name, extra=facts)
        self._lease.let_go_before(self._stopping)

    def _provide(self) -> None:
        """Say that the pipeline is this run's, and make what is missing."""
        enroll(self._settings)
        self._reporter.start()
        self._has_begun = True
        self._feed.provide(self._stopping)
        self._lease.look()
        self._is_provided = True

    def _recover(self, error: HeadwaterError, failures: int, *, once: bool) -> None:
        """Do what lets the query be started again after an error, and wait; raises the error if nothing can."""
        if isinstance(error, SlotLost) and self._has_begun:
            try:
                self._renew_slot(error)
                return
            except HeadwaterError as exc:
                # A server that changes hands loses slots, and may be away for a while.
                error = exc
                # It may have come as far as a slot that the feed does not know of.
                self._is_provided = False
        if error.retryable and self._stopping.is_set():
            _log.debug("the run ended with the stop", exc_info=error, extra=self._reporter.facts)
            return
        is_limited = once or isinstance(error, PipelineFailed)
        if not error.retryable or not self._has_begun or (is_limited and failures >= _TRIES):
            raise error
        wait = Backoff().after(failures, random.random()).total_seconds()
        self._reporter.enter(Phase.RETRYING, str(error))
        _log.warning("%s; trying again in %.1f s", error, wait, extra=self._reporter.facts)
        self._stopping.wait(wait)

    def _renew_slot(self, error: SlotLost) -> None:
        """Do what the settings say about a slot that is lost."""
        source = self._settings.source
        if not isinstance(source, TopicSettings) and source.on_slot_loss is SlotLossRule.FAIL:
            remedy = 'to have all tables read as a whole again, set on_slot_loss = "resnapshot"'
            raise SourceError(f"{error}; {remedy}") from error
        # Before, since the next attempt does not know of the loss any more.
        _log.warning("%s; another one is made, and %s", error, self._feed.after_loss, extra=self._reporter.facts)
        self._feed.renew(str(error), self._stopping)

    @property
    def _is_ending(self) -> bool:
        """Whether no other batch is to be begun, for now or for good."""
        return self._stopping.is_set() or not self._lease.is_held or self._lease.is_paused

    def _run(self, *, once: bool) -> None:
        """One query, from the opening of the sinks to its end."""
        try:
            for sink in self._sinks:
                sink.open()
            with self._beside():
                query = self._start(once=once)
                self._reporter.enter(Phase.RUNNING)
                self._follow(query)
        finally:
            for sink in self._sinks:
                sink.close()

    def _start(self, *, once: bool) -> StreamingQuery:
        register(self._spark)
        self._failure = None
        changes = self._spark.readStream.format(self._feed.format).options(**self._feed.options).load()
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
        """Wait for the end of the query; when it is to end, end it between two batches, and at once without the lease."""
        try:
            # Spark counts in milliseconds; its annotation asks for whole seconds.
            while not query.awaitTermination(_LOOK_SECONDS):  # type: ignore[arg-type]
                self._reporter.look()
                if self._is_ending and (not self._delivering or not self._lease.is_held):
                    query.stop()
        except Exception as exc:
            if not self._is_ending:
                raise translate(self._failure or exc) from exc
            _log.debug("the query ended with the stop", exc_info=exc)

    def _deliver(self, batch: DataFrame, number: int) -> None:
        """Write one batch to every sink; it is committed only when this returns."""
        self._delivering = True
        try:
            if self._is_ending:
                raise _Stop
            began = time.monotonic()
            self._reporter.begin()
            failpoints.hit("batch.begin")
            before, logged = self._checkpoint.bounds_of(number)
            span, end, content = self._feed.range_of(before, logged)
            loading = span.loading
            if loading is not None and loading.first == 0 and not loading.is_complete:
                self._tell_loading(loading, "tables %s: reading")
            results = self._write(batch, span)
            failpoints.hit("sink.written")
            self._feed.delivered(logged)
            if loading is not None and loading.is_complete:
                self._tell_loading(loading, "tables %s: read as a whole, and followed from now on")
            seconds, is_loading = time.monotonic() - began, span.loading is not None
            self._reporter.add(Delivered(end, content, results, seconds, is_loading))
        except BaseException as exc:
            self._failure = exc
            raise
        finally:
            self._reporter.end()
            self._delivering = False

    def _tell_loading(self, loading: Loading, said: str) -> None:
        tables = ", ".join(map(".".join, loading.tables))
        _log.info(said, tables, extra={**self._reporter.facts, "attempt": loading.attempt})

    def _write(self, batch: DataFrame, span: Span) -> dict[str, tuple[Written, float]]:
        shape, changes, transform = self._feed.shape, batch, self._settings.transform
        if transform is not None:
            changes = apply_transform(batch, transform, shape)
        if len(self._sinks) > 1 and (transform is not None or span.loading is not None):
            # Changes come with the batch; pieces of tables would be read for each sink.
            changes = changes.persist()
        try:
            return {sink.name: self._timed(sink, changes, shape, span) for sink in self._sinks}
        finally:
            if changes.is_cached:
                changes.unpersist()

    def _timed(self, sink: Sink, changes: DataFrame, shape: Shape, span: Span) -> tuple[Written, float]:
        if not self._lease.is_held:
            raise _Stop
        began = time.monotonic()
        self._reporter.begin(sink.name)
        written = sink.write(changes, shape, span)
        return written, time.monotonic() - began


def prepare(settings: PipelineSettings) -> None:
    """Make what a pipeline needs in the databases: its own tables, the publication, and the slot, in this order."""
    enroll(settings)
    build_feed(settings).provide(Event())


def enroll(settings: PipelineSettings) -> None:
    """Make the tables of pipelines, and write down which slot this one reads; that of another pipeline is refused."""
    source = settings.source
    with translated(source.url), closing(connect_sync(source.url)) as connection:
        system_identifier = read_server(connection).system_identifier
        makes_publication = source.publication != "" and find_publication(connection, source.publication) is None
    with translated(settings.state_url), closing(connect_sync(settings.state_url)) as connection:
        migrate(connection, Component.of("headwater.spark"))
        claim_slot(
            connection,
            settings.name,
            source.slot,
            system_identifier=system_identifier,
            publication=source.publication,
            # Said before it is made: one that nobody remembers would stay for ever.
            owns_publication=makes_publication,
        )
