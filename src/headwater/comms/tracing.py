"""The span of a send, as a part of the trace that its job carries; without one there is none."""

from collections.abc import Awaitable, Callable
from typing import Final

from headwater.comms.outcome import Outcome, Verdict
from headwater.traces import opentelemetry

_NAME: Final = "headwater.comms"


async def traced(sender: str, send: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """Send within a span, which says by what, and what became of it. No address and no word of the message is in it."""
    found = opentelemetry()
    if found is None or not found[0].get_current_span().is_recording():
        return await send()
    trace = found[0]
    with trace.get_tracer(_NAME).start_as_current_span(
        "send", kind=trace.SpanKind.CLIENT, attributes={"headwater.sender": sender}
    ) as span:
        outcome = await send()
        span.set_attribute("headwater.outcome", outcome.verdict.value)
        if outcome.code is not None:
            span.set_attribute("headwater.code", outcome.code)
        if outcome.verdict is not Verdict.SENT:
            span.set_status(trace.Status(trace.StatusCode.ERROR))
        return outcome
