"""Reports in the state database, on a connection of the caller's, and what the source's server adds to them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.types.json import Jsonb

from headwater.model import Lsn, Position
from headwater.postgres.connect import Connection
from headwater.postgres.statements import execute_sync, fetch_sync, load
from headwater.spark.state.report import Phase, Report, SavedReport, SinkReport, details, read_tables

SQL: Final = load("headwater.spark.state")


@dataclass(frozen=True, slots=True)
class ServerPosition:
    """How far the server's WAL is durable, and the server's clock."""

    flush_lsn: Lsn
    now: datetime


@dataclass(frozen=True, slots=True)
class Rights:
    """What the current user may do in the state database; without the schema, the last three are false."""

    user: str
    database: str
    in_recovery: bool
    can_create_schema: bool
    has_schema: bool
    can_use_schema: bool
    can_create_tables: bool


@dataclass(frozen=True, slots=True)
class _Row:
    phase: str
    slot: str
    commit_lsn: Lsn | None
    ordinal: int | None
    committed_at: datetime | None
    started_at: datetime
    updated_at: datetime
    error: str | None
    report: dict[str, Any]


def save_report(connection: Connection, pipeline: str, slot: str, report: Report) -> None:
    """Write the report over the last one of this pipeline; the tables must be there. A run begins with phase `starting`."""
    execute_sync(
        connection,
        SQL["save_report"].bind(
            object,
            pipeline=pipeline,
            phase=report.phase,
            slot=slot,
            commit_lsn=report.position.commit_lsn if report.position else None,
            ordinal=report.position.ordinal if report.position else None,
            committed_at=report.committed_at,
            # No text of PostgreSQL's holds a NUL, and an error may quote what a driver said.
            error=None if report.error is None else report.error.replace("\0", "\\0"),
            report=Jsonb(details(report)),
        ),
    )


def fetch_report(connection: Connection, pipeline: str) -> SavedReport | None:
    """The last report of a pipeline; None if it never ran with this state database."""
    try:
        rows = fetch_sync(connection, SQL["fetch_report"].bind(_Row, pipeline=pipeline))
    except psycopg.errors.UndefinedTable:
        return None
    return _saved(rows[0]) if rows else None


def fetch_server_position(connection: Connection) -> ServerPosition:
    return fetch_sync(connection, SQL["fetch_server_position"].bind(ServerPosition))[0]


def fetch_rights(connection: Connection) -> Rights:
    return fetch_sync(connection, SQL["fetch_rights"].bind(Rights))[0]


def _saved(row: _Row) -> SavedReport:
    has_position = row.commit_lsn is not None and row.ordinal is not None
    report = Report(
        phase=Phase(row.phase),
        position=Position(Lsn(row.commit_lsn or 0), row.ordinal or 0) if has_position else None,
        committed_at=row.committed_at,
        rows=row.report.get("rows", 0),
        rows_per_second=row.report.get("rows_per_second", 0.0),
        batch_seconds=row.report.get("batch_seconds", 0.0),
        tables=read_tables(row.report.get("tables", {})),
        sinks={name: SinkReport(**sink) for name, sink in row.report.get("sinks", {}).items()},
        error=row.error,
    )
    return SavedReport(report, row.slot, row.started_at, row.updated_at)
