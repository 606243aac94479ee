"""The statements by which whole tables are loaded aside and swapped in, typed, some of them put together for a table."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias, TypeVar

from psycopg import sql

from headwater.model import Lsn, Position
from headwater.postgres.statements import Statement, load
from headwater.spark.sinks.postgres.session import Address
from headwater.spark.sinks.postgres.statements import Part, Table, TargetColumn, all_of, listed, type_named
from headwater.spark.sinks.postgres.target import Fit, Target

SQL: Final = load("headwater.spark.sinks.postgres", "sql/loading.sql")

Row = TypeVar("Row")

_SCHEMA: Final = "headwater"

# Where a row is in a table: its page, and its number there, from 1.
Tid: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Load:
    """A table of an attempt. Without any rows it has no `aside`, nor columns; `identity` as in `Sent`."""

    schema: str
    table: str
    aside: str | None
    columns: list[str]
    identity: list[str] | None


@dataclass(frozen=True, slots=True)
class PieceOrigin:
    """What a piece was read from, where the WAL ended then, and when that was.

    `timeline` has written what comes right before the position that the changes of its table go on from, if it is known.
    """

    system_identifier: str
    timeline: int | None
    until: Lsn
    read_at: datetime


@dataclass(frozen=True, slots=True)
class ConstraintName:
    name: str
    is_primary: bool
    columns: list[str]


@dataclass(frozen=True, slots=True)
class Range:
    """Rows of a table from one place to before another; by default all of them."""

    start: Tid | None = None
    end: Tid | None = None

    @property
    def condition(self) -> Part:
        if self.start is None or self.end is None:
            return sql.SQL("true")
        return sql.SQL("staged.ctid >= {}::tid and staged.ctid < {}::tid").format(_tid(self.start), _tid(self.end))


def begin_load(address: Address, attempt: str, tables: Sequence[Table]) -> Statement[None]:
    return SQL["begin_load"].bind(type(None), **_whose(address, attempt), **_names(tables))


def list_dead_attempts(address: Address, attempt: str, tables: Sequence[Table]) -> Statement[str]:
    return SQL["list_dead_attempts"].bind(str, **_whose(address, attempt), **_names(tables))


def list_attempts(address: Address) -> Statement[str]:
    """The attempts that are not swapped in yet, or have died."""
    return SQL["list_attempts"].bind(str, pipeline=address.pipeline, sink=address.sink)


def list_loads(address: Address, attempt: str) -> Statement[Load]:
    return SQL["list_loads"].bind(Load, **_whose(address, attempt))


def save_aside(
    address: Address, attempt: str, target: Target, columns: Sequence[str], identity: Sequence[str] | None
) -> Statement[None]:
    return SQL["save_aside"].bind(
        type(None),
        **_whose(address, attempt),
        schema=target.schema,
        table=target.name,
        aside=aside_name(address, attempt, (target.schema, target.name)),
        columns=list(columns),
        identity=None if identity is None else list(identity),
    )


def forget_attempt(address: Address, attempt: str) -> Statement[None]:
    return SQL["forget_attempt"].bind(type(None), **_whose(address, attempt))


def find_piece(address: Address, attempt: str, piece: int, part: int) -> Statement[PieceOrigin]:
    """At most one row."""
    return SQL["find_piece"].bind(PieceOrigin, **_whose(address, attempt), piece=piece, part=part)


def find_any_piece(address: Address, attempt: str) -> Statement[PieceOrigin]:
    """At most one row."""
    return SQL["find_any_piece"].bind(PieceOrigin, **_whose(address, attempt))


def save_piece(address: Address, attempt: str, piece: int, part: int, origin: PieceOrigin) -> Statement[None]:
    return SQL["save_piece"].bind(
        type(None),
        **_whose(address, attempt),
        piece=piece,
        part=part,
        system_identifier=origin.system_identifier,
        timeline=origin.timeline,
        until=origin.until,
        read_at=origin.read_at,
    )


def replace_positions(
    address: Address,
    attempt: str,
    tables: Sequence[Table],
    position: Position,
    origin: tuple[str | None, int | None],
) -> Statement[None]:
    system_identifier, timeline = origin
    return SQL["replace_positions"].bind(
        type(None),
        **_whose(address, attempt),
        **_names(tables),
        commit_lsn=position.commit_lsn,
        ordinal=position.ordinal,
        system_identifier=system_identifier,
        timeline=timeline,
    )


def aside_name(address: Address, attempt: str, table: Table) -> str:
    """The name of the table with an attempt's rows of a table."""
    names = "\0".join((address.pipeline, address.sink, attempt, *table))
    return f"aside_{hashlib.blake2b(names.encode(), digest_size=16).hexdigest()}"


def aside_identifier(name: str) -> sql.Identifier:
    return sql.Identifier(_SCHEMA, name)


def create_aside(name: str, columns: Sequence[TargetColumn]) -> Statement[None]:
    defined = (sql.SQL("{} {}").format(sql.Identifier(column.name), type_named(column.staged_type)) for column in columns)
    return SQL["create_aside"].compose(aside=aside_identifier(name), columns=listed(defined))


def copy_aside(name: str, columns: Sequence[str]) -> Statement[None]:
    return SQL["copy_aside"].compose(aside=aside_identifier(name), columns=listed(map(sql.Identifier, columns)))


def drop_aside(name: str) -> Statement[None]:
    return SQL["drop_aside"].compose(aside=aside_identifier(name))


def lock_target(target: Target) -> Statement[None]:
    return SQL["lock_target"].compose(target=target.identifier)


def empty_target(target: Target) -> Statement[None]:
    return SQL["empty_target"].compose(target=target.identifier)


def list_names(target: Target) -> Statement[ConstraintName]:
    return SQL["list_names"].bind(ConstraintName, table=_quoted(target.schema, target.name))


def has_rows(target: Target) -> Statement[bool]:
    return _of(bool, SQL["has_rows"].compose(table=target.identifier))


def is_replica() -> Statement[bool]:
    return SQL["is_replica"].bind(bool)


@dataclass(frozen=True, slots=True)
class SwapStatements:
    """What is run to bring a table to the rows that are aside; `fit` is how they go into it."""

    aside: str
    fit: Fit

    @property
    def analyze(self) -> Statement[None]:
        return SQL["analyze_aside"].compose(aside=self._place)

    @property
    def delete_missing(self) -> Statement[None]:
        return SQL["delete_missing"].compose(**self._both, match=self._match)

    @property
    def count_pages(self) -> Statement[int]:
        return SQL["count_pages"].bind(int, table=_quoted(_SCHEMA, self.aside))

    @property
    def is_plain(self) -> Statement[bool]:
        target = self.fit.target
        return SQL["is_plain"].bind(bool, target=_quoted(target.schema, target.name), aside=_quoted(_SCHEMA, self.aside))

    @property
    def list_names(self) -> Statement[ConstraintName]:
        return list_names(self.fit.target)

    @property
    def list_not_null(self) -> Statement[str]:
        return SQL["list_not_null"].bind(str, table=_quoted(self.fit.target.schema, self.fit.target.name))

    def insert(self, rows: Range) -> Statement[None]:
        return SQL["insert_aside"].compose(**self._both, **self._columns, range=rows.condition)

    def merge(self, rows: Range) -> Statement[None]:
        written = [column for column in self.fit.columns if not column.is_identity_always]
        assign = (sql.SQL("{0} = staged.{0}").format(sql.Identifier(column.name)) for column in written)
        # Of a domain the type that it stands on, as rows aside have it.
        old = (
            sql.SQL("target.{}::{}").format(sql.Identifier(column.name), type_named(column.staged_type))
            for column in self.fit.columns
        )
        return SQL["merge_aside"].compose(
            **self._both,
            **self._columns,
            range=rows.condition,
            match=self._match,
            old=listed(old),
            update=sql.SQL("update set {}").format(listed(assign)) if written else sql.SQL("do nothing"),
        )

    def delete(self, rows: Range) -> Statement[None]:
        return SQL["delete_range"].compose(**self._both, match=self._match, range=rows.condition)

    def list_tids(self, rows: Range) -> Statement[str]:
        return _of(str, SQL["list_tids"].compose(aside=self._place, range=rows.condition))

    def read(self, rows: Range) -> Statement[list[str | None]]:
        # A cast would write some values otherwise than the stream does, such as booleans.
        form = sql.SQL("case when staged.{0} is distinct from null then format('%s', staged.{0}) end")
        texts = (form.format(sql.Identifier(name)) for name in self.fit.names)
        return _of(list, SQL["read_range"].compose(aside=self._place, texts=listed(texts), range=rows.condition))

    def constrain(self, names: Sequence[ConstraintName], not_null: Sequence[str]) -> Statement[None] | None:
        """Give the aside the constraints of the target; None if there are none."""
        actions: list[Part] = [sql.SQL("alter column {} set not null").format(sql.Identifier(name)) for name in not_null]
        actions += [
            sql.SQL("add constraint {} primary key ({})").format(
                sql.Identifier(one.name), listed(map(sql.Identifier, one.columns))
            )
            for one in names
            if one.is_primary
        ]
        return SQL["constrain_aside"].compose(aside=self._place, actions=listed(actions)) if actions else None

    @property
    def replace(self) -> list[Statement[None]]:
        """Drop the target, and put the aside in its place."""
        target = self.fit.target
        moved = sql.Identifier(target.schema, self.aside)
        return [
            SQL["drop_target"].compose(target=target.identifier),
            SQL["move_aside"].compose(aside=self._place, schema=sql.Identifier(target.schema)),
            SQL["rename_table"].compose(table=moved, name=sql.Identifier(target.name)),
            SQL["reset_aside"].compose(table=target.identifier),
        ]

    def rename_constraint(self, old: str, new: str) -> Statement[None]:
        return SQL["rename_constraint"].compose(
            table=self.fit.target.identifier, constraint=sql.Identifier(old), name=sql.Identifier(new)
        )

    @property
    def _place(self) -> sql.Identifier:
        return aside_identifier(self.aside)

    @property
    def _both(self) -> dict[str, sql.Identifier]:
        return {"target": self.fit.target.identifier, "aside": self._place}

    @property
    def _columns(self) -> dict[str, sql.Composed]:
        names = [sql.Identifier(name) for name in self.fit.names]
        return {"columns": listed(names), "values": listed(sql.SQL("staged.{}").format(name) for name in names)}

    @property
    def _match(self) -> sql.Composed:
        names = [sql.Identifier(self.fit.names[number]) for number in self.fit.key]
        return all_of(sql.SQL("target.{0} = staged.{0}").format(name) for name in names)


def _of(row: type[Row], statement: Statement[None]) -> Statement[Row]:
    """A statement that was put together, and gives rows."""
    return Statement(statement.name, statement.query, statement.parameters, row)


def _whose(address: Address, attempt: str) -> dict[str, object]:
    return {"pipeline": address.pipeline, "sink": address.sink, "attempt": attempt}


def _names(tables: Sequence[Table]) -> dict[str, object]:
    return {"schemas": [schema for schema, _ in tables], "tables": [name for _, name in tables]}


def _tid(tid: Tid) -> sql.Literal:
    return sql.Literal(f"({tid[0]},{tid[1]})")


def _quoted(*names: str) -> str:
    """A name as the server reads it where it is a value."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)
