"""Reports in the state database, on a connection of the caller's, and what the source's server adds to them."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

import psycopg
from psycopg.types.json import Jsonb

from headwater.errors import HeadwaterError, SettingsError
from headwater.model import Lsn, Position
from headwater.postgres.connect import Connection
from headwater.postgres.statements import Statement, execute_sync, fetch_sync, load
from headwater.spark.state.report import Phase, Report, SavedReport, SinkReport, details, read_tables

SQL: Final = load("headwater.spark.state")

Row = TypeVar("Row")


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
    paused_at: datetime | None
    owns_publication: bool


@dataclass(frozen=True, slots=True)
class TableLoad:
    """A table of a pipeline: how many pieces of it have been delivered, of how many; and why it could not be read."""

    schema: str
    table: str
    state: str
    pieces_done: int
    pieces_total: int
    rows_estimate: int
    error: str | None

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class _OpenLetters:
    sink: str
    letters: int


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


def claim_slot(  # noqa: PLR0913 - the columns of the claim
    connection: Connection, pipeline: str, slot: str, *, system_identifier: str, publication: str, owns_publication: bool
) -> None:
    """Say which slot of which server the pipeline reads; raises SettingsError if another pipeline does."""
    place = {"slot": slot, "system_identifier": system_identifier}
    claim = SQL["claim_slot"].bind(
        object, pipeline=pipeline, publication=publication, owns_publication=owns_publication, **place
    )
    try:
        execute_sync(connection, claim)
    except psycopg.errors.UniqueViolation as exc:
        other = next(iter(fetch_sync(connection, SQL["find_claimant"].bind(str, **place))), "that is just gone")
        raise SettingsError(
            f"slot {slot!r} is read by pipeline {other!r}, and a slot has one reader; name another slot for {pipeline!r}, "
            "or end the other with `headwater destroy`"
        ) from exc


def pause(connection: Connection, pipeline: str) -> datetime:
    """Have the pipeline stop after the batch that it is at, and not run until `resume`; returns since when that is so."""
    return _known(connection, SQL["pause"].bind(datetime, pipeline=pipeline), pipeline)


def resume(connection: Connection, pipeline: str) -> datetime | None:
    """Let the pipeline run again; returns since when it was paused, None if it was not."""
    return _known(connection, SQL["resume"].bind(datetime, pipeline=pipeline), pipeline)


def is_paused(connection: Connection, pipeline: str) -> bool:
    try:
        return fetch_sync(connection, SQL["is_paused"].bind(bool, pipeline=pipeline)) == [True]
    except psycopg.errors.UndefinedTable:
        return False


def count_open_letters(connection: Connection, pipeline: str) -> dict[str, int]:
    """The dead letters that wait, by sink; sinks without any are left out."""
    try:
        found = fetch_sync(connection, SQL["count_open_letters"].bind(_OpenLetters, pipeline=pipeline))
    except psycopg.errors.UndefinedTable:
        return {}
    return {one.sink: one.letters for one in found}


def list_loads(connection: Connection, pipeline: str) -> list[TableLoad]:
    """The tables of a pipeline, and how far those are that are read as a whole."""
    try:
        return fetch_sync(connection, SQL["list_loads"].bind(TableLoad, pipeline=pipeline))
    except psycopg.errors.UndefinedTable:
        return []


def fetch_idle_seconds(connection: Connection, slot: str) -> float | None:
    """For how long nobody has read a slot; None while somebody does, and where the server does not know."""
    return next(iter(fetch_sync(connection, SQL["fetch_idle_seconds"].bind(float, slot=slot))), None)


def set_asking_session(connection: Connection) -> None:
    """Have the statements of a connection that asks for figures end soon."""
    execute_sync(connection, SQL["set_asking_session"].compose())


def fetch_server_position(connection: Connection) -> ServerPosition:
    return fetch_sync(connection, SQL["fetch_server_position"].bind(ServerPosition))[0]


def fetch_rights(connection: Connection) -> Rights:
    return fetch_sync(connection, SQL["fetch_rights"].bind(Rights))[0]


def _known(connection: Connection, statement: Statement[Row], pipeline: str) -> Row:
    """The only row of a statement about a pipeline."""
    try:
        found = fetch_sync(connection, statement)
    except psycopg.errors.UndefinedTable:
        found = []
    if not found:
        raise HeadwaterError(f"pipeline {pipeline!r} has never run with this state database; start it with `headwater run`")
    return found[0]


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
    return SavedReport(report, row.slot, row.started_at, row.updated_at, row.paused_at, row.owns_publication)
