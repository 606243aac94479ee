"""`headwater outbox relay`: the relay of the table as a process of its own."""

import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.config import environment
from headwater.cli.relay_file import RelayFile, load_relay
from headwater.errors import SettingsError
from headwater.http import Server, bind
from headwater.outbox import Leftover, OutboxRelay
from headwater.postgres.connect import describe

if TYPE_CHECKING:
    from starlette.requests import Request

_log = logging.getLogger(__name__)

# On a terminal the line of figures is for the eye, in a log for whoever reads it afterwards.
_LINE_SECONDS, _LOG_SECONDS = 1.0, 60.0


def relay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file of the relay, as shown above.", show_default=False)],
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            show_default="`listen` of the file",
            help="Where to answer monitors: /metrics, /health and /ready.",
        ),
    ] = None,
) -> None:
    """Relay the outbox to a broker from a process of its own, without Spark and without a slot, until SIGTERM.

    It reads the table `headwater.outbox_message`, which `headwater outbox init` makes, sends what is not published yet, and
    marks it. Several may run at once: each event is claimed by one of them. It is the relay that applications run inside of
    themselves, for those who write events and do not; both may serve a table together, but no pipeline beside them. SIGTERM
    has it finish what it has, within `stop_within`, and exit with 0; a second one ends it at once, and what it had is sent
    by another when its lease ends.

    The file names the database and the broker, with the keys that sinks of a pipeline have; `[relay]` may have settings of
    the relay, and may be left out:

        url = "postgresql://relay@db.example.com/shop"
        listen = "127.0.0.1:9464"
        [broker]
        type = "rabbitmq"
        url = "amqp://relay:${RABBITMQ_PASSWORD}@broker.example.com/shop"
        exchange = "events"
        [relay]
        revive_every = "500ms"

    Examples:

        headwater outbox relay relay.toml
        headwater outbox relay relay.toml --listen 127.0.0.1:9464
    """
    settings = load_relay(file, environment())
    wanted = listen or settings.listen
    if wanted is not None:
        _require_listening()
    asyncio.run(_run(settings, None if wanted is None else bind(wanted)))


def _require_listening() -> None:
    missing = [name for name in ("prometheus_client", "starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"{missing[0]} is needed to answer monitors, and is not installed; run `pip install 'headwater[relay]'`, or do "
            "without `listen`"
        )


async def _run(file: RelayFile, place: socket.socket | None) -> None:
    made = OutboxRelay(file.url, file.broker, file.settings)
    with ExitStack() as stack:
        if place is not None:
            stack.enter_context(closing(place))
        async with _stopping() as stopping:
            await made.start()
            facts = {"instance": made.instance}
            _log.info("relay %s: %s to %s", made.instance, describe(file.url), file.broker.describe(), extra=facts)
            if place is not None:
                stack.enter_context(_answering(made, place))
                host, port = place.getsockname()[:2]
                _log.info("relay %s: listening on %s, port %s", made.instance, host, port, extra={**facts, "port": port})
            try:
                await _until_end(made, stopping)
            finally:
                _say_left(made, await made.stop())
        await made.wait()


async def _until_end(relay: OutboxRelay, stopping: asyncio.Event) -> None:
    """Return when the relay has ended, or when it is to."""
    tasks = [asyncio.create_task(work) for work in (relay.wait(), stopping.wait(), _report(relay))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _report(relay: OutboxRelay) -> None:
    """Show how it goes, for as long as it goes."""
    from rich.console import Console

    facts, before = {"instance": relay.instance}, ""
    if not sys.stderr.isatty():
        while True:
            await asyncio.sleep(_LOG_SECONDS)
            if (line := _line(relay)) != before:
                _log.info("relay %s: %s", relay.instance, line, extra=facts)
            before = line
    with Console(stderr=True).status(_line(relay)) as status:
        while True:
            await asyncio.sleep(_LINE_SECONDS)
            status.update(_line(relay))


def _line(relay: OutboxRelay) -> str:
    counts, fills = relay.counts, relay.fills
    waiting = fills["intake"] + fills["retry"]
    parts = [
        f"published {counts.published:,}",
        f"waiting {waiting:,}",
        f"in flight {counts.in_flight:,}",
        f"dead {counts.dead:,}",
    ]
    if (oldest := counts.oldest(time.monotonic())) is not None:
        parts.append(f"oldest {oldest:.1f} s")
    if away := _away(relay):
        parts.append(f"away: {away}")
    return ", ".join(parts)


def _away(relay: OutboxRelay) -> str:
    """What cannot be reached, or was not yet."""
    counts = relay.counts
    parts = (("the broker", counts.is_broker_up), ("the database", counts.is_database_up))
    return " and ".join(name for name, is_up in parts if not is_up)


def _say_left(relay: OutboxRelay, leftover: Leftover) -> None:
    facts = {"instance": relay.instance}
    if leftover:
        _log.warning(
            "relay %s: stopped; left in the table: %d not sent, %d without a word of the broker, %d sent and not marked",
            relay.instance,
            leftover.released,
            leftover.in_flight,
            leftover.unsaved,
            extra=facts,
        )
    else:
        _log.info(
            "relay %s: stopped; nothing is left in memory, %d were published",
            relay.instance,
            relay.counts.published,
            extra=facts,
        )


@asynccontextmanager
async def _stopping() -> AsyncIterator[asyncio.Event]:
    """Within it, the first SIGTERM sets the event; a second one has its default effect."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        loop.remove_signal_handler(signal.SIGTERM)
        event.set()

    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        yield event
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


@contextmanager
def _answering(relay: OutboxRelay, place: socket.socket) -> Iterator[None]:
    """Tell monitors how it goes. It is healthy while it runs, and ready while broker and database can be reached."""
    from prometheus_client import CONTENT_TYPE_LATEST
    from starlette.responses import JSONResponse, Response

    from headwater.outbox.relay.metrics import RelayMetrics

    metrics = RelayMetrics(relay)

    def judged(reason: str | None) -> Response:
        return JSONResponse({"ok": reason is None, "reason": reason}, status_code=200 if reason is None else 503)

    async def answer_metrics(_request: "Request") -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def answer_health(_request: "Request") -> Response:
        return judged(None if relay.is_running else "the relay does not run")

    async def answer_ready(_request: "Request") -> Response:
        if not relay.is_running:
            return judged("the relay does not run")
        return judged(f"{away} cannot be reached" if (away := _away(relay)) else None)

    with Server(place, {"/metrics": answer_metrics, "/health": answer_health, "/ready": answer_ready}):
        yield
