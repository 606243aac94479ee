"""The figures of a relay for Prometheus, made when they are asked for; in an application's own registry, or alone.

prometheus-client comes with the extras `relay` and `spark`.
"""

import time
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from headwater.errors import SettingsError
from headwater.outbox.relay.counts import CONFIRM_SECONDS
from headwater.outbox.relay.relay import OutboxRelay

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as exc:
    raise SettingsError(
        "prometheus_client is needed for the figures of a relay, and is not installed; run `pip install 'headwater[relay]'`"
    ) from exc

_COUNTERS: Final = {
    "published": "Events that the broker has confirmed.",
    "duplicates": "Events of these that the broker had already, where it can tell.",
    "nacks": "Events that the broker did not take, for a reason that may pass.",
    "returns": "Events that the broker will never take as they are, such as unroutable ones.",
    "dead": "Events given up; they are in the table until somebody revives them.",
    "postponed": "Events put back into the table, to be tried later.",
    "revived": "Events found in the table and claimed.",
    "let_go": "Events let go from memory without a try; they are sent from the table.",
    "suspected_duplicates": "Events that were published already when they were to be marked as such.",
    "restarts": "Tasks that failed and were started again.",
}


class RelayMetrics(Collector):
    """To be registered by `registry.register(RelayMetrics(relay))`; a figure that is not known is left out rather than 0."""

    def __init__(self, relay: OutboxRelay) -> None:
        self._relay = relay

    def render(self) -> bytes:
        """The text that Prometheus reads, of this relay alone."""
        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing yet: what is registered is asked when it is scraped."""
        return ()

    def collect(self) -> Iterator[Metric]:
        counts = self._relay.counts
        for name, help_ in _COUNTERS.items():
            yield CounterMetricFamily(f"headwater_relay_{name}", help_, value=getattr(counts, name))
        queues = GaugeMetricFamily("headwater_relay_queue_events", "Events that wait, by queue.", labels=["queue"])
        for queue, events in self._relay.fills.items():
            queues.add_metric([queue], events)
        yield queues
        yield _gauge("in_flight_events", "Events that the broker was given and has not answered for.", counts.in_flight)
        yield _gauge("broker_up", "Whether the broker could be reached the last time.", counts.is_broker_up)
        yield _gauge("database_up", "Whether the database did the last time what it was asked.", counts.is_database_up)
        if (oldest := counts.oldest(time.monotonic())) is not None:
            yield _gauge("oldest_unpublished_seconds", "Age of the oldest event that waits.", oldest)
        bounds = [*map(str, CONFIRM_SECONDS), "+Inf"]
        yield HistogramMetricFamily(
            "headwater_relay_confirm_seconds",
            "From the commit of a transaction in this process to the broker's confirm.",
            buckets=list(zip(bounds, map(float, accumulate(counts.confirm_times)), strict=True)),
            sum_value=counts.confirm_seconds,
        )


def _gauge(name: str, help_: str, value: float) -> Metric:
    return GaugeMetricFamily(f"headwater_relay_{name}", help_, value=float(value))
