"""`headwater queue pause`, `resume` and `limit`: how a queue is worked off."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from headwater.cli.config import Json, Url
from headwater.cli.output import print_json
from headwater.cli.queue.options import MOST, QueueName, parse_rate, rate_text
from headwater.cli.session import session
from headwater.errors import SettingsError
from headwater.postgres.connect import Connection
from headwater.queue import operate, require_queue
from headwater.queue.job import queue_fault
from headwater.queue.operate_statements import Limits


def pause(queue: QueueName, url: Url = "") -> None:
    """Have no more jobs of a queue begun, until `resume`. Those in hand are finished, and what is enqueued waits.

    Examples:

        headwater queue pause mail
    """
    _check(queue)
    with session(url) as connection:
        require_queue(connection)
        operate.pause(connection, queue)
        hint = _hint(connection, queue)
    typer.echo(f"queue {queue}: paused{hint}")


def resume(queue: QueueName, url: Url = "") -> None:
    """Have the jobs of a paused queue done again.

    Examples:

        headwater queue resume mail
    """
    _check(queue)
    with session(url) as connection:
        require_queue(connection)
        operate.resume(connection, queue)
        hint = _hint(connection, queue)
    typer.echo(f"queue {queue}: goes on{hint}")


def limit(
    queue: QueueName,
    running: Annotated[
        int | None, typer.Option("--running", min=1, max=MOST, help="So many at once, by all workers together.")
    ] = None,
    running_per_key: Annotated[
        int | None, typer.Option("--running-per-key", min=1, max=MOST, help="So many of a key at once.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="N/second|minute|hour", help="So many are begun within a time.")
    ] = None,
    rate_per_key: Annotated[
        str | None, typer.Option("--rate-per-key", metavar="N/second|minute|hour", help="So many of a key.")
    ] = None,
    ordered: Annotated[
        bool | None,
        typer.Option("--ordered/--no-ordered", help="Jobs of a key one at a time, in the order of their enqueuing."),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="Without the limits that there are; others may be given.")] = False,
    url: Url = "",
    json: Json = False,
) -> None:
    """Set limits of a queue, for all workers together; those that are not named stay. Without any, show them.

    Workers take notice within a second or so. A queue with limits is worked off by one claim at a time, so give limits to
    queues that need them, and not to the one with the most jobs.

    Examples:

        headwater queue limit mail --rate 100/second --running-per-key 2
        headwater queue limit ledger --ordered
        headwater queue limit mail --none --running 10
    """
    _check(queue)
    changes = _changes(running, running_per_key, rate, rate_per_key, ordered)
    with session(url) as connection:
        require_queue(connection)
        found = operate.read_limits(connection, queue)
        if changes or none:
            before = Limits(queue, is_paused=found.is_paused) if none else found
            found = operate.limit(connection, replace(before, **changes))
        hint = _hint(connection, queue)
    if json:
        print_json({"queue": queue, "is_paused": found.is_paused, **plain(found)})
    else:
        typer.echo(f"queue {queue}: {words(found) or 'no limits'}{', and paused' if found.is_paused else ''}{hint}")


def plain(limits: Limits) -> dict[str, Any]:
    """The limits of a queue as JSON has them; null is none."""
    return {
        "ordered": limits.is_ordered,
        "running": limits.most_running,
        "running_per_key": limits.most_running_per_key,
        "rate": limits.rate,
        "rate_per_seconds": None if limits.rate is None else limits.rate_per.total_seconds(),
        "rate_per_key": limits.rate_per_key,
        "rate_per_key_per_seconds": None if limits.rate_per_key is None else limits.rate_per_key_per.total_seconds(),
    }


def words(limits: Limits) -> str:
    """The limits of a queue for people; nothing if there are none."""
    parts = []
    if limits.is_ordered:
        parts.append("in order by key")
    if limits.most_running is not None:
        parts.append(f"{limits.most_running:,} at once")
    if limits.most_running_per_key is not None:
        parts.append(f"{limits.most_running_per_key:,} of a key at once")
    if limits.rate is not None:
        parts.append(rate_text(limits.rate, limits.rate_per))
    if limits.rate_per_key is not None:
        parts.append(f"{rate_text(limits.rate_per_key, limits.rate_per_key_per)} of a key")
    return ", ".join(parts)


def _changes(
    running: int | None, running_per_key: int | None, rate: str | None, rate_per_key: str | None, ordered: bool | None
) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "most_running": running,
        "most_running_per_key": running_per_key,
        "is_ordered": ordered,
    }
    if rate is not None:
        changes["rate"], changes["rate_per"] = parse_rate("--rate", rate)
    if rate_per_key is not None:
        changes["rate_per_key"], changes["rate_per_key_per"] = parse_rate("--rate-per-key", rate_per_key)
    return {name: value for name, value in changes.items() if value is not None}


def _hint(connection: Connection, queue: str) -> str:
    """Whoever has mistyped a name hears of it, and may have meant a queue that is still to come."""
    return "" if operate.is_known(connection, queue) else "; no job of it was seen so far, so check its name"


def _check(queue: str) -> None:
    if fault := queue_fault(queue):
        raise SettingsError(fault)
