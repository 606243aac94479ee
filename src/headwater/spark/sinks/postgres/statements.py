"""The statements of the sink, typed, and those that are put together for a table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias, cast

from psycopg import sql

from headwater.model import Lsn, Position
from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.spark.sinks.postgres")

Part: TypeAlias = sql.SQL | sql.Composed | sql.Identifier
Table: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """A database of a running server."""

    started_at: datetime
    port: int | None
    database: str


@dataclass(frozen=True, slots=True)
class FoundTable:
    oid: int
    schema: str
    name: str
    kind: str
    can_write: bool


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column of the target: `is_required` if a row cannot do without, `is_generated` if nobody can write to it.

    `staged_type` is its type, or what that stands on if it is a domain, which may refuse NULL.
    """

    table_oid: int
    name: str
    type_oid: int
    type_name: str
    staged_type: str
    is_required: bool
    is_generated: bool
    is_identity_always: bool


@dataclass(frozen=True, slots=True)
class UniqueKey:
    table_oid: int
    is_primary: bool
    columns: list[str]


@dataclass(frozen=True, slots=True)
class LanePosition:
    """How far one lane of a table is; of a whole table, lane 0 of 1. Its rows were loaded by `attempt`, if at all."""

    schema: str
    table: str
    lanes: int
    lane: int
    commit_lsn: Lsn
    ordinal: int
    system_identifier: str | None
    timeline: int | None
    attempt: str | None = None

    @property
    def position(self) -> Position:
        return Position(self.commit_lsn, self.ordinal)


@dataclass(frozen=True, slots=True)
class Reached:
    """A lane of a table that is to be moved on; `timeline` has written the end of what it had, if that is known."""

    schema: str
    table: str
    lanes: int
    lane: int
    system_identifier: str | None
    timeline: int | None


def set_session() -> Statement[None]:
    return SQL["set_session"].compose()


def set_replica() -> Statement[None]:
    return SQL["set_replica"].compose()


def check_at_once() -> Statement[None]:
    return SQL["check_at_once"].compose()


def limit_waiting(milliseconds: int) -> Statement[str]:
    return SQL["limit_waiting"].bind(str, milliseconds=str(milliseconds))


def take_epoch(pipeline: str, sink: str) -> Statement[int]:
    """One row, the new epoch."""
    return SQL["take_epoch"].bind(int, pipeline=pipeline, sink=sink)


def hold_epoch(pipeline: str, sink: str, locks: Sequence[int]) -> Statement[int]:
    """One row, unless the sink was never opened; `locks` are held until the transaction ends."""
    return SQL["hold_epoch"].bind(int, pipeline=pipeline, sink=sink, locks=list(locks))


def list_positions(pipeline: str, sink: str, tables: Sequence[Table]) -> Statement[LanePosition]:
    schemas, names = [schema for schema, _ in tables], [name for _, name in tables]
    return SQL["list_positions"].bind(LanePosition, pipeline=pipeline, sink=sink, schemas=schemas, tables=names)


def save_positions(pipeline: str, sink: str, reached: Sequence[Reached], end: Position) -> Statement[None]:
    return SQL["save_positions"].bind(
        type(None),
        pipeline=pipeline,
        sink=sink,
        schemas=[one.schema for one in reached],
        tables=[one.table for one in reached],
        lanes=[one.lanes for one in reached],
        lane=[one.lane for one in reached],
        systems=[one.system_identifier for one in reached],
        timelines=[one.timeline for one in reached],
        commit_lsn=end.commit_lsn,
        ordinal=end.ordinal,
    )


def find_place() -> Statement[Place]:
    return SQL["find_place"].bind(Place)


def find_tables(tables: Sequence[Table]) -> Statement[FoundTable]:
    schemas, names = [schema for schema, _ in tables], [name for _, name in tables]
    return SQL["find_tables"].bind(FoundTable, schemas=schemas, names=names)


def list_target_columns(tables: Sequence[int]) -> Statement[TargetColumn]:
    return SQL["list_target_columns"].bind(TargetColumn, tables=list(tables))


def list_unique_keys(tables: Sequence[int]) -> Statement[UniqueKey]:
    return SQL["list_unique_keys"].bind(UniqueKey, tables=list(tables))


def clear_search_path() -> Statement[None]:
    return SQL["clear_search_path"].compose()


def find_missing_types(names: Sequence[str]) -> Statement[str]:
    return SQL["find_missing_types"].bind(str, names=list(names))


def create_schema(schema: str) -> Statement[None]:
    return SQL["create_schema"].compose(schema=sql.Identifier(schema))


def create_table(table: sql.Identifier, columns: Sequence[tuple[str, str, bool]], key: Sequence[str]) -> Statement[None]:
    """Columns as name, type as `format_type` writes it, and whether it must not be null."""
    parts: list[Part] = [
        sql.SQL("{} {}{}").format(sql.Identifier(name), type_named(type_name), sql.SQL(" not null" if required else ""))
        for name, type_name, required in columns
    ]
    if key:
        parts.append(sql.SQL("primary key ({})").format(listed(sql.Identifier(name) for name in key)))
    return SQL["create_table"].compose(table=table, columns=listed(parts))


@dataclass(frozen=True, slots=True)
class TableStatements:
    """What is run for one table; the columns of the staging table are c1, c2 and so on, for the sent ones in their order."""

    create_staging: Statement[None]
    drop_staging: Statement[None]
    clear_staging: Statement[None]
    copy_staging: Statement[None]
    copy_target: Statement[None]
    delete_rows: Statement[None]
    merge_rows: Statement[None]
    merge_kept_rows: Statement[None]
    move_row: Statement[None] | None
    truncate: Statement[None]
    delete_all: Statement[None]


def table_statements(
    target: sql.Identifier, staging: str, columns: Sequence[TargetColumn], key: Sequence[int]
) -> TableStatements:
    """The statements for rows with these columns, found by those of them that `key` counts, or by all of them."""
    names = [sql.Identifier(column.name) for column in columns]
    staged = [sql.Identifier(f"c{number + 1}") for number in range(len(columns))]
    place = sql.Identifier("pg_temp", staging)
    others = [number for number in range(len(columns)) if number not in key]
    written = [n for n in range(len(columns)) if not columns[n].is_identity_always]
    values = listed(sql.SQL("staged.{}").format(name) for name in staged)
    match = all_of(sql.SQL("target.{} = staged.{}").format(names[n], staged[n]) for n in key)
    rows = {"target": target, "staging": place, "match": match, "columns": listed(names), "values": values}
    assign = [sql.SQL("{} = staged.{}").format(names[n], staged[n]) for n in others]
    keep = [_unless_kept(names[n], staged[n], n + 1) for n in others]
    moved = all_of(sql.SQL("target.{} = old.{}").format(names[n], staged[n]) for n in key)
    move = [_unless_kept(names[n], staged[n], n + 1) for n in written]
    defined = (sql.SQL("{} {}").format(staged[n], type_named(column.staged_type)) for n, column in enumerate(columns))
    marks = [sql.Identifier("kept"), sql.Identifier("gone")]
    gone = {"target": target, "staging": place}
    if key:
        delete_rows = SQL["delete_rows"].compose(**gone, match=match)
    else:
        targets = listed(sql.SQL("target.{}").format(name) for name in names)
        delete_rows = SQL["delete_equal_rows"].compose(**gone, staged=values, columns=targets)
    return TableStatements(
        create_staging=SQL["create_staging"].compose(staging=place, columns=listed(defined)),
        drop_staging=SQL["drop_staging"].compose(staging=place),
        clear_staging=SQL["clear_staging"].compose(staging=place),
        copy_staging=SQL["copy_rows"].compose(table=place, columns=listed([*staged, *marks])),
        copy_target=SQL["copy_rows"].compose(table=target, columns=listed(names)),
        delete_rows=delete_rows,
        merge_rows=SQL["merge_rows"].compose(**rows, update=_update(assign)),
        merge_kept_rows=SQL["merge_kept_rows"].compose(**rows, update=_update(keep)),
        move_row=SQL["move_row"].compose(**gone, match=moved, assignments=listed(move))
        if set(key) <= set(written)
        else None,
        truncate=SQL["truncate_table"].compose(target=target),
        delete_all=SQL["delete_all"].compose(target=target),
    )


def _unless_kept(name: sql.Identifier, staged: sql.Identifier, number: int) -> sql.Composed:
    # Without anything kept the array is NULL, the comparison too, and so the value is the one that was sent.
    text = sql.SQL("{} = case when {} = any(staged.kept) then target.{} else staged.{} end")
    return text.format(name, sql.Literal(number), name, staged)


def _update(assignments: Sequence[sql.Composed]) -> Part:
    return sql.SQL("update set {}").format(listed(assignments)) if assignments else sql.SQL("do nothing")


def all_of(conditions: Iterable[sql.Composed]) -> sql.Composed:
    return sql.SQL(" and ").join(conditions)


def listed(parts: Iterable[Part]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def type_named(name: str) -> sql.SQL:
    # As the catalog's format_type wrote it, which quotes what needs quotes.
    return sql.SQL(cast("Any", name))
