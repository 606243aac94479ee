"""The metrics of a run for Prometheus: in base units, made when they are asked for from what is known at that moment."""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headwater import __version__
from headwater.spark.monitor.watch import Watch
from headwater.spark.reporter import BATCH_SECONDS, Pulse, Reporter
from headwater.spark.state import Phase, Progress, Report, uses


class Metrics(Collector):
    """All families; a figure that is not known is left out rather than 0."""

    def __init__(self, pipeline: str, reporter: Reporter, watch: Watch) -> None:
        self._pipeline, self._reporter, self._watch = pipeline, reporter, watch
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self._registry) + b"".join(more() for more in self._reporter.more_metrics)

    def describe(self) -> Iterable[Metric]:
        """Nothing yet: what is registered is asked when it is scraped."""
        return ()

    def collect(self) -> Iterator[Metric]:
        report, pulse = self._reporter.report, self._reporter.pulse
        seen = self._watch.seen
        yield self._gauge("build_info", "The release that runs.", [((("version", __version__),), 1)])
        yield self._phase(report.phase)
        yield from self._of_run(report)
        yield from self._of_batches(pulse)
        yield from self._of_source(self._watch.progress)
        ups = [((("database", "source"),), float(seen.is_source_up)), ((("database", "state"),), float(seen.is_state_up))]
        yield self._gauge("database_up", "Whether the database has answered when it was last asked for figures.", ups)
        letters = [((("sink", name),), seen.letters.get(name, 0)) for name in sorted({*report.sinks, *seen.letters})]
        yield self._gauge("dead_letters_open", "Dead letters that wait to be replayed or dropped.", letters)
        yield from self._of_loads()

    def _phase(self, phase: Phase) -> Metric:
        values = [((("phase", str(one)),), float(one is phase)) for one in Phase]
        return self._gauge("phase", "What the run is at: 1 for that phase, 0 for the others.", values)

    def _of_run(self, report: Report) -> Iterator[Metric]:
        rows = [((("table", name),), float(table.changes)) for name, table in report.tables.items()]
        yield self._counter("rows", "Changes of the stream delivered to every sink since the run began.", rows)
        outcomes = [
            ((("sink", name), ("outcome", outcome)), float(count))
            for name, sink in report.sinks.items()
            for outcome, count in (("applied", sink.changes), ("skipped", sink.skipped), ("letter", sink.letters))
        ]
        yield self._counter("sink_rows", "What became of them at each sink; skipped are those it had already.", outcomes)
        if report.committed_at is not None:
            at = report.committed_at.timestamp()
            yield self._gauge("last_commit_timestamp_seconds", "When the last delivered change was committed.", [((), at)])

    def _of_batches(self, pulse: Pulse) -> Iterator[Metric]:
        yield self._counter("batches", "Batches delivered since the run began.", [((), float(pulse.batches))])
        family = HistogramMetricFamily(
            "headwater_batch_seconds", "How long batches took, from their beginning to the last sink.", labels=["pipeline"]
        )
        bounds = [*(str(bound) for bound in BATCH_SECONDS), "+Inf"]
        counts = list(zip(bounds, map(float, accumulate(pulse.times)), strict=True))
        family.add_metric([self._pipeline], counts, pulse.seconds)
        yield family

    def _of_source(self, progress: Progress) -> Iterator[Metric]:
        slot, limits = progress.slot, progress.limits
        lag = progress.lag
        figures = {
            "lag_bytes": ("WAL that is durable at the server and not confirmed.", progress.lag_bytes),
            "lag_seconds": (
                "0 if nothing is unconfirmed, else the age of the last change that was delivered.",
                None if lag is None else lag.total_seconds(),
            ),
            "slot_active": ("Whether somebody reads the slot.", None if slot is None else float(slot.active)),
            "slot_retained_bytes": ("WAL that the server keeps for the slot.", slot.retained_bytes if slot else None),
            "slot_safe_wal_bytes": ("How much more WAL until the slot is given up.", slot.safe_wal_size if slot else None),
            "slot_wal_limit_bytes": ("The server's max_slot_wal_keep_size.", limits.wal_bytes),
        }
        for name, (said, value) in figures.items():
            yield self._gauge(name, said, [] if value is None else [((), float(value))])
        used = [((("setting", use.setting),), use.part) for use in uses(slot, limits)]
        yield self._gauge("slot_limit_used_ratio", "The part of a limit of the server's that the slot has used.", used)

    def _of_loads(self) -> Iterator[Metric]:
        loads = [((("table", load.name),), load) for load in self._watch.seen.loads]
        figures = {
            "snapshot_pieces_done": ("Pieces of a table's last reading that are delivered.", "pieces_done"),
            "snapshot_pieces": ("Pieces that the table is read in.", "pieces_total"),
            "snapshot_rows_estimate": ("Rows of the table, by the server's estimate.", "rows_estimate"),
        }
        for name, (said, field) in figures.items():
            yield self._gauge(name, said, [(labels, float(getattr(load, field))) for labels, load in loads])
        waiting = [(labels, float(load.state == "wanted")) for labels, load in loads]
        yield self._gauge("snapshot_wanted", "Whether the table is to be read as a whole.", waiting)

    def _gauge(self, name: str, said: str, values: Iterable[tuple[tuple[tuple[str, str], ...], float]]) -> Metric:
        return self._filled(GaugeMetricFamily, name, said, list(values))

    def _counter(self, name: str, said: str, values: Iterable[tuple[tuple[tuple[str, str], ...], float]]) -> Metric:
        return self._filled(CounterMetricFamily, name, said, list(values))

    def _filled(
        self,
        kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
        name: str,
        said: str,
        values: list[tuple[tuple[tuple[str, str], ...], float]],
    ) -> Metric:
        names = [label for label, _ in values[0][0]] if values else []
        family = kind(f"headwater_{name}", said, labels=["pipeline", *names])
        for labels, value in values:
            family.add_metric([self._pipeline, *(text for _, text in labels)], value)
        return family
