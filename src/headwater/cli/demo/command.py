"""The command: servers, a run on them, a report, and nothing left behind."""

import dataclasses
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from headwater.cli.config import Json, Url
from headwater.cli.demo.report import Report
from headwater.cli.demo.run import run
from headwater.cli.demo.show import print_report
from headwater.cli.demo.view import View, choose_view
from headwater.cli.output import print_json
from headwater.cli.pipeline import require_spark
from headwater.cli.session import session
from headwater.cli.signals import Stopped, stop_on_sigterm
from headwater.embedded import EmbeddedNats, EmbeddedPostgres, PostgresSettings, url_or_embedded


def demo(
    seconds: Annotated[int, typer.Option(min=1, help="How long to write, in seconds.")] = 15,
    url: Url = "",
    json: Json = False,
) -> None:
    """Watch changes go from PostgreSQL to NATS to a second database, and a comparison row by row at the end.

    It needs nothing: it starts a PostgreSQL and a NATS of its own and stops them again, and Spark runs on the Java of the
    machine, or on the one that comes with `headwater[embedded]`. While tables are being written to (inserts, updates,
    deletes, truncates, keys that change, large values that do not, transactions that are rolled back, and one of 100,000
    rows), a producer as `headwater creek produce` reads the changes by logical replication and publishes them on NATS
    JetStream, on the Creek wire; and a consumer as `headwater creek apply serve` applies them to a second database. In the
    end both databases must be equal, row by row. Then a shop sells for some seconds, and has the events of its transactions
    relayed to NATS from inside of its process, while NATS is killed and started again: none may be lost. And a topic is read
    by two groups of two members, of whom one leaves: each group must get every message once, and each key in order.

    With --url it runs on that server, with a schema, a publication and a slot headwater_demo, and a second database
    headwater_demo_target; all of it is removed at the end. The role has to be one that may replicate and create databases.

    The exit code is 0 if source and target are equal and no event or message was lost, and 1 otherwise; then the differences
    are named.

    Examples:

        headwater demo
        headwater demo --seconds 60 --json
        headwater demo --url postgresql://postgres@db.example.com/scratch
    """
    require_spark()
    started = time.monotonic()
    with _interruptible(), _quiet(), choose_view() as view:
        report = _report(url, seconds, view)
    report = dataclasses.replace(report, seconds=time.monotonic() - started)
    if json:
        print_json(report.as_json())
    else:
        print_report(report)
    if not report.is_equal:
        raise typer.Exit(1)


def _report(url: str, seconds: float, view: View) -> Report:
    view.step("Starting a private NATS" if url else "Starting a private PostgreSQL and NATS")
    with url_or_embedded(url or None, EmbeddedPostgres(_server_settings())) as address, EmbeddedNats() as nats:
        with session(address) as connection:
            report = run(connection, address, nats, seconds, view, is_private=not url)
        view.step("Cleaning up")
    return report


def _server_settings() -> PostgresSettings:
    return PostgresSettings(
        config={
            # It is thrown away at the end, so it need not survive a power failure.
            "fsync": "off",
            # Less than the large transaction takes, so that this one is streamed while it is still being written.
            "logical_decoding_work_mem": "4MB",
        }
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what is logged of the course of things, which the view shows, unless somebody wants to see everything."""
    root, relay = logging.getLogger(), logging.getLogger("headwater.outbox.relay")
    before = root.level
    if before == logging.INFO:
        root.setLevel(logging.WARNING)
        # That its broker is away is part of the show.
        relay.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)
        relay.setLevel(logging.NOTSET)


@contextmanager
def _interruptible() -> Iterator[None]:
    """Let a signal end the block from wherever it is, and say so once all is put away."""
    try:
        with stop_on_sigterm(interrupt=True):
            yield
    except (KeyboardInterrupt, Stopped):
        typer.echo("stopped before the end, so nothing was compared", err=True)
        raise
