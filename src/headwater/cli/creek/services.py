"""What runs beside a pipeline with the Creek wire: requests of clients are answered, and Creek's metrics are served.

Imports Spark's package, so it is imported where that is known to be there.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from pyspark.sql import SparkSession

from headwater.spark.creek import RequestService, SnapshotCounts
from headwater.spark.monitor import CreekMetrics, LogCounter, Watch, reads_of
from headwater.spark.reporter import Reporter
from headwater.spark.settings import NatsSinkSettings, PipelineSettings
from headwater.spark.sinks import Sink
from headwater.spark.sinks.nats import NatsSink


class CreekServices:
    """The services of a pipeline's NATS sinks, of which there is at least one."""

    def __init__(self, settings: PipelineSettings, sinks: Sequence[Sink]) -> None:
        self._settings, self._snapshots = settings, SnapshotCounts()
        self._sinks: list[tuple[NatsSinkSettings, NatsSink]] = [
            (one, sink)
            for one, sink in zip(settings.sinks, sinks, strict=True)
            if isinstance(one, NatsSinkSettings) and isinstance(sink, NatsSink)
        ]

    @contextmanager
    def answering(self, spark: SparkSession) -> Iterator[None]:
        """Answer requests, of every sink that is to; the streams are there already."""
        with ExitStack() as stack:
            for settings, sink in self._sinks:
                if settings.answers:
                    service = RequestService(spark, self._settings, settings, sink.names.database, self._snapshots)
                    stack.enter_context(service)
            yield

    @contextmanager
    def measured(self, reporter: Reporter, watch: Watch) -> Iterator[None]:
        """Serve Creek's metrics beside our own."""
        with LogCounter() as logged:
            metrics = CreekMetrics(reporter, watch, logged, self._reads, self._tables)
            reporter.more_metrics.append(metrics.render)
            yield

    def _reads(self) -> Counter[tuple[str, str, str]]:
        found: Counter[tuple[str, str, str]] = Counter()
        for _, sink in self._sinks:
            found.update(reads_of(sink.figures.published))
            found.update({("schema", "relation", table): count for table, count in sink.figures.schemas.items()})
        found.update({("snap", "read", table): count for table, count in self._snapshots.rows.items()})
        return found

    def _tables(self) -> int:
        return max(sink.figures.tables for _, sink in self._sinks)
