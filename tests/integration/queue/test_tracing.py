"""Traces: from the request that enqueues a job through claim and handler to the mark, in whichever process each is."""

import asyncio

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headwater import queue
from headwater.queue import Discard, Enqueuer, FullJitter, Retry
from tests.support.queue.workers import Busy, claim, end_leases, quick, running, states, worker_with
from tests.support.topics.subscribers import until


@pytest.fixture
def exporter(monkeypatch):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # Its own setter works once in a process.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    return exporter


def by_name(exporter):
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_trace_goes_from_the_request_to_the_mark(queue_url, connection, exporter):
    async def handle(job):
        with trace.get_tracer("application").start_as_current_span("smtp"):
            await asyncio.sleep(0)

    worker = worker_with(handle)
    with trace.get_tracer("application").start_as_current_span("request"):
        id = queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 1)
    spans = by_name(exporter)
    assert set(spans) == {"request", "enqueue", "claim", "process send", "smtp", "settle"}
    assert len({span.context.trace_id for span in spans.values()}) == 1
    parents = {name: span.parent.span_id for name, span in spans.items() if span.parent is not None}
    assert parents == {
        "enqueue": spans["request"].context.span_id,
        "claim": spans["enqueue"].context.span_id,
        "process send": spans["enqueue"].context.span_id,
        "smtp": spans["process send"].context.span_id,
        "settle": spans["process send"].context.span_id,
    }
    assert spans["process send"].attributes["messaging.message.id"] == str(id)
    assert spans["process send"].attributes["headwater.attempt"] == 1
    assert all(span.end_time >= span.start_time for span in spans.values())


async def test_what_many_callers_enqueue_together_stays_part_of_the_trace_of_each(queue_url, connection, exporter):
    async def call(n, enqueuer):
        with trace.get_tracer("application").start_as_current_span("request") as span:
            return await enqueuer.enqueue("send", n), f"{span.get_span_context().trace_id:032x}"

    async with Enqueuer(queue_url) as enqueuer:
        given = dict(await asyncio.gather(*(call(n, enqueuer) for n in range(5))))
        untraced = await enqueuer.enqueue("send")
    found = dict(connection.execute("select id, split_part(trace, '-', 2) from headwater.job").fetchall())
    assert len(set(given.values())) == 5
    # That of the transaction, of which nobody else is part.
    assert found.pop(untraced) not in given.values()
    assert found == given


@pytest.mark.parametrize(("answer", "said"), [(Discard("never"), "never"), (Retry("1h", "later"), "later"), (None, None)])
async def test_a_failure_is_seen_in_the_span_of_the_handler(queue_url, connection, exporter, answer, said):
    async def handle(job):
        if answer is None:
            raise ValueError("broken")
        return answer

    worker = worker_with(handle, retry=FullJitter(base="1h", most=3))
    queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.failed == 1 and worker.counts.retried + worker.counts.dead == 1)
    span = by_name(exporter)["process send"]
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == (said or "broken")


async def test_a_suspected_duplicate_is_seen_in_the_span_of_its_mark(queue_url, connection, exporter):
    async def handle(job):
        end_leases(connection)
        claim(connection, worker="another")

    worker = worker_with(handle, settings=quick(listens=False))
    queue.enqueue_sync(connection, "send")
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.suspected_duplicates == 1)
    span = by_name(exporter)["settle"]
    assert span.attributes["headwater.suspected_duplicate"] is True
    assert span.status.status_code is trace.StatusCode.ERROR


@pytest.mark.parametrize("carried", [None, "nonsense", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"])
async def test_a_job_of_no_recorded_trace_is_done_without_spans(queue_url, connection, exporter, carried):
    connection.execute("insert into headwater.job (kind, trace) values ('send', %s)", [carried])
    worker = worker_with(Busy())
    async with running(worker, url=queue_url):
        await until(lambda: worker.counts.done == 1)
    assert exporter.get_finished_spans() == ()


class Broken(SpanProcessor):
    """Of an application whose exporter raises, at the start or at the end of a span."""

    def __init__(self, at):
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
async def test_nothing_that_tracing_does_fails_a_job_or_those_who_enqueue(queue_url, connection, monkeypatch, at):
    provider = TracerProvider()
    provider.add_span_processor(broken := Broken(at))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    trace_of = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    connection.execute("insert into headwater.job (kind, trace) values ('send', %s)", [trace_of])
    worker = worker_with(Busy())
    async with running(worker, url=queue_url):
        queue.enqueue_sync(connection, "send")
        async with Enqueuer(queue_url) as enqueuer:
            await asyncio.wait_for(enqueuer.enqueue("send"), 10)
        await until(lambda: worker.counts.done == 3)
    assert set(states(connection).values()) == {"done"}
    assert broken.failures >= 3


async def test_what_goes_wrong_while_enqueuing_is_seen_in_its_span(application, exporter):
    application.execute("drop table headwater.job cascade")
    with pytest.raises(Exception, match=r"headwater\.job"):
        queue.enqueue_sync(application, "send")
    assert by_name(exporter)["enqueue"].status.status_code is trace.StatusCode.ERROR
