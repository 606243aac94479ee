"""`headwater tail`: changes as they are committed, decoded, one a line."""

import secrets
import sys
from contextlib import ExitStack
from datetime import timedelta
from threading import Event
from typing import Annotated

import typer

from headwater.capture import Capture, CaptureSettings, CatalogTypes, emit_mark, is_mark
from headwater.cli.config import Json, Url, wants_color
from headwater.cli.lines import json_line, text_line
from headwater.cli.output import ends_in_mid_line, write_whole
from headwater.cli.provision import PREFIX, ensure_slot, published
from headwater.cli.session import session
from headwater.cli.signals import stop_on_sigterm
from headwater.errors import SettingsError
from headwater.model import Change, LogicalMessage, Lsn
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Types, to_json

# How often a tail that has nothing to print looks whether it should end.
_LOOK_SECONDS = 0.2
# Somebody who sits before a terminal hears soon that another one reads the slot.
_SLOT_PATIENCE = timedelta(seconds=10)


def tail(
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE", help='Tables or patterns: orders, public.*, "Mixed Case".')
    ] = None,
    slot: Annotated[
        str | None,
        typer.Option(help="Read from this slot, and confirm what was printed. Without it: a temporary one, from now on."),
    ] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the slot if it is not there.")] = False,
    publication: Annotated[str | None, typer.Option(help="Read through this publication instead of naming tables.")] = None,
    peek: Annotated[bool, typer.Option("--peek", help="Confirm nothing, so that it all comes again.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Stop after so many changes.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Stop when all that is committed by now is printed.")] = False,
    json: Json = False,
    url: Url = "",
) -> None:
    """Print row changes as they are committed: readable lines on a terminal, JSON lines into a pipe or with --json.

    With a slot of its own a tail can be stopped and started again and goes on where it was: each change is printed at least
    once, and the slot moves only past transactions that were printed whole. SIGTERM and Ctrl-C end it cleanly.

    Examples:

        headwater tail orders 'billing.*'
        headwater tail orders --slot headwater_orders --create --json >> orders.jsonl
        headwater tail --publication my_publication --slot headwater_orders --peek --once
    """
    if not tables and not publication:
        raise SettingsError("name what to follow: tables, as in `headwater tail 'public.*'`, or --publication NAME")
    if tables and publication:
        raise SettingsError("name either tables or a --publication, not both")
    if create and not slot:
        raise SettingsError("--create makes the slot named by --slot; name one")
    with ExitStack() as stack:
        stopping = stack.enter_context(stop_on_sigterm())
        # A slot may have to wait for transactions that are running, for long: a signal ends that at once.
        with stop_on_sigterm(interrupt=True):
            connection = stack.enter_context(session(url))
            chosen = tuple(tables or ())
            if slot:
                name = ensure_slot(connection, url, slot, tables=chosen, publication=publication, create=create)
            else:
                name = publication or stack.enter_context(published(connection, chosen))
            capture = stack.enter_context(Capture(_settings(url, slot, name)))
        printer = _Printer(capture, as_json=json or not sys.stdout.isatty(), limit=limit, confirms=not peek)
        printer.follow(CatalogTypes(url), stopping, until=emit_mark(connection) if once else None)


class _Printer:
    """Prints what a capture brings, and confirms what is printed."""

    def __init__(self, capture: Capture, *, as_json: bool, limit: int | None, confirms: bool) -> None:
        self._capture, self._as_json, self._confirms = capture, as_json, confirms
        self._left = limit

    def follow(self, types: CatalogTypes, stopping: Event, until: Lsn | None) -> None:
        """Print until told to stop, the limit is reached, or all that committed before `until` is printed."""
        if ends_in_mid_line():
            write_whole("\n")
        while not stopping.is_set() and self._left != 0:
            batch = self._capture.take(_LOOK_SECONDS)
            if batch is not None:
                self._print(batch, types.of(batch))
                if until is not None and batch.end is not None and batch.end >= until:
                    return

    def _print(self, batch: Batch, types: Types) -> None:
        changes = [change for change in decode_rows(batch, types, to_json) if not is_mark(change)]
        shown = changes[: self._left]
        # The slot moves only after this: what is lost on the way out would be lost for good.
        write_whole("".join(self._line(change) + "\n" for change in shown))
        if self._left is not None:
            self._left -= len(shown)
        done = batch.end if len(shown) == len(changes) else _start_of(changes[len(shown)])
        if self._confirms and done is not None:
            self._capture.confirm(done)

    def _line(self, change: Change | LogicalMessage) -> str:
        if self._as_json:
            return json_line(change, self._capture.lineage)
        return text_line(change, color=wants_color(sys.stdout))


def _start_of(change: Change | LogicalMessage) -> Lsn | None:
    """A position from which the whole transaction of the change comes again."""
    return change.position.commit_lsn if change.position is not None else None


def _settings(url: str, slot: str | None, publication: str) -> CaptureSettings:
    name = slot or f"{PREFIX}{secrets.token_hex(8)}"
    return CaptureSettings(
        url=url, slot=name, publications=(publication,), temporary=slot is None, slot_patience=_SLOT_PATIENCE
    )
