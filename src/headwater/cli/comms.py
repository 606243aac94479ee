"""`headwater comms`: transactional e-mail, as a service of its own."""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, assert_never

import typer

from headwater.cli.comms_file import CommsFile, Role, load_comms
from headwater.cli.config import Url, environment
from headwater.cli.session import session
from headwater.cli.tracing import tracing
from headwater.comms import prepare_comms, require_comms
from headwater.comms.http_settings import HttpSettings
from headwater.comms.outcome import Sender
from headwater.comms.smtp_settings import SmtpSettings
from headwater.comms.statements import grant_serving, grant_submitting
from headwater.errors import SettingsError
from headwater.http import bind
from headwater.postgres.connect import describe
from headwater.postgres.statements import execute_sync
from headwater.queue.operate_statements import grant_enqueuing, grant_working

_log = logging.getLogger(__name__)

comms = typer.Typer(no_args_is_help=True)


@comms.callback()
def default() -> None:
    """Send e-mails that were handed over in a transaction or by HTTP: each is kept until a mail server has taken it.

    Examples:

        headwater comms init
        headwater comms serve comms.toml --role both
    """


@comms.command()
def init(
    url: Url = "",
    grant: Annotated[
        list[str] | None,
        typer.Option(
            "--grant", metavar="ROLE", help="A role that may hand over messages in its transactions; may be repeated."
        ),
    ] = None,
    grant_serve: Annotated[
        list[str] | None,
        typer.Option("--grant-serve", metavar="ROLE", help="A role that may run the service; may be repeated."),
    ] = None,
) -> None:
    """Make the tables for e-mails and those of the queue, or bring them to the version of this release.

    What is there stays.

    Examples:

        headwater comms init --url postgresql://owner@db.example.com/shop --grant shop_app --grant-serve mailer
    """
    submitting, serving = grant or [], grant_serve or []
    with session(url) as connection:
        prepare_comms(connection)
        with connection.transaction():
            for role in (*submitting, *serving):
                execute_sync(connection, grant_enqueuing(role))
                execute_sync(connection, grant_submitting(role))
            for role in serving:
                execute_sync(connection, grant_working(role))
                execute_sync(connection, grant_serving(role))
    typer.echo("the tables of e-mails and of the queue are in schema headwater; run `headwater comms serve FILE`")
    for role in submitting:
        typer.echo(f"role {role} may hand over messages")
    for role in serving:
        typer.echo(f"role {role} may hand over messages, and run the service")


@comms.command()
def serve(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file of the service, as shown above.", show_default=False)
    ],
    role: Annotated[
        Role, typer.Option("--role", help="What this process does: take messages by HTTP, send them, or both.")
    ] = Role.BOTH,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            show_default="`listen` of the file",
            help="Where to answer: /emails, and for monitors /health, /ready and /metrics.",
        ),
    ] = None,
    listen_url: Annotated[
        str | None,
        typer.Option(
            "--listen-url",
            metavar="URL",
            show_default="`listen_url` of the file, or the same as `url`",
            help="Where to hear of new messages by LISTEN: straight to the server, if `url` leads to a pooler.",
        ),
    ] = None,
) -> None:
    """Take e-mails by HTTP, send them by SMTP or an HTTP API, or both, until SIGTERM.

    Producers and consumers may run apart from each other, on any number of machines, with the database between them. SIGTERM
    has requests answered and messages on their way sent, within `stop_within`, and ends it with 0; a second one ends it at
    once.

    The file names the database, and by what messages are sent; the rest may be left out:

        url = "postgresql://mailer@db.example.com/shop"
        listen = "127.0.0.1:8025"
        from = "Shop <shop@example.com>"
        [api]
        token = "${API_TOKEN}"
        [send]
        rate = 14
        [smtp]
        host = "smtp.example.com"
        user = "shop"
        password = "${SMTP_PASSWORD}"

    Traces go to a collector if the variables OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_TRACES_EXPORTER are set.

    Examples:

        headwater comms serve comms.toml
        headwater comms serve comms.toml --role producer --listen 0.0.0.0:8025
        headwater comms serve comms.toml --role consumer
    """
    settings = load_comms(file, environment(), role, listen, listen_url)
    _require_extra(settings)
    with ExitStack() as stack:
        place = None if settings.listen is None else stack.enter_context(closing(bind(settings.listen)))
        with session(settings.url) as connection:
            require_comms(connection)
        with tracing():
            asyncio.run(_serve(settings, role, place))


def _require_extra(file: CommsFile) -> None:
    needed = ["prometheus_client", "starlette", "uvicorn"]
    match file.by:
        case SmtpSettings():
            needed.append("aiosmtplib")
        case HttpSettings():
            needed.append("httpx")
    if missing := [name for name in needed if find_spec(name) is None]:
        raise SettingsError(
            f"{missing[0]} is needed for e-mails, and is not installed; run `pip install 'headwater[comms]'`"
        )


async def _serve(file: CommsFile, role: Role, place: socket.socket | None) -> None:
    from headwater.comms.consumer import Consumer
    from headwater.comms.service import Service

    consumer = Consumer(file.url, _sender(file), file.send, file.listen_url) if role.consumes else None
    api = file.api if role.produces else None
    service = Service(file.url, place, api, consumer, file.send.stop_within.total_seconds())
    async with _stopping() as stopping:
        _tell(file, role, place)
        await service.run(stopping)
    _log.info("comms: stopped%s", "" if consumer is None else f"; {consumer.worker.counts.done} messages were sent")


def _sender(file: CommsFile) -> Sender:
    match file.by:
        case SmtpSettings():
            from headwater.comms.smtp import SmtpSender

            return SmtpSender(file.by)
        case HttpSettings():
            from headwater.comms.http_api import HttpSender

            return HttpSender(file.by)
        case None:
            raise SettingsError("there is neither [smtp] nor [http]; say by what messages are sent")
        case _:
            assert_never(file.by)


def _tell(file: CommsFile, role: Role, place: socket.socket | None) -> None:
    by = "" if file.by is None or not role.consumes else f", sent by {file.by.describe()}"
    _log.info("comms: %s for %s, queue %s%s", role, describe(file.url), file.send.queue, by)
    if place is not None:
        host, port = place.getsockname()[:2]
        _log.info("comms: listening on %s, port %s", host, port, extra={"port": port})
    if role.produces and file.api.token is None:
        _log.warning("comms: the API has no token, so that whoever reaches it may send; set `token` in [api]")


@asynccontextmanager
async def _stopping() -> AsyncIterator[asyncio.Event]:
    """Within it, the first SIGTERM or Ctrl-C sets the event; a second one has its default effect."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    heard = (signal.SIGTERM, signal.SIGINT)

    def stop() -> None:
        for one in heard:
            loop.remove_signal_handler(one)
        event.set()

    for one in heard:
        loop.add_signal_handler(one, stop)
    try:
        yield event
    finally:
        for one in heard:
            loop.remove_signal_handler(one)
