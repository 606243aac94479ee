"""`headwater outbox dead`, `revive` and `release`: what relays of the table leave to people."""

import sys
from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import typer

from headwater.cli.config import Json, Url
from headwater.cli.output import print_json, print_table
from headwater.cli.session import session
from headwater.errors import HeadwaterError, SettingsError
from headwater.outbox.checkpoint import require_outbox
from headwater.outbox.served import release_served
from headwater.outbox.statements import DeadMessage, list_dead, relay_state, revive_dead
from headwater.postgres.statements import execute_sync, fetch_sync

# Of a reason, on a terminal.
_REASON_CHARACTERS = 80


def dead(
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many to show, the oldest first.")] = 100,
    url: Url = "",
    json: Json = False,
) -> None:
    """List the events that relays of the table have given up: refused by the broker, or tried in vain too often.

    They are kept, with the reason, until they are revived, or deleted by hand.

    Examples:

        headwater outbox dead --url postgresql://relay@db.example.com/shop
        headwater outbox dead --limit 1000 --json
    """
    with session(url) as connection:
        require_outbox(connection)
        found = fetch_sync(connection, list_dead(limit))
        (state,) = fetch_sync(connection, relay_state())
    if json:
        print_json([_plain(one) for one in found])
    elif found:
        print_table(("id", "written at", "topic", "type", "key", "attempts", "reason"), [_row(one) for one in found])
        if state.dead > len(found):
            typer.echo(f"{state.dead - len(found):,} more; --limit shows them")
    else:
        typer.echo("no event is dead")


def revive(
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Events, by their ids.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that are dead.")] = False,
    url: Url = "",
) -> None:
    """Have dead events sent again, as if for the first time; a relay that runs finds them within seconds.

    Their ids are as they were, so that consumers which have had one know it.

    Examples:

        headwater outbox revive 01932d3e-7d2b-7c3a-9d55-3c1f0e2b9a11
        headwater outbox revive --all
    """
    if bool(ids) == everything:
        raise SettingsError("name the dead events by their ids, or say --all for all of them")
    chosen = None if everything else {_id(text) for text in ids or ()}
    with session(url) as connection:
        require_outbox(connection)
        revived = execute_sync(connection, revive_dead(None if chosen is None else sorted(chosen)))
    typer.echo(f"to be sent again: {revived:,}")
    if chosen is not None and revived < len(chosen):
        missing = len(chosen) - revived
        raise HeadwaterError(f"{missing} of the ids are of no dead event; `headwater outbox dead` lists those that are")


def release(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = "",
) -> None:
    """Say that no relay of the table serves this outbox any more, so that a pipeline may.

    Stop the relays first, wherever they run: nothing here can, and while one is connected it is refused. A pipeline that has
    no checkpoint yet delivers everything that is still in the table, also what relays have published; `headwater outbox
    purge` drops that before.

    Examples:

        headwater outbox release --yes
    """
    with session(url) as connection:
        require_outbox(connection)
        (state,) = fetch_sync(connection, relay_state())
        if state.served_since is None:
            typer.echo("no relay of the table serves this outbox")
            return
        if state.leased:
            raise SettingsError(
                f"{state.leased:,} events are held by a relay that runs, or died less than a lease ago; stop it, or wait"
            )
        if not yes and not sys.stdin.isatty():
            raise SettingsError(
                "there is no terminal to ask at, and a relay that still runs would send beside a pipeline; say --yes"
            )
        if not yes:
            typer.confirm("Are all relays of this outbox stopped?", abort=True)
        release_served(connection)
    typer.echo("no relay of the table serves this outbox any more; a pipeline may")


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as exc:
        raise SettingsError(f"{text!r} is no id of an event; write it as `headwater outbox dead` shows it") from exc


def _row(one: DeadMessage) -> tuple[str, ...]:
    reason = one.error or ""
    is_short = len(reason) <= _REASON_CHARACTERS or not sys.stdout.isatty()
    shown = reason if is_short else f"{reason[: _REASON_CHARACTERS - 1]}…"
    at = f"{one.created_at:%Y-%m-%d %H:%M:%S%z}"
    return str(one.id), at, one.topic, one.type, one.key or "", f"{one.attempts:,}", shown


def _plain(one: DeadMessage) -> dict[str, Any]:
    return {**asdict(one), "id": str(one.id), "created_at": one.created_at.isoformat()}
