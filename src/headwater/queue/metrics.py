"""The figures of a worker for Prometheus, made when they are asked for; in an application's own registry, or alone.

prometheus-client comes with the extra `queue`.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from headwater.errors import SettingsError
from headwater.queue.counts import BOUNDS, Counts, Times

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as exc:
    raise SettingsError(
        "prometheus_client is needed for the figures of a worker, and is not installed; run `pip install 'headwater[queue]'`"
    ) from exc

_COUNTERS: Final = {
    "claimed": "Jobs that this worker has claimed.",
    "done": "Jobs that it has done.",
    "failed": "Attempts that have failed, or asked for another.",
    "retried": "Jobs that were put off to be tried again.",
    "dead": "Jobs that were given up; they are kept until somebody retries or purges them.",
    "cancelled": "Jobs that were cancelled while it had them.",
    "released": "Jobs that it gave back without having begun them.",
    "timeouts": "Handlers that took longer than they may.",
    "suspected_duplicates": "Outcomes that were refused because somebody else had the job or had settled it.",
    "leases_lost": "Jobs that were another's before they were done here.",
    "renewed": "Leases that were renewed.",
    "polls": "Questions for jobs that are due.",
    "sweeps": "Of these, such as looked from the beginning.",
    "periodic": "Periodic jobs that this worker has enqueued.",
}
_TIMES: Final = {
    "schedule_to_claim": "From when a job was due to its claim.",
    "claim_to_done": "From the claim of a job until it is marked as done.",
    "schedule_to_done": "From when a job was due until it is marked as done.",
}


class WorkerMetrics(Collector):
    """To be registered by `registry.register(WorkerMetrics(worker.counts))`."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def render(self) -> bytes:
        """The text that Prometheus reads, of this worker alone."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing yet: what is registered is asked when it is scraped."""
        return ()

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        for name, help_ in _COUNTERS.items():
            yield CounterMetricFamily(f"headwater_queue_{name}", help_, value=getattr(counts, name))
        for name, help_ in _TIMES.items():
            yield _histogram(f"headwater_queue_{name}_seconds", help_, getattr(counts, name))
        yield _gauge("waiting_jobs", "Jobs that are claimed and wait for a free lane.", counts.waiting)
        yield _gauge("running_jobs", "Jobs in hand.", counts.running)
        yield _gauge("overdue_seconds", "For how long the oldest due job waits that nobody has.", counts.overdue_seconds)
        yield _gauge("database_up", "Whether jobs could be claimed the last time.", counts.is_database_up)


def _histogram(name: str, help_: str, times: Times) -> Metric:
    bounds = [*map(str, BOUNDS), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(times.buckets)), strict=True))
    return HistogramMetricFamily(name, help_, buckets=buckets, sum_value=times.total)


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(f"headwater_queue_{name}", help_, value=float(value))
