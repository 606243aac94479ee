"""The trace that an event belongs to, if the application is traced by OpenTelemetry; without it there is none."""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def trace_headers() -> Mapping[str, str]:
    """`traceparent`, and `tracestate` if there is one, of the span that is being recorded."""
    found = opentelemetry()
    if found is None:
        return {}
    trace, propagator = found
    carrier: dict[str, str] = {}
    if trace.get_current_span().is_recording():
        propagator.inject(carrier)
    return carrier


@cache
def opentelemetry() -> tuple[Any, Any] | None:
    """The module `opentelemetry.trace` and what carries a trace in headers, if they are installed."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.trace") is None:
        return None
    propagation = import_module("opentelemetry.trace.propagation.tracecontext")
    return import_module("opentelemetry.trace"), propagation.TraceContextTextMapPropagator()
