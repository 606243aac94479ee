"""`headwater queue status`: what waits, what is being done, and what was given up."""

from collections.abc import Sequence
from typing import Any, Final

import typer

from headwater.cli.config import Json, Url
from headwater.cli.output import human_bytes, print_json, print_table
from headwater.cli.queue import limits
from headwater.cli.queue.options import moment, seconds_text
from headwater.cli.session import session
from headwater.queue import operate, require_queue
from headwater.queue.operate import QueueStatus, Status
from headwater.queue.operate_statements import Day, Live

# A kind that is due for so long, and of which nobody does one, may have no handler anywhere.
_LONG_SECONDS: Final = 60.0


def status(url: Url = "", json: Json = False) -> None:
    """Show the queues: what is scheduled, due, claimed and given up, for how long the oldest due job waits, and limits.

    Below it the same by kind: one that is due for long and claimed by nobody may have no handler in any worker. Jobs that
    are done are counted for an hour and a day, unless there are so many that it would take its time; of all that
    are kept there is the server's estimate.

    Examples:

        headwater queue status
        headwater queue status --json
    """
    with session(url) as connection:
        require_queue(connection)
        found = operate.read_status(connection)
    if json:
        print_json(_plain(found))
    else:
        _print(found)


def _print(found: Status) -> None:
    if found.queues:
        columns = ("queue", "scheduled", "due", "claimed", "oldest due", "in error", "done 1 h", "done 24 h", "limits")
        styles = ["yellow" if one.dead or one.limits.is_paused else "" for one in found.queues]
        print_table(columns, [_row(one) for one in found.queues], styles)
    else:
        typer.echo("nothing is in a queue")
    kinds = [kind for queue in found.queues for kind in queue.kinds]
    if kinds:
        typer.echo()
        rows = [_kind_row(one) for one in kinds]
        print_table(("queue", "kind", "scheduled", "due", "claimed", "oldest due"), rows, [_style(one) for one in kinds])
    if found.periodic:
        typer.echo()
        rows = [(one.name, one.expression, moment(one.fired_at)) for one in found.periodic]
        print_table(("periodic job", "expression", "last enqueued for"), rows)
    typer.echo()
    typer.echo(f"done and kept: {_days(found.days)}")
    typer.echo(f"workers that are connected: {found.workers:,}")


def _row(one: QueueStatus) -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (one.scheduled, one.due, one.claimed))
    held = ["paused"] if one.limits.is_paused else []
    if said := limits.words(one.limits):
        held.append(said)
    done = ("", "") if one.done is None else (f"{one.done.last_hour:,}", f"{one.done.last_day:,}")
    return one.limits.queue, *counts, seconds_text(one.oldest_seconds), f"{one.dead:,}", *done, "; ".join(held)


def _kind_row(one: Live) -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (one.scheduled, one.due, one.claimed))
    return one.queue, one.kind, *counts, seconds_text(one.oldest_seconds)


def _style(one: Live) -> str:
    return "yellow" if not one.claimed and (one.oldest_seconds or 0.0) > _LONG_SECONDS else ""


def _days(days: Sequence[Day]) -> str:
    if not days:
        return "none yet, by the server's estimate"
    jobs, size = sum(one.jobs for one in days), sum(one.bytes for one in days)
    of_days = [one for one in days if one.day is not None]
    last = f", {of_days[-1].jobs:,} of them on {_date(of_days[-1])} (UTC)" if of_days else ""
    return f"about {jobs:,} in {human_bytes(size)}{last}, by the server's estimate"


def _date(day: Day) -> str | None:
    return None if day.day is None else f"{day.day[:4]}-{day.day[4:6]}-{day.day[6:]}"


def _plain(found: Status) -> dict[str, Any]:
    return {
        "queues": [_plain_queue(one) for one in found.queues],
        "done": {
            "jobs_estimate": sum(one.jobs for one in found.days),
            "bytes": sum(one.bytes for one in found.days),
            "days": [{"day": _date(one), "jobs_estimate": one.jobs, "bytes": one.bytes} for one in found.days],
        },
        "workers_connected": found.workers,
        "periodic": [
            {"name": one.name, "expression": one.expression, "last_enqueued_for": one.fired_at.isoformat()}
            for one in found.periodic
        ],
    }


def _plain_queue(one: QueueStatus) -> dict[str, Any]:
    return {
        "queue": one.limits.queue,
        "is_paused": one.limits.is_paused,
        "scheduled": one.scheduled,
        "due": one.due,
        "claimed": one.claimed,
        "oldest_due_seconds": one.oldest_seconds,
        "in_error": one.dead,
        "done_last_hour": None if one.done is None else one.done.last_hour,
        "done_last_day": None if one.done is None else one.done.last_day,
        "limits": limits.plain(one.limits),
        "kinds": [
            {
                "kind": kind.kind,
                "scheduled": kind.scheduled,
                "due": kind.due,
                "claimed": kind.claimed,
                "oldest_due_seconds": kind.oldest_seconds,
            }
            for kind in one.kinds
        ],
    }
