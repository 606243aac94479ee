"""`headwater status`: how far a pipeline is, from what it last said and from what its slot shows now."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import typer

from headwater.cli.config import File, Json
from headwater.cli.output import human_bytes, print_json, print_table
from headwater.cli.pipeline import load_pipeline
from headwater.cli.session import session
from headwater.postgres.catalog import read_server
from headwater.postgres.replication.slot import Slot, find_slot

if TYPE_CHECKING:
    from headwater.spark.settings import PipelineSettings
    from headwater.spark.state import Progress, TableLoad


def status(file: File = None, json: Json = False) -> None:
    """Show how far a pipeline is: phase, position, lag and rate, by table and by sink.

    The lag in bytes is the WAL that the server has made durable and the pipeline has not confirmed. The lag in seconds is 0
    if there is none of it, and else the age of the last change that was delivered.

    Tables that are being read as a whole are listed with their pieces. What is not well is said in words below.

    Examples:

        headwater status
        headwater status --file pipelines/shop.toml --json
    """
    progress = _ask(load_pipeline(file))
    from headwater.spark.state import as_json

    if json:
        print_json(as_json(progress))
    else:
        _print(progress)


def _ask(pipeline: "PipelineSettings") -> "Progress":
    from headwater.spark.lease import find_holder
    from headwater.spark.settings import TopicSettings
    from headwater.spark.state import (
        Limits,
        Progress,
        count_open_letters,
        fetch_idle_seconds,
        fetch_report,
        fetch_server_position,
        list_loads,
    )

    name, slot_name = pipeline.name, pipeline.source.slot
    with session(pipeline.state_url) as connection:
        saved, letters = fetch_report(connection, name), count_open_letters(connection, name)
        loads = tuple(list_loads(connection, name))
    with session(pipeline.source.url) as connection:
        slot, server = find_slot(connection, slot_name), fetch_server_position(connection)
        facts = read_server(connection)
        idle = fetch_idle_seconds(connection, slot_name)
    limits = Limits(facts.max_slot_wal_keep_bytes, facts.idle_replication_slot_timeout_seconds, idle)
    is_held = find_holder(pipeline.state_url, name) is not None
    has_slot = not isinstance(pipeline.source, TopicSettings)
    return Progress(name, slot_name, saved, slot, server, limits, letters, loads, is_held, has_slot)


def _print(progress: "Progress") -> None:
    from headwater.spark.state import notes

    print_table(("pipeline", progress.pipeline), _facts(progress))
    if progress.saved is not None:
        tables, sinks = progress.saved.report.tables, progress.saved.report.sinks
        _print_part(
            ("table", "changes", "last committed at"),
            [(name, f"{table.changes:,}", _clock(table.last_committed_at)) for name, table in tables.items()],
        )
        _print_part(
            ("sink", "changes", "skipped", "letters", "last batch"),
            [
                (name, f"{sink.changes:,}", f"{sink.skipped:,}", f"{sink.letters:,}", f"{sink.seconds:.2f} s")
                for name, sink in sinks.items()
            ],
        )
    _print_part(
        ("table", "wanted", "pieces", "rows, about"),
        [_load(load) for load in progress.loads if load.state == "wanted"],
    )
    for note in notes(progress):
        typer.echo(f"\n{note}")


def _facts(progress: "Progress") -> list[tuple[str, str]]:
    slot, lag = progress.slot, progress.lag
    behind = "unknown" if progress.lag_bytes is None else human_bytes(progress.lag_bytes)
    facts = [
        ("lag", behind if lag is None else f"{behind}, {_seconds(lag)}"),
        ("slot", f"{progress.slot_name}: {_slot(slot)}"),
    ]
    if not progress.has_slot:
        facts = [("reads", f"{progress.slot_name}; see `headwater topics groups` for its lag")]
    if progress.saved is None:
        return [("phase", "never ran"), *facts]
    report = progress.saved.report
    return [
        ("phase", f"{report.phase}{', stale' if progress.is_stale else ''}"),
        ("started", _clock(progress.saved.started_at)),
        ("position", "none" if report.position is None else f"{report.position}, committed {_clock(report.committed_at)}"),
        *facts,
        ("rows", f"{report.rows:,}, {report.rows_per_second:,.0f}/s, last batch {report.batch_seconds:.2f} s"),
        ("reported", _clock(progress.saved.updated_at)),
    ]


def _print_part(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        typer.echo()
        print_table(columns, rows)


def _load(load: "TableLoad") -> tuple[str, ...]:
    reading = "reading" if load.pieces_total else "waiting"
    return (load.name, reading, f"{load.pieces_done} of {load.pieces_total}", f"{load.rows_estimate:,}")


def _slot(slot: Slot | None) -> str:
    if slot is None:
        return "is not there"
    reader = f"read by process {slot.active_pid}" if slot.active else "not read"
    confirmed = "nothing confirmed" if slot.confirmed_flush_lsn is None else f"confirmed {slot.confirmed_flush_lsn}"
    return f"{reader}, {confirmed}, keeps {human_bytes(slot.retained_bytes or 0)}"


def _clock(at: datetime | None) -> str:
    return "never" if at is None else f"{at:%Y-%m-%d %H:%M:%S%z}"


def _seconds(lag: timedelta) -> str:
    seconds = lag.total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
