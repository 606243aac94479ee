"""The trace of an event, from OpenTelemetry if the application has it."""

import sys

import pytest

from headwater.traces import opentelemetry, trace_headers


@pytest.fixture(autouse=True)
def looked_for_again():
    opentelemetry.cache_clear()
    yield
    opentelemetry.cache_clear()


def test_without_opentelemetry_there_is_no_trace(monkeypatch):
    monkeypatch.setattr("headwater.traces.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert trace_headers() == {}


def test_a_span_that_is_recorded_gives_its_traceparent_and_one_that_is_not_gives_none(monkeypatch):
    trace = pytest.importorskip("opentelemetry.trace", reason="opentelemetry-api is not installed")
    context = trace.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1))
    recorded = trace.NonRecordingSpan(context)
    monkeypatch.setattr(recorded, "is_recording", lambda: True)
    with trace.use_span(recorded):
        assert trace_headers() == {"traceparent": f"00-{0xABC:032x}-{0xDEF:016x}-01"}
    with trace.use_span(trace.NonRecordingSpan(context)):
        assert trace_headers() == {}
    assert trace_headers() == {}
