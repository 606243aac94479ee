"""The spans of a run, counted: by the service that they are of, and the run, as the original tells its runs apart.

A process can be traced only once: after that it is for good.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

RUN: Final = "test.uuid"
PRODUCER: Final = "headwater-load-producer"
CONSUMER: Final = "headwater-load-consumer"
# More than a run has, so that none is dropped.
_MOST: Final = 500_000

# How many spans of a service, of a run, of a name.
Spans: TypeAlias = Counter[tuple[str, str, str]]


class _Counting(SpanExporter):
    def __init__(self) -> None:
        self.spans: Spans = Counter()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            of = span.resource.attributes
            self.spans[str(of.get(SERVICE_NAME)), str(of.get(RUN)), span.name] += 1
        return SpanExportResult.SUCCESS


@contextmanager
def counting(service: str, run: str) -> Iterator[Spans]:
    """Count the spans of this process, which are all there at the end; without a run nothing is traced."""
    exporter = _Counting()
    if not run:
        yield exporter.spans
        return
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service, RUN: run}))
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_MOST))
    trace.set_tracer_provider(provider)
    yield exporter.spans
    provider.force_flush()
