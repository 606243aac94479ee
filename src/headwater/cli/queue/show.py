"""`headwater queue list` and `show`: jobs in all states."""

import json as json_format
import sys
from dataclasses import asdict
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from headwater.cli.config import Json, Url
from headwater.cli.lines import printable, shortened
from headwater.cli.output import print_json, print_table
from headwater.cli.queue.options import MOST, MOST_ID, OfKind, OfQueue, moment
from headwater.cli.session import session
from headwater.queue import operate, require_queue
from headwater.queue.operate_statements import JobState, More


class State(StrEnum):
    """What a job can be."""

    SCHEDULED = "scheduled"
    CLAIMED = "claimed"
    DONE = "done"
    CANCELLED = "cancelled"
    ERROR = "error"


def show_all(
    queue: OfQueue = None,
    kind: OfKind = None,
    state: Annotated[State | None, typer.Option("--state", help="Only those that are so.", show_default="all")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST, help="How many to show, the newest first.")] = 100,
    url: Url = "",
    json: Json = False,
) -> None:
    """List jobs, the newest first: scheduled, claimed, done, cancelled, or given up after an error.

    Examples:

        headwater queue list --state error
        headwater queue list --queue mail --kind send-invoice --limit 20 --json
    """
    with session(url) as connection:
        require_queue(connection)
        found = operate.list_jobs(
            connection, queue=queue, kind=kind, state=None if state is None else state.value, limit=limit
        )
    if json:
        print_json([_plain(one) for one in found])
    elif found:
        columns = ("id", "queue", "kind", "state", "attempts", "run at", "key", "error", "payload")
        print_table(columns, [_row(one) for one in found], ["yellow" if one.state == "error" else "" for one in found])
    else:
        typer.echo("there is no such job")


def show(
    id: Annotated[int, typer.Argument(metavar="ID", min=1, max=MOST_ID, show_default=False)],
    url: Url = "",
    json: Json = False,
) -> None:
    """Show all that is known of a job, with its payload and what its last attempt failed with.

    Examples:

        headwater queue show 4711
        headwater queue show 4711 --json
    """
    with session(url) as connection:
        require_queue(connection)
        job, more = operate.show_job(connection, id)
    if json:
        print_json({**_plain(job), **asdict(more)})
        return
    print_table(("job", str(job.id)), [row for row in _facts(job, more) if row[1]])


def _row(job: JobState) -> tuple[str, ...]:
    texts = printable(job.error or ""), printable(json_format.dumps(job.payload, ensure_ascii=False))
    error, payload = (shortened(text) for text in texts) if sys.stdout.isatty() else texts
    names = job.queue, printable(job.kind), job.state
    return str(job.id), *names, f"{job.attempt:,}", moment(job.run_at), printable(job.key or ""), error, payload


def _facts(job: JobState, more: More) -> list[tuple[str, str]]:
    state = f"{job.state}, and to be cancelled" if more.is_cancelled else job.state
    return [
        ("queue", job.queue),
        ("kind", printable(job.kind)),
        ("state", state),
        ("attempts", f"{job.attempt:,}"),
        ("priority", str(job.priority)),
        ("key", printable(job.key or "")),
        ("unique", printable(more.unique_key or "")),
        ("enqueued at", moment(job.created_at)),
        ("run at", moment(job.run_at)),
        ("claimed at", moment(job.claimed_at)),
        ("worker", printable(job.worker or "")),
        ("lease until", moment(job.lease_until)),
        ("finished at", moment(job.finished_at)),
        ("error class", printable(job.error_class or "")),
        ("error", printable(job.error or "")),
        ("trace", printable(more.trace or "")),
        ("payload", printable(json_format.dumps(job.payload, ensure_ascii=False))),
    ]


def _plain(job: JobState) -> dict[str, Any]:
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in ((name, getattr(job, name)) for name in JobState.__slots__)
    }
