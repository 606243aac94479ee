"""`headwater queue retry`, `cancel` and `purge`: what people decide about jobs."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Literal

import typer

from headwater.cli.config import Json, Url
from headwater.cli.confirm import confirm
from headwater.cli.output import print_json
from headwater.cli.queue.options import Ids, OfKind, OfQueue, Yes, moment, parse_ago
from headwater.cli.session import session
from headwater.errors import HeadwaterError, SettingsError
from headwater.postgres.connect import Connection
from headwater.postgres.statements import fetch_sync
from headwater.queue import operate, require_queue
from headwater.queue.operate_statements import read_clock


class Finished(StrEnum):
    """What can be purged: jobs that were given up, or those that are done or cancelled."""

    ERROR = "error"
    DONE = "done"


def retry(
    ids: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="All that were given up, of --queue and --kind.")] = False,
    queue: OfQueue = None,
    kind: OfKind = None,
    url: Url = "",
    json: Json = False,
) -> None:
    """Have jobs that were given up tried again, as if for the first time; they keep their ids.

    One whose unique key another job has by now stays where it is.

    Examples:

        headwater queue retry 4711 4712
        headwater queue retry --all --kind send-invoice
    """
    if bool(ids) == everything or (ids and (queue or kind)):
        raise SettingsError("name the jobs by their ids, or say --all, with --queue and --kind for some of them")
    with session(url) as connection:
        require_queue(connection)
        if ids:
            retried = operate.retry_jobs(connection, ids)
            count, left = len(retried), _left(connection, ids, retried)
        else:
            count, left = operate.retry_all(connection, queue=queue, kind=kind), []
    _say(json, {"retried": count}, f"to be tried again: {count:,}")
    _complain(left, "only one in error is retried, unless its unique key is another job's by now")


def cancel(
    ids: Ids = None,
    queue: OfQueue = None,
    kind: OfKind = None,
    yes: Yes = False,
    url: Url = "",
    json: Json = False,
) -> None:
    """Cancel jobs that are not finished: by their ids, or all of a queue, of a kind, or of both.

    One that waits is finished at once. Of one that is being done its worker hears, and stops the handler; what that has
    done by then stays done.

    Examples:

        headwater queue cancel 4711
        headwater queue cancel --queue mail --kind send-newsletter --yes
    """
    if bool(ids) == bool(queue or kind):
        raise SettingsError("name the jobs by their ids, or those of a queue or kind with --queue and --kind")
    with session(url) as connection:
        require_queue(connection)
        if ids:
            found = operate.cancel_jobs(connection, ids)
            told = sum(one.was_claimed for one in found)
            cancelled, left = len(found) - told, _left(connection, ids, [one.id for one in found])
        else:
            if count := operate.count_live(connection, queue=queue, kind=kind):
                confirm(f"Cancel {count:,} jobs{_of(queue, kind)}?", yes=yes)
            (cancelled, told), left = operate.cancel_all(connection, queue=queue, kind=kind), []
    said = f"cancelled: {cancelled:,}"
    if told:
        said += f"; being done, and their workers are told: {told:,}"
    _say(json, {"cancelled": cancelled, "told": told}, said)
    _complain(left, "only one that is scheduled or claimed can be cancelled")


def purge(
    state: Annotated[
        Finished, typer.Option("--state", help="Jobs that were given up; or those that are done or cancelled.")
    ],
    before: Annotated[
        str, typer.Option("--before", metavar="TIME|AGE", help="Those that were finished before it.", show_default=False)
    ],
    yes: Yes = False,
    url: Url = "",
    json: Json = False,
) -> None:
    """Delete finished jobs for good: those that were given up, or those that are done or cancelled.

    Workers drop days of done jobs by themselves after `keep_done`; nobody drops those that were given up but this command.

    Examples:

        headwater queue purge --state error --before 30d
        headwater queue purge --state done --before 2026-11-10T00:00:00Z --yes
    """
    chosen: Literal["error", "done"] = "error" if state is Finished.ERROR else "done"
    with session(url) as connection:
        require_queue(connection)
        (now,) = fetch_sync(connection, read_clock())
        until = parse_ago("--before", before, now)
        if until > now:
            raise SettingsError(f"--before {before} is not over yet; name a time before now, or an age such as 7d")
        count = operate.count_purgeable(connection, chosen, until)
        what = "all done and cancelled jobs" if count is None else f"{count:,} jobs that were given up,"
        confirm(f"Delete {what} from before {moment(until)}?", yes=yes)
        purged = operate.purge(connection, chosen, until)
    fields = {"jobs": purged.jobs, "days": purged.days, "jobs_of_days_estimate": purged.jobs_of_days}
    said = f"deleted: {purged.jobs:,}"
    if purged.days:
        said = f"dropped: {purged.days:,} days with about {purged.jobs_of_days:,} jobs; {said}"
    _say(json, fields, said)


def _left(connection: Connection, ids: Sequence[int], done: Sequence[int]) -> list[str]:
    """Those that nothing was done about, with what they are."""
    rest = sorted({*ids} - {*done})
    states = {one.id: one.state for one in operate.find_jobs(connection, rest)}
    return [f"job {id} is {_words(states.get(id))}" for id in rest]


def _words(state: str | None) -> str:
    return "not there" if state is None else "in error" if state == "error" else state


def _complain(left: Sequence[str], rule: str) -> None:
    if left:
        raise HeadwaterError(f"{', '.join(left)}; {rule}")


def _of(queue: str | None, kind: str | None) -> str:
    parts = f" of kind {kind}" if kind else "", f" in queue {queue}" if queue else ""
    return "".join(parts)


def _say(as_json: bool, fields: dict[str, int], text: str) -> None:
    if as_json:
        print_json(fields)
    else:
        typer.echo(text)
