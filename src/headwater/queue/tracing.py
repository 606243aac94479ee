"""Traces from enqueuing through claim and handler to the mark, if OpenTelemetry is there; without it there are none.

A job carries the trace of the span `enqueue`. Each time that it is worked on, spans `claim`, `process` and `settle` are part
of the same trace, in whichever process that is. What an application's tracing makes of them, no job fails by it.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager, nullcontext
from typing import Any, Final, Self

from headwater.queue.handler import Function
from headwater.queue.job import Job, NewJob
from headwater.queue.outcome import Finished, GivenUp, Outcome, Postponed, Settlement
from headwater.traces import opentelemetry

_log = logging.getLogger(__name__)

_NAME: Final = "headwater.queue"


@contextmanager
def enqueue_span(jobs: Iterable[NewJob]) -> Iterator[str | None]:
    """The span in which jobs are written, and the trace that they carry, if one is recorded."""
    found = opentelemetry()
    if found is None:
        yield None
        return
    trace, propagator = found
    count = len(jobs) if isinstance(jobs, Sized) else 0
    attributes = {"messaging.system": "postgresql", "messaging.batch.message_count": count}
    span, carrier = trace.INVALID_SPAN, dict[str, str]()
    with _harmless():
        span = trace.get_tracer(_NAME).start_span("enqueue", kind=trace.SpanKind.PRODUCER, attributes=attributes)
        if span.is_recording():
            propagator.inject(carrier, trace.set_span_in_context(span))
    try:
        # Without a span of ours, what the application does meanwhile is part of its own.
        with trace.use_span(span) if span.is_recording() else nullcontext():
            yield carrier.get("traceparent")
    finally:
        with _harmless():
            span.end()


class JobSpan:
    """The spans of one attempt at a job that is part of a recorded trace; nothing here raises."""

    def __init__(self, trace: Any, context: Any, job: Job) -> None:
        self._trace, self._context = trace, context
        attributes = {
            "messaging.system": "postgresql",
            "messaging.message.id": str(job.id),
            "messaging.destination.name": job.queue,
            "headwater.kind": job.kind,
            "headwater.attempt": job.attempt,
        }
        tracer = self._tracer = trace.get_tracer(_NAME)
        claimed = round(job.claimed_at.timestamp() * 1e9)
        claim = tracer.start_span(
            "claim", context=context, kind=trace.SpanKind.CLIENT, attributes=attributes, start_time=claimed
        )
        claim.end(max(claimed, time.time_ns()))
        self._span = tracer.start_span(
            f"process {job.kind}", context=context, kind=trace.SpanKind.CONSUMER, attributes=attributes
        )

    @classmethod
    def begin(cls, job: Job) -> Self | None:
        """None for a job that is part of no trace, or of one that is not recorded."""
        if job.trace is None or (found := opentelemetry()) is None:
            return None
        with _harmless():
            trace, propagator = found
            context = propagator.extract({"traceparent": job.trace})
            if trace.get_current_span(context).get_span_context().trace_flags.sampled:
                return cls(trace, context, job)
        return None

    async def within(self, function: Function, job: Job) -> Outcome | None:
        """Run a handler whose own spans are part of this one."""
        with self._trace.use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            return await function(job)

    def processed(self, settlement: Settlement) -> None:
        """The handler is done with it."""
        with _harmless():
            match settlement:
                case GivenUp(error, _) | Postponed(_, error, _):
                    self._span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, error))
                case Finished(outcome):
                    self._span.set_attribute("headwater.outcome", outcome)
            self._span.end()

    def marked(self, began_ns: int, ended_ns: int, *, is_ours: bool) -> None:
        """What became of it is written, or was refused."""
        with _harmless():
            context = self._trace.set_span_in_context(self._span, self._context)
            span = self._tracer.start_span("settle", context=context, kind=self._trace.SpanKind.CLIENT, start_time=began_ns)
            if not is_ours:
                span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, "settled by somebody else"))
                span.set_attribute("headwater.suspected_duplicate", True)
            span.end(ended_ns)


@contextmanager
def _harmless() -> Iterator[None]:
    try:
        yield
    except Exception as exc:  # noqa: BLE001 - processors and exporters are the application's
        _log.debug("a span of the queue failed", exc_info=exc)
