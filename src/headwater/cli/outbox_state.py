"""`headwater outbox status`, `checkpoint` and `replay`: how far an outbox is delivered, and messages once more."""

import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.config import File, Json, Url
from headwater.cli.moment import parse_time
from headwater.cli.output import print_json, print_table
from headwater.cli.pipeline import load_pipeline
from headwater.cli.session import session
from headwater.errors import HeadwaterError, SettingsError
from headwater.outbox.checkpoint import Checkpoint, find_checkpoints, require_outbox, reset_checkpoint
from headwater.outbox.mapping import MappedTable, check_mapping
from headwater.outbox.recovery import Choice, read_again
from headwater.outbox.statements import Failure, RelayState, find_failure, relay_state
from headwater.postgres.connect import Connection
from headwater.postgres.replication.stream import SESSION
from headwater.postgres.statements import fetch_sync

if TYPE_CHECKING:
    from headwater.brokers.base import Broker
    from headwater.model import Messages
    from headwater.spark.settings import BrokerSinkSettings, OutboxSettings, PipelineSettings

# One publish: large enough that its round trip does not count, small enough to be held.
_ROWS = 2000

checkpoint = typer.Typer(no_args_is_help=True)
Pipeline = Annotated[str, typer.Argument(metavar="PIPELINE")]


@checkpoint.callback()
def default() -> None:
    """Show what a pipeline has delivered of an outbox, or make it forget that.

    Examples:

        headwater outbox checkpoint show events
        headwater outbox checkpoint reset events
    """


def status(url: Url = "", json: Json = False) -> None:
    """Show how far pipelines, or relays inside of processes, have delivered the outbox of a database.

    `since` is how many transactions were delivered after the checkpoint was saved; they are known by their ids. Of relays it
    shows what waits: `held` is in the memory of one of them, `postponed` was tried, was not taken, and waits for another
    try. The last failure is that of the newest event that was not taken, with the time when it was written.

    Examples:

        headwater outbox status --url postgresql://relay@db.example.com/shop
        headwater outbox status --json
    """
    with session(url) as connection:
        require_outbox(connection)
        found = find_checkpoints(connection)
        (state,) = fetch_sync(connection, relay_state())
        failure = next(iter(fetch_sync(connection, find_failure())), None)
    if json:
        print_json({"pipelines": [_plain(one) for one in found], "relays": _plain_state(state, failure)})
        return
    if found:
        columns = ("pipeline", "table", "phase", "saved at", "since", "read from the table")
        print_table(columns, [_row(one) for one in found])
    if state.served_since is not None:
        figures = ("relays since", "order of keys", "waiting", "held", "postponed", "dead", "oldest")
        print_table(figures, [_state_row(state, state.served_since)])
        if failure is not None:
            typer.echo(_failure_line(failure))
    if not found and state.served_since is None:
        typer.echo("nobody has delivered from this outbox yet")


@checkpoint.command("show")
def show(pipeline: Pipeline, url: Url = "", json: Json = False) -> None:
    """Show all that is known of what a pipeline has delivered.

    Examples:

        headwater outbox checkpoint show events
    """
    with session(url) as connection:
        facts = _plain(_found(connection, pipeline))
    if json:
        print_json(facts)
    else:
        print_table(("checkpoint", pipeline), [(name, "" if value is None else str(value)) for name, value in facts.items()])


@checkpoint.command("reset")
def reset(
    pipeline: Pipeline,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = "",
) -> None:
    """Forget what a pipeline has delivered: when it runs again, everything in the table is delivered again.

    A run that is under way ends with an error.

    Examples:

        headwater outbox checkpoint reset events --yes
    """
    with session(url) as connection:
        _found(connection, pipeline)
        if not yes and not sys.stdin.isatty():
            raise SettingsError("there is no terminal to ask at, and everything would be delivered again; say --yes")
        if not yes:
            typer.confirm(f"Deliver everything in the outbox again by pipeline {pipeline}?", abort=True)
        reset_checkpoint(connection, pipeline)
    typer.echo(
        f"pipeline {pipeline}: its checkpoint is gone; the next run delivers everything that it can read from the table"
    )


def replay(
    file: File = None,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="Messages written since a time.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="Messages written before a time.")] = None,
    topic: Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")] = None,
    id: Annotated[list[str] | None, typer.Option("--id", help="Only this message; may be repeated.")] = None,
    sink: Annotated[str | None, typer.Option("--sink", help="The sink; needed if the pipeline has several.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, and send nothing.")] = False,
) -> None:
    """Send messages that are still in the table once more, in the order of their time, under their own ids.

    A broker that remembers ids leaves out what it still knows; consumers have to expect the others twice, as always. The
    pipeline goes on meanwhile, and its checkpoint stays as it is.

    Examples:

        headwater outbox replay --since 2026-11-16T10:00:00Z --until 2026-11-16T11:00:00Z
        headwater outbox replay --topic orders --since 2026-11-16T10:00:00Z --dry-run
        headwater outbox replay --id 01932d3e-7d2b-7c3a-9d55-3c1f0e2b9a11
    """
    if since is None and not id:
        raise SettingsError("name the messages to send again, by --since or by --id")
    choice = Choice(_time("--since", since), _time("--until", until), tuple(topic or ()), tuple(id or ()))
    settings = load_pipeline(file)
    source, target = _source(settings), _target(settings, sink)
    if settings.transform is not None:
        raise SettingsError(
            f"pipeline {settings.name!r} has a transform, and messages that are sent from here do not pass it; name a file "
            "without one with --file if that is well"
        )
    with session(source.url) as connection:
        table = check_mapping(connection, source.table, source.columns)
        if table.columns.created_at is None:
            raise SettingsError(f"table {source.table} has no column for the time of a row; map one to created_at")
        sent, refused = _send(_read(connection, table, choice), None if dry_run else target)
    typer.echo(f"{'would be sent' if dry_run else 'sent'}: {sent}; refused: {len(refused)}")
    for reason in refused[:10]:
        typer.echo(reason, err=True)
    if refused:
        raise HeadwaterError(f"{len(refused)} messages were refused, for the reasons above")


def _send(batches: "Iterator[Messages]", target: "BrokerSinkSettings | None") -> tuple[int, list[str]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from headwater.brokers.registry import open_broker

    columns = (TextColumn("sent {task.completed:,}"), BarColumn(), TimeElapsedColumn())
    sent, refused = 0, list[str]()
    broker: Broker | None = None if target is None else open_broker(target.access)
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=None)
        try:
            for messages in batches:
                if broker is None:
                    sent += len(messages)
                else:
                    published = broker.publish(messages)
                    ids = messages.column("id")
                    refused += [f"{ids[one.index]}: {one.reason}" for one in published.refused]
                    sent += published.stored + published.duplicates
                progress.update(task, completed=sent)
        finally:
            if broker is not None:
                broker.close()
    return sent, refused


def _read(connection: Connection, table: MappedTable, choice: Choice) -> "Iterator[Messages]":
    import pyarrow as pa

    from headwater.model import MESSAGE, Messages
    from headwater.spark.sources.outbox.messages import of_rows

    for statement in SESSION:
        connection.execute(statement.encode())
    names, after = table.columns.names, None
    place = names.index(table.columns.id)
    while rows := connection.execute(read_again(table, choice, after, _ROWS).encode()).fetchall():
        texts = [pa.array(values, pa.string()) for values in zip(*rows, strict=True)]
        batch = pa.RecordBatch.from_arrays(texts[: len(names)], list(names))
        yield Messages(of_rows(batch, table.columns, table.payload_type).select(MESSAGE.names))
        after = (rows[-1][-1], rows[-1][place])


def _source(settings: "PipelineSettings") -> "OutboxSettings":
    from headwater.spark.settings import OutboxSettings

    if not isinstance(settings.source, OutboxSettings):
        raise SettingsError(f"pipeline {settings.name!r} reads tables and no outbox; name the file of another with --file")
    if settings.source.emitted:
        raise SettingsError("messages that were emitted into the WAL are in no table, so that none can be sent again")
    return settings.source


def _target(settings: "PipelineSettings", name: str | None) -> "BrokerSinkSettings":
    from headwater.spark.settings import BrokerSinkSettings

    brokers = {sink.name: sink for sink in settings.sinks if isinstance(sink, BrokerSinkSettings)}
    if name is None and len(brokers) == 1:
        return next(iter(brokers.values()))
    if name not in brokers:
        raise SettingsError(f"name the sink to send to with --sink; there are {', '.join(brokers) or 'no brokers'}")
    return brokers[name]


def _time(option: str, text: str | None) -> str | None:
    return None if text is None else parse_time(option, text).isoformat()


def _found(connection: Connection, pipeline: str) -> Checkpoint:
    require_outbox(connection)
    found = find_checkpoints(connection)
    for one in found:
        if one.pipeline == pipeline:
            return one
    known = ", ".join(one.pipeline for one in found) or "none"
    raise SettingsError(f"no pipeline {pipeline!r} has delivered from this outbox; there are: {known}")


def _row(one: Checkpoint) -> tuple[str, ...]:
    read = f"{one.recovered:,}" if one.recovered else ""
    return one.pipeline, one.table_name, one.phase, f"{one.saved_at:%Y-%m-%d %H:%M:%S%z}", f"{one.delivered:,}", read


def _state_row(state: RelayState, since: datetime) -> tuple[str, ...]:
    oldest = "" if state.oldest_age is None else f"{state.oldest_age.total_seconds():,.1f} s"
    lanes = f"{state.lanes} lanes" if state.lanes else "no"
    counts = (state.pending, state.leased, state.postponed, state.dead)
    return f"{since:%Y-%m-%d %H:%M:%S%z}", lanes, *(f"{count:,}" for count in counts), oldest


def _failure_line(failure: Failure) -> str:
    attempts = f"{failure.attempts:,} attempt{'' if failure.attempts == 1 else 's'}"
    what = "is dead" if failure.status == "dead" else "waits"
    return (
        f"last failure: the event to {failure.topic} of {failure.created_at:%Y-%m-%d %H:%M:%S%z} {what} after "
        f"{attempts}: {failure.error}"
    )


def _plain_state(state: RelayState, failure: Failure | None) -> dict[str, Any] | None:
    if state.served_since is None:
        return None
    return {
        "since": state.served_since.isoformat(),
        "lanes": state.lanes,
        "waiting": state.pending,
        "held": state.leased,
        "postponed": state.postponed,
        "dead": state.dead,
        "oldest_seconds": None if state.oldest_age is None else state.oldest_age.total_seconds(),
        "last_failure": None if failure is None else {**asdict(failure), "created_at": failure.created_at.isoformat()},
    }


def _plain(one: Checkpoint) -> dict[str, Any]:
    return {
        "pipeline": one.pipeline,
        "table": one.table_name,
        "phase": one.phase,
        "saved_at": one.saved_at.isoformat(),
        "snapshot": one.snapshot,
        "lsn": None if one.lsn is None else str(one.lsn),
        "newest_at": None if one.newest_at is None else one.newest_at.isoformat(),
        "transactions_since": one.delivered,
        "recovery_snapshot": one.recovery_snapshot,
        "recovered_up_to": one.recovered_at,
        "recovered": one.recovered,
        "server": one.system_identifier,
        "timeline": one.timeline,
    }
