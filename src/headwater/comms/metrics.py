"""The figures of a service for Prometheus: messages that were taken, attempts by their outcome, and those of the worker.

prometheus-client comes with the extra `comms`.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from headwater.comms.consumer import Consumer
from headwater.comms.submit import Submitter
from headwater.queue.metrics import WorkerMetrics


class CommsMetrics(Collector):
    """Of what this process does; the parts that it does not have are left out."""

    def __init__(self, submitter: Submitter | None, consumer: Consumer | None) -> None:
        self._submitter, self._consumer = submitter, consumer

    def render(self) -> bytes:
        """The text that Prometheus reads."""
        registry = CollectorRegistry()
        registry.register(self)
        if self._consumer is not None:
            registry.register(WorkerMetrics(self._consumer.worker.counts))
        return generate_latest(registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing yet: what is registered is asked when it is scraped."""
        return ()

    def collect(self) -> Iterator[Metric]:
        if self._submitter is not None:
            yield _counter("accepted", "Messages that were accepted.", self._submitter.accepted)
        if self._consumer is None:
            return
        counts = self._consumer.counts
        attempts = CounterMetricFamily("headwater_email_attempts", "Attempts by outcome.", labels=["outcome"])
        for verdict, count in counts.verdicts.items():
            attempts.add_metric([verdict.value], count)
        yield attempts
        yield _counter("spared", "Messages that were sent before, and were not sent again.", counts.spared)
        yield _counter("unrecorded", "Attempts that could not be put on record.", counts.unrecorded)


def _counter(name: str, help_: str, value: int) -> Metric:
    return CounterMetricFamily(f"headwater_email_{name}", help_, value=value)
