"""A report: where a pipeline is, how fast, and what each table and each sink has had, since its run began. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from headwater.model import Position


class Phase(StrEnum):
    """What a run is at. One that was killed leaves the phase it had, though it is over.

    `standing by` is never written down: what is there is of the run that has the pipeline.
    """

    STARTING = "starting"
    STANDING_BY = "standing by"
    RUNNING = "running"
    RETRYING = "retrying"
    PAUSED = "paused"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table: how many changes were delivered, and when the last of them was committed at the source."""

    changes: int = 0
    last_committed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SinkReport:
    """One sink: changes applied, left out because they had been applied, put aside as letters; and the last batch's time."""

    changes: int = 0
    skipped: int = 0
    letters: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run says. `position` is exclusive: all before it is delivered; `committed_at` is of the last delivered change.

    `rows` are since the run began; `rows_per_second` and `batch_seconds` are of the last batches, as the run sees fit.
    """

    phase: Phase
    position: Position | None = None
    committed_at: datetime | None = None
    rows: int = 0
    rows_per_second: float = 0.0
    batch_seconds: float = 0.0
    tables: Mapping[str, TableReport] = field(default_factory=dict)
    sinks: Mapping[str, SinkReport] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SavedReport:
    """A report as it was found, with what the database knows of it.

    `paused_at` is since when the pipeline is not to run, `owns_publication` whether it has made its publication.
    """

    report: Report
    slot: str
    started_at: datetime
    updated_at: datetime
    paused_at: datetime | None = None
    owns_publication: bool = False


def details(report: Report) -> dict[str, Any]:
    """The part of a report that has no column of its own, as JSON has it."""
    tables = {
        name: {
            "changes": table.changes,
            "last_committed_at": table.last_committed_at.isoformat() if table.last_committed_at else None,
        }
        for name, table in report.tables.items()
    }
    return {
        "rows": report.rows,
        "rows_per_second": report.rows_per_second,
        "batch_seconds": report.batch_seconds,
        "tables": tables,
        "sinks": {name: asdict(sink) for name, sink in report.sinks.items()},
    }


def read_tables(written: Mapping[str, Mapping[str, Any]]) -> dict[str, TableReport]:
    return {
        name: TableReport(
            changes=table["changes"],
            last_committed_at=datetime.fromisoformat(table["last_committed_at"]) if table["last_committed_at"] else None,
        )
        for name, table in written.items()
    }
