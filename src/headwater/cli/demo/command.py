"""The command: a server, a run on it, a report, and nothing left behind."""

import dataclasses
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
from headwater.cli.session import session
from headwater.cli.signals import Stopped, stop_on_sigterm
from headwater.embedded import EmbeddedPostgres, PostgresSettings, url_or_embedded


def demo(
    seconds: Annotated[int, typer.Option(min=1, help="How long to write, in seconds.")] = 15,
    url: Url = "",
    json: Json = False,
) -> None:
    """Watch capture at work: a private PostgreSQL, traffic of all kinds, and a comparison row by row at the end.

    It needs nothing: it starts a server of its own and stops it again. While that is being written to (inserts, updates,
    deletes, truncates, keys that change, large values that do not, transactions that are rolled back, and one of 100,000
    rows), the changes are captured by logical replication, and a replica is kept from them in memory. In the end the
    replica must be equal to the tables, and each kind of change must have come as often as it was committed.

    With --url it runs on that server, in a schema and a publication headwater_demo that it removes at the end.

    The exit code is 0 if nothing was lost, and 1 otherwise.

    Examples:

        headwater demo
        headwater demo --seconds 60 --json
        headwater demo --url postgresql://postgres@db.example.com/scratch
    """
    started = time.monotonic()
    with _interruptible(), choose_view() as view:
        report = _report(url, seconds, view)
    report = dataclasses.replace(report, seconds=time.monotonic() - started)
    if json:
        print_json(report.as_json())
    else:
        print_report(report)
    if not report.is_equal:
        raise typer.Exit(1)


def _report(url: str, seconds: float, view: View) -> Report:
    if not url:
        view.step("Starting a private PostgreSQL")
    with url_or_embedded(url or None, EmbeddedPostgres(_server_settings())) as address:
        with session(address) as connection:
            report = run(connection, address, seconds, view, is_private=not url)
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
def _interruptible() -> Iterator[None]:
    """Let a signal end the block from wherever it is, and say so once all is put away."""
    try:
        with stop_on_sigterm(interrupt=True):
            yield
    except (KeyboardInterrupt, Stopped):
        typer.echo("stopped before the end, so nothing was compared", err=True)
        raise
