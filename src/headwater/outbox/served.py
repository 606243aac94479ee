"""Who serves Headwater's outbox: pipelines that read the WAL, or relays inside of processes, and never both."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg

from headwater.errors import OutboxError
from headwater.outbox import statements
from headwater.outbox.statements import Served
from headwater.postgres.connect import Connection
from headwater.postgres.statements import execute, execute_sync, fetch, fetch_sync

# One that has just closed its connection is there for the server a moment longer.
_GOING_WITHIN: Final = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Serving:
    """Whether this is the first relay that serves the table, and how many rows it was told to skip."""

    is_first: bool
    skipped: int


async def begin_serving(connection: psycopg.AsyncConnection[Any], lanes: int, *, skip_existing: bool) -> Serving:
    """Note that relays serve the outbox, with so many lanes; raises OutboxError if that is not to be.

    What is there already is skipped, if wanted, by the first relay only: a later one would skip what was not delivered.
    """
    async with connection.transaction():
        await fetch(connection, statements.lock_serving())
        pipelines = await fetch(connection, statements.list_pipelines())
        if pipelines:
            raise OutboxError(
                f"pipeline {pipelines[0]!r} delivers headwater.outbox_message already, and a relay would send everything a "
                f"second time; stop it and run `headwater destroy` for it, or run no relay"
            )
        found = next(iter(await fetch(connection, statements.find_served())), None)
        if found is None:
            await execute(connection, statements.set_served(lanes))
            await execute(connection, statements.remove_lanes())
            await execute(connection, statements.make_lanes(lanes))
            skipped = await execute(connection, statements.skip_existing()) if skip_existing else 0
            return Serving(is_first=True, skipped=skipped)
        if found.lanes != lanes:
            raise OutboxError(_other_lanes(found.lanes, lanes))
        return Serving(is_first=False, skipped=0)


def require_unserved(connection: Connection) -> None:
    """For a pipeline that begins to deliver Headwater's outbox, in the transaction in which it says so.

    Raises OutboxError if relays serve it; holds off those that begin at the same time until the transaction ends.
    """
    execute_sync(connection, statements.lock_serving())
    found = find_served(connection)
    if found is not None:
        raise OutboxError(
            f"relays inside of processes serve headwater.outbox_message since {_said(found.since)}, and a pipeline would "
            "send everything a second time; stop them and run `headwater outbox release`, or run no pipeline"
        )


def find_served(connection: Connection) -> Served | None:
    return next(iter(fetch_sync(connection, statements.find_served())), None)


async def require_served(connection: psycopg.AsyncConnection[Any]) -> None:
    """For each connection of a relay, once it is known as one's: raises OutboxError if they are to serve no more."""
    if not await fetch(connection, statements.find_served()):
        raise OutboxError(
            "`headwater outbox release` was run for headwater.outbox_message while this relay was not connected, and a "
            "pipeline may deliver it by now; start the relay anew if none does"
        )


def release_served(connection: Connection) -> bool:
    """Forget that relays serve the outbox, once they are stopped; whether there was something to forget.

    Raises OutboxError if one is connected. One that connects later finds that it was forgotten.
    """
    try:
        with connection.transaction():
            fetch_sync(connection, statements.limit_waiting(_GOING_WITHIN))
            fetch_sync(connection, statements.exclude_relays())
            return bool(execute_sync(connection, statements.clear_served()))
    except psycopg.errors.LockNotAvailable:
        pids = fetch_sync(connection, statements.list_relays())
    raise OutboxError(
        f"a relay of headwater.outbox_message runs, whose connections are the server's processes "
        f"{', '.join(map(str, pids))}; stop it first, or end what is left of one that is gone with pg_terminate_backend"
    )


def _other_lanes(found: int, wanted: int) -> str:
    kinds = [f"{lanes} lanes that keep the order of keys" if lanes else "no order of keys" for lanes in (found, wanted)]
    return (
        f"the relays of headwater.outbox_message run with {kinds[0]}, and this one is set to {kinds[1]}; set all of them "
        "alike, or stop them and run `headwater outbox release` first"
    )


def _said(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M %Z}"
