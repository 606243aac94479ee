"""Spans of sending, with a tracing that breaks."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from headwater.outbox.relay.tracing import SendSpans
from tests.support.outbox.relay_entries import entry


class Broken(SpanProcessor):
    """Of an application whose exporter raises, at the start or at the end of a span."""

    def __init__(self, at: str) -> None:
        self._at, self.failures = at, 0

    def on_start(self, span, parent_context=None):
        self._fail("start")

    def on_end(self, span):
        self._fail("end")

    def _fail(self, at):
        if at == self._at:
            self.failures += 1
            raise RuntimeError("the exporter broke")


@pytest.mark.parametrize("at", ["start", "end"])
def test_nothing_that_tracing_does_fails_a_send(monkeypatch, at):
    provider = TracerProvider()
    provider.add_span_processor(broken := Broken(at))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    entries = [entry("a"), entry("b"), entry("c")]
    for one in entries:
        one.headers = '{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}'
    spans = SendSpans(entries)
    spans.end({1: "full"})
    assert broken.failures == 3


def test_headers_that_are_no_json_object_fail_no_send():
    strange = entry("a")
    strange.headers = '["traceparent"'
    SendSpans([strange]).fail("away")
