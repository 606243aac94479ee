"""Traces from the transaction to the confirm, if the application is traced by OpenTelemetry; without it there are none.

An event carries the trace of the span `publish`, in which it was made ready. Each time that it is sent, a span `send` of the
same trace lasts until the broker has answered, in whichever process that is. What an application's tracing makes of the
spans of sending, no event fails by it.
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from headwater.outbox.event import Event
from headwater.outbox.relay.entry import Entry
from headwater.traces import opentelemetry

_log = logging.getLogger(__name__)

_NAME: Final = "headwater.outbox"


@contextmanager
def publish_span(events: Sequence[Event]) -> Iterator[None]:
    """The span in which events are made ready, part of the trace that is recorded; where none is, nothing."""
    found = opentelemetry()
    if found is None or not found[0].get_current_span().is_recording():
        yield
        return
    trace = found[0]
    topics = sorted({str(event.topic) for event in events})
    attributes = {"messaging.batch.message_count": len(events), "messaging.destination.name": ",".join(topics)}
    with trace.get_tracer(_NAME).start_as_current_span("publish", kind=trace.SpanKind.PRODUCER, attributes=attributes):
        yield


class SendSpans:
    """The spans of one attempt, for those of its events that are part of a recorded trace; nothing here raises."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._spans: dict[int, Any] = {}
        for index, entry in enumerate(entries):
            if '"traceparent"' in entry.headers:
                with _harmless():
                    span = _started(entry)
                    if span is not None:
                        self._spans[index] = span

    def end(self, failures: Mapping[int, str]) -> None:
        """The broker has answered; those of some places were not taken, and why."""
        for index, span in self._spans.items():
            with _harmless():
                if (reason := failures.get(index)) is not None:
                    span.set_status(_error(reason))
                span.end()

    def fail(self, reason: str) -> None:
        """Nothing was sent."""
        self.end(dict.fromkeys(self._spans, reason))


@contextmanager
def _harmless() -> Iterator[None]:
    try:
        yield
    except Exception as exc:  # noqa: BLE001 - processors and exporters are the application's
        _log.debug("a span of the outbox failed", exc_info=exc)


def _started(entry: Entry) -> Any | None:
    found = opentelemetry()
    if found is None:
        return None
    trace, propagator = found
    context = propagator.extract(json.loads(entry.headers))
    if not trace.get_current_span(context).get_span_context().trace_flags.sampled:
        return None
    attributes = {
        "messaging.message.id": entry.id,
        "messaging.destination.name": entry.topic,
        "messaging.operation.type": "send",
        "headwater.attempt": entry.attempts + entry.tries + 1,
    }
    return trace.get_tracer(_NAME).start_span("send", context=context, kind=trace.SpanKind.PRODUCER, attributes=attributes)


def _error(reason: str) -> Any:
    found = opentelemetry()
    assert found is not None
    trace = found[0]
    return trace.Status(trace.StatusCode.ERROR, reason)
