"""`headwater status`: how far a pipeline is, from what it last said and from what its slot shows now."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import typer

from headwater.cli.config import File, Json
from headwater.cli.output import human_bytes, print_json, print_table
from headwater.cli.pipeline import load_pipeline
from headwater.cli.session import session
from headwater.model import Lsn
from headwater.postgres.replication.slot import Slot, find_slot

if TYPE_CHECKING:
    from headwater.spark.state import SavedReport, ServerPosition


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of a pipeline: its last report, its slot, and how far the server is, all at about the same time."""

    pipeline: str
    slot_name: str
    saved: "SavedReport | None"
    slot: Slot | None
    server: "ServerPosition"

    @property
    def confirmed(self) -> Lsn | None:
        return self.slot.confirmed_flush_lsn if self.slot is not None else None

    @property
    def lag_bytes(self) -> int | None:
        """The WAL that is durable at the server and not confirmed; None without a slot that has a position."""
        return None if self.confirmed is None else max(0, self.server.flush_lsn - self.confirmed)

    @property
    def lag(self) -> timedelta | None:
        """Nothing, if nothing is unconfirmed; else the age of the last change that was delivered, None if none was."""
        if self.lag_bytes == 0:
            return timedelta(0)
        if self.lag_bytes is None or self.saved is None or self.saved.report.committed_at is None:
            return None
        return max(timedelta(0), self.server.now - self.saved.report.committed_at)

    @property
    def is_stale(self) -> bool:
        """Whether the phase is that of a run which is over: it cannot run and not read its slot."""
        is_active = self.slot is not None and self.slot.active
        return self.saved is not None and self.saved.report.phase == "running" and not is_active


def status(file: File = None, json: Json = False) -> None:
    """Show how far a pipeline is: phase, position, lag and rate, by table and by sink.

    The lag in bytes is the WAL that the server has made durable and the pipeline has not confirmed. The lag in seconds is 0
    if there is none of it, and else the age of the last change that was delivered.

    Examples:

        headwater status
        headwater status --file pipelines/shop.toml --json
    """
    pipeline = load_pipeline(file)
    from headwater.spark.state import fetch_report, fetch_server_position

    with session(pipeline.state_url) as connection:
        saved = fetch_report(connection, pipeline.name)
    with session(pipeline.source.url) as connection:
        slot = find_slot(connection, pipeline.source.slot)
        server = fetch_server_position(connection)
    progress = Progress(pipeline.name, pipeline.source.slot, saved, slot, server)
    if json:
        print_json(as_json(progress))
    else:
        _print(progress)


def notes(progress: Progress) -> list[str]:
    """What has to be said in words."""
    said, saved, slot, name = [], progress.saved, progress.slot, progress.slot_name
    if saved is None:
        said.append(f"pipeline {progress.pipeline} has never run; start it with `headwater run`")
    if slot is None and saved is not None:
        said.append(f"slot {name} is gone, and with it what it held; the pipeline cannot go on where it was")
    elif slot is not None and slot.invalidation_reason is not None:
        said.append(f"slot {name} was invalidated by the server ({slot.invalidation_reason}), and what it held is gone")
    if saved is not None and saved.slot != name:
        said.append(f"the last run read slot {saved.slot}, and the file names {name}")
    if progress.is_stale:
        said.append("the last run says that it is running, but nobody reads its slot: it has ended without a word")
    if saved is not None and saved.report.error:
        became = "is trying again after" if saved.report.phase == "retrying" else "failed"
        said.append(f"the last run {became}: {saved.report.error}")
    return said


def as_json(progress: Progress) -> dict[str, object]:
    """Keys are stable; what is not known is null."""
    saved, slot, lag = progress.saved, progress.slot, progress.lag
    report = saved.report if saved is not None else None
    return {
        "pipeline": progress.pipeline,
        "phase": report.phase if report else None,
        "stale": progress.is_stale,
        "position": str(report.position) if report and report.position else None,
        "committed_at": _instant(report.committed_at if report else None),
        "started_at": _instant(saved.started_at if saved else None),
        "updated_at": _instant(saved.updated_at if saved else None),
        "lag_bytes": progress.lag_bytes,
        "lag_seconds": None if lag is None else round(lag.total_seconds(), 3),
        "rows": report.rows if report else None,
        "rows_per_second": report.rows_per_second if report else None,
        "batch_seconds": report.batch_seconds if report else None,
        "error": report.error if report else None,
        "slot": {
            "name": progress.slot_name,
            "exists": slot is not None,
            "active": slot is not None and slot.active,
            "confirmed_flush_lsn": str(progress.confirmed) if progress.confirmed is not None else None,
            "retained_bytes": slot.retained_bytes if slot else None,
            "wal_status": slot.wal_status if slot else None,
            "invalidation_reason": slot.invalidation_reason if slot else None,
        },
        "tables": {
            name: {"changes": table.changes, "last_committed_at": _instant(table.last_committed_at)}
            for name, table in (report.tables.items() if report else ())
        },
        "sinks": {name: dataclasses.asdict(sink) for name, sink in (report.sinks.items() if report else ())},
        "notes": notes(progress),
    }


def _print(progress: Progress) -> None:
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
    for note in notes(progress):
        typer.echo(f"\n{note}")


def _facts(progress: Progress) -> list[tuple[str, str]]:
    slot, lag = progress.slot, progress.lag
    behind = "unknown" if progress.lag_bytes is None else human_bytes(progress.lag_bytes)
    facts = [
        ("lag", behind if lag is None else f"{behind}, {_seconds(lag)}"),
        ("slot", f"{progress.slot_name}: {_slot(slot)}"),
    ]
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


def _slot(slot: Slot | None) -> str:
    if slot is None:
        return "is not there"
    reader = f"read by process {slot.active_pid}" if slot.active else "not read"
    confirmed = "nothing confirmed" if slot.confirmed_flush_lsn is None else f"confirmed {slot.confirmed_flush_lsn}"
    return f"{reader}, {confirmed}, keeps {human_bytes(slot.retained_bytes or 0)}"


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _clock(at: datetime | None) -> str:
    return "never" if at is None else f"{at:%Y-%m-%d %H:%M:%S%z}"


def _seconds(lag: timedelta) -> str:
    seconds = lag.total_seconds()
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=round(seconds)))
