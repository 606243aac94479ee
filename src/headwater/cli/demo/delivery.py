"""The data path: a producer from the demo's tables to NATS, and a consumer from there to the target, on one Spark.

They run on threads of their own, so that a signal finds the main thread waiting, and not in the midst of a call to Spark. On
the way out both end the batches that they are at, Spark ends, and then its Java, with the files that it made.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, Self

from headwater.cli.config import environment
from headwater.cli.demo.statements import PUBLICATION, SCHEMA, SLOT
from headwater.embedded import resolve_java, state_directory
from headwater.errors import PipelineFailed
from headwater.postgres.catalog import Table
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import execute_sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.creek_apply.settings import ApplySettings
    from headwater.spark.pipeline import Pipeline
    from headwater.spark.settings import PipelineSettings
    from headwater.spark.state import Report

NAME: Final = "demo"
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Route:
    """From where to where; the target goes away in the end, so the pipeline's state may be there."""

    source_url: str
    nats_url: str
    target_url: str
    checkpoint: str
    tables: Sequence[Table]

    def produced(self) -> "PipelineSettings":
        """The producer."""
        from headwater.brokers.nats import NatsAccess
        from headwater.spark.settings import ChangesSettings, NatsSinkSettings, PipelineSettings, SnapshotRule

        return PipelineSettings(
            name=NAME,
            # Its tables are empty when it begins, and every change counts.
            source=ChangesSettings(
                url=self.source_url,
                tables=(f"{SCHEMA}.*",),
                slot=SLOT,
                publication=PUBLICATION,
                snapshot=SnapshotRule.NEVER,
            ),
            sinks=(NatsSinkSettings(name=NAME, access=NatsAccess(url=self.nats_url)),),
            checkpoint=self.checkpoint,
            state_url=self.target_url,
        )

    def applied(self) -> "ApplySettings":
        """The consumer."""
        from headwater.brokers.nats import NatsAccess
        from headwater.spark.creek_apply.settings import ApplySettings

        return ApplySettings(access=NatsAccess(url=self.nats_url), url=self.target_url)

    def subscribe(self) -> None:
        """Have the consumer follow all tables."""
        from headwater.creek.consumer.mapping import TableMapping, Target, Topic
        from headwater.creek.consumer.statements import add_table
        from headwater.spark.creek_apply.sink import prepare_target

        prepare_target(self.target_url)
        with closing(connect_sync(self.source_url)) as source:
            database = source.info.dbname
        with closing(connect_sync(self.target_url)) as target:
            for table in self.tables:
                topic = Topic(database, table.schema, table.name)
                execute_sync(target, add_table(TableMapping(topic, Target(table.schema, table.name))))


class Delivery:
    """The data path of a route, for the length of a `with` block; `say` is told what is being waited for."""

    def __init__(self, route: Route, say: Callable[[str], None]) -> None:
        self._route, self._say = route, say
        self._stopping, self._ended = Event(), Event()
        self._thread = Thread(target=self._guarded, args=[self._run], name="demo", daemon=True)
        self._pipeline: Pipeline | None = None
        self._applied: Applied | None = None
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._say("Stopping Spark")
        self._stopping.set()
        self._thread.join()

    @property
    def report(self) -> "Report | None":
        """How far the producer is, also after its end; nothing before Spark has started."""
        return self._pipeline.report if self._pipeline is not None else None

    @property
    def applied(self) -> "Applied":
        """How far the consumer is."""
        return self._applied or Applied()

    @property
    def is_up_to_date(self) -> bool:
        """Whether the consumer has got all that the producer has published."""
        return self.report is not None and self.applied.total >= self.report.rows

    def wait_until_running(self) -> None:
        """Returns when the pipeline waits for changes; raises what keeps it from that."""
        self._say("Starting Spark")
        self._wait(lambda: self._pipeline is not None)
        self._say("Starting producer and consumer")
        self._wait(lambda: self.report is not None and self.report.phase == "running")

    def wait_for_rows(self, rows: int) -> None:
        """Returns when so many changes are in the target."""
        self._wait(lambda: self.applied.total >= rows)

    def require_life(self) -> None:
        """Raise what has ended the pipeline, if anything has."""
        if self._failure is not None:
            raise self._failure
        if self._ended.is_set():
            raise PipelineFailed("the pipeline has ended by itself, and nothing was compared; run the demo again")

    def _wait(self, enough: Callable[[], bool]) -> None:
        while not enough():
            self.require_life()
            self._ended.wait(_LOOK_SECONDS)

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as exc:  # noqa: BLE001 - whatever ends a thread must reach the demo
            self._failure = self._failure or exc
        finally:
            self._ended.set()

    def _run(self) -> None:
        from headwater.spark.pipeline import Pipeline
        from headwater.spark.session import build_session, end_session
        from headwater.spark.sinks.build import build_sinks

        settings = self._route.produced()
        sinks = build_sinks(settings)
        self._route.subscribe()
        spark = build_session(NAME, java_home=resolve_java(environment(), state_directory()))
        consumer = Thread(target=self._guarded, args=[lambda: self._consume(spark)], name="demo consumer", daemon=True)
        try:
            _silence_workers(spark)
            self._pipeline = Pipeline(spark, settings, sinks, self._stopping)
            consumer.start()
            if not self._stopping.is_set():
                self._pipeline.run()
        finally:
            self._stopping.set()
            if consumer.ident is not None:
                consumer.join()
            end_session(spark)

    def _consume(self, spark: "SparkSession") -> None:
        """Apply what is published, once there are streams to read it from."""
        from headwater.spark.creek_apply.counts import Counts
        from headwater.spark.creek_apply.serve import Consumer

        while self.report is None or self.report.phase != "running":
            if self._stopping.wait(_LOOK_SECONDS):
                return
        counts = Counts()
        self._applied = Applied(counts)
        Consumer(spark, self._route.applied(), self._stopping, counts).run()


class Applied:
    """What the consumer has applied until now; nothing before it runs."""

    def __init__(self, counts: Any = None) -> None:
        self._counts = counts

    @property
    def total(self) -> int:
        """All messages that it has had, whatever became of them."""
        counts = self._counts
        return counts.applied + counts.skipped + counts.letters if counts is not None else 0

    @property
    def changes(self) -> int:
        return self._counts.applied if self._counts is not None else 0

    @property
    def letters(self) -> int:
        return self._counts.letters if self._counts is not None else 0

    @property
    def by_table(self) -> Mapping[str, int]:
        if self._counts is None:
            return {}
        return {mapping.target.table: count for (_, mapping), count in self._counts.by_table.items()}


def _silence_workers(spark: "SparkSession") -> None:
    """Drop what Spark's Python processes print: what fails comes as an exception, and when stopped they may complain."""
    java: Any = spark._jvm
    nowhere = java.java.io.PrintStream(java.java.io.OutputStream.nullOutputStream())
    java.java.lang.System.setErr(nowhere)
