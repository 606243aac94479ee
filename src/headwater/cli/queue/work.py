"""`headwater queue work`: a worker of an application as a process, until it is told to end."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headwater.cli.config import Url
from headwater.cli.queue.target import load_worker
from headwater.cli.tracing import tracing
from headwater.errors import SettingsError
from headwater.http import Server, bind
from headwater.postgres.connect import describe
from headwater.queue import Worker
from headwater.queue.job import queue_fault

if TYPE_CHECKING:
    from starlette.requests import Request

_log = logging.getLogger(__name__)

# On a terminal the line of figures is for the eye, in a log for whoever reads it afterwards.
_LINE_SECONDS: Final = 1.0
_LOG_SECONDS: Final = 60.0


def work(
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:WORKER", help="The worker, as Python finds it from here on.", show_default=False),
    ],
    concurrency: Annotated[
        int | None,
        typer.Option(
            "--concurrency", min=1, max=100_000, help="Jobs in hand at once.", show_default="the worker's own, or 64"
        ),
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", metavar="NAME", help="A queue to work for; may be repeated.", show_default="the worker's own"
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            show_default="nowhere",
            help="Where to answer monitors: /metrics, /health and /ready.",
        ),
    ] = None,
    url: Url = "",
    listen_url: Annotated[
        str | None,
        typer.Option(
            "--listen-url",
            metavar="URL",
            show_default="the same",
            help="Where to hear of new jobs by LISTEN: straight to the server, if --url leads to a pooler.",
        ),
    ] = None,
) -> None:
    """Do jobs with the handlers of an application's worker, until SIGTERM or Ctrl-C.

    Then no more are claimed, those in hand are finished, within `stop_within`, what was claimed and not begun is given back
    at once, and the exit code is 0. A second signal ends it there and then; what it had is another's when the lease ends.
    Any number may run at once, also of different releases: each claims the kinds that it has handlers for.

    A module shop/jobs.py has:

        from headwater.queue import Worker
        worker = Worker()
        @worker.handler("send-invoice", timeout="5s")
        async def send_invoice(job): ...

    Traces go to a collector if the variables OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_TRACES_EXPORTER are set.

    Examples:

        headwater queue work shop.jobs:worker --concurrency 64
        headwater queue work shop.jobs:worker --queue mail --queue reports --listen 127.0.0.1:9464
    """
    if listen is not None:
        _require_listening()
    worker = load_worker(target)
    if concurrency is not None:
        worker.settings = replace(worker.settings, concurrency=concurrency)
    if queue:
        worker.queues = tuple(dict.fromkeys(queue))
    for fault in filter(None, map(queue_fault, worker.queues)):
        raise SettingsError(fault)
    place = None if listen is None else bind(listen)
    with tracing():
        asyncio.run(_run(worker, target, url, listen_url, place))


def _require_listening() -> None:
    missing = [name for name in ("prometheus_client", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"{missing[0]} is needed to answer monitors, and is not installed; run `pip install 'headwater[queue]'`, or do "
            "without --listen"
        )


async def _run(worker: Worker, target: str, url: str, listen_url: str | None, place: socket.socket | None) -> None:
    stopping = asyncio.Event()
    with ExitStack() as stack:
        if place is not None:
            stack.enter_context(closing(place))
        stack.enter_context(_on_signal(stopping.set))
        working = asyncio.create_task(worker.run(url, listen_url))
        _log.info(
            "worker %s: does %s of %s, %d at once, at %s",
            target,
            ", ".join(worker.kinds) or "nothing",
            ", ".join(worker.queues),
            worker.settings.concurrency,
            describe(url),
        )
        if place is not None:
            stack.enter_context(_answering(worker, place, stopping.is_set))
            host, port = place.getsockname()[:2]
            _log.info("worker %s: listening on %s, port %s", target, host, port, extra={"port": port})
        await _until_end(worker, working, stopping, target)
    counts = worker.counts
    _log.info(
        "worker %s: stopped; done %d, given up %d, to be tried again %d, given back %d",
        target,
        counts.done,
        counts.dead,
        counts.retried,
        counts.released,
    )


async def _until_end(worker: Worker, working: "asyncio.Task[None]", stopping: asyncio.Event, target: str) -> None:
    """Return when the worker has ended, by itself or because it is to; raise what it failed with."""
    told, reporting = asyncio.create_task(stopping.wait()), asyncio.create_task(_report(worker, target))
    try:
        await asyncio.wait([working, told], return_when=asyncio.FIRST_COMPLETED)
        _log.info(
            "stopping: jobs in hand %d, up to %g s; again to end at once",
            worker.counts.running,
            worker.settings.stop_within.total_seconds(),
        )
        worker.stop()
        await working
    finally:
        for task in (told, reporting):
            task.cancel()
        await asyncio.gather(told, reporting, return_exceptions=True)


@contextmanager
def _on_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Within it, the first SIGTERM or Ctrl-C calls `stop` in the loop; the next one of either ends the process.

    The latter also if a handler blocks the event loop: so it is the system that does it, and not the loop.
    """
    loop = asyncio.get_running_loop()
    heard = (signal.SIGTERM, signal.SIGINT)

    def begin(_number: int, _frame: FrameType | None) -> None:
        for one in heard:
            signal.signal(one, signal.SIG_DFL)
        loop.call_soon_threadsafe(stop)

    before = [(one, signal.signal(one, begin)) for one in heard]
    try:
        yield
    finally:
        for one, handler in before:
            signal.signal(one, handler)


async def _report(worker: Worker, target: str) -> None:
    """Show how it goes, for as long as it goes."""
    from rich.console import Console

    before = ""
    if not sys.stderr.isatty():
        while True:
            await asyncio.sleep(_LOG_SECONDS)
            if (line := _line(worker)) != before:
                _log.info("worker %s: %s", target, line)
            before = line
    with Console(stderr=True).status(_line(worker)) as status:
        while True:
            await asyncio.sleep(_LINE_SECONDS)
            status.update(_line(worker))


def _line(worker: Worker) -> str:
    counts = worker.counts
    parts = [
        f"done {counts.done:,}",
        f"in hand {counts.running:,}",
        f"waiting {counts.waiting:,}",
        f"to be tried again {counts.retried:,}",
        f"given up {counts.dead:,}",
    ]
    if counts.suspected_duplicates:
        parts.append(f"suspected duplicates {counts.suspected_duplicates:,}")
    if counts.overdue_seconds > worker.settings.overdue.total_seconds():
        parts.append(f"overdue {counts.overdue_seconds:,.0f} s")
    if not counts.is_database_up:
        parts.append("away: the database")
    return ", ".join(parts)


@contextmanager
def _answering(worker: Worker, place: socket.socket, is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Tell monitors how it goes. It is healthy while it runs, and ready while it claims."""
    from prometheus_client import CONTENT_TYPE_LATEST
    from starlette.responses import JSONResponse, Response

    from headwater.queue.metrics import WorkerMetrics

    metrics, counts = WorkerMetrics(worker.counts), worker.counts

    def judged(reason: str | None) -> Response:
        return JSONResponse({"ok": reason is None, "reason": reason}, status_code=200 if reason is None else 503)

    async def answer_metrics(_request: "Request") -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def answer_health(_request: "Request") -> Response:
        return judged(None)

    async def answer_ready(_request: "Request") -> Response:
        if is_stopping():
            return judged("the worker is about to end")
        if not counts.is_database_up:
            return judged("the database cannot be reached")
        return judged(None if counts.polls else "the worker has not claimed yet")

    with Server(place, {"/metrics": answer_metrics, "/health": answer_health, "/ready": answer_ready}):
        yield
