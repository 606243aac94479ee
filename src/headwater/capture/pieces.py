"""Tables as they are to be read at a snapshot: what the stream calls their columns, and pages to read one by one.

Values are read as the text that the stream would have, by the types' own output functions. A table is cut into ranges of
pages, so that many readers may work on it, and a partitioned one by its partitions first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from headwater.capture.snapshot import SQL
from headwater.capture.tables import Name
from headwater.postgres.catalog import Column, list_columns, list_tables, load_types
from headwater.postgres.connect import Connection
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.postgres.statements import Statement, fetch_sync
from headwater.postgres.types import PgType, Types

# 32 MiB: a second or so of reading, and some hundred thousand rows; enough to be worth a task, and to split large tables.
PIECE_PAGES = 4096
# text and varchar: the output of these types is the text itself.
PLAIN: Final = frozenset({25, 1043})
_FULL, _NOTHING = "f", "n"
# How long a table's size is worth waiting for.
_GLANCE_MILLISECONDS = 500


@dataclass(frozen=True, slots=True)
class Pages:
    """Pages of a table from `first` to before `last`, or to its end; and how to read it.

    `outputs` names, with its schema, the output function of each column's type. `first_row` and `last_row` are places within
    these pages, for whoever reads less than a page.
    """

    part: Name
    first: int
    last: int | None
    outputs: tuple[Name, ...]
    row_filter: str
    first_row: int = 0
    last_row: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of pages of one table: `query` gives its rows, a text column for each of the relation's."""

    number: int
    relation: Relation
    own_types: tuple[PgType, ...]
    pages: Pages

    def query(self, plain: frozenset[int] = PLAIN) -> str:
        """Columns as text; those of types that are `plain`, by oid, as they are."""
        columns = [
            sql.Identifier(column.name) if column.type_oid in plain else _as_text(column.name, output)
            for column, output in zip(self.relation.columns, self.pages.outputs, strict=True)
        ]
        given = {
            "columns": sql.SQL(", ").join(columns) if columns else sql.SQL("null"),
            "part": sql.Identifier(*self.pages.part),
            "row_filter": sql.SQL(self.pages.row_filter),
            "first": sql.Literal(f"({self.pages.first},{self.pages.first_row})"),
        }
        if self.pages.last is None:
            return SQL["read_last_pages"].compose(**given).query.as_string()
        last = sql.Literal(f"({self.pages.last},{self.pages.last_row})")
        return SQL["read_first_pages"].compose(**given, last=last).query.as_string()


@dataclass(frozen=True, slots=True)
class Readable:
    """A table that can be read, in pieces, of which an empty one has none; `rows` is the server's estimate."""

    relation: Relation
    own_types: tuple[PgType, ...]
    pieces: tuple[Piece, ...]
    rows: int

    @property
    def table(self) -> Name:
        return self.relation.schema, self.relation.name

    @property
    def oid(self) -> int:
        return self.relation.oid


@dataclass(frozen=True, slots=True)
class _Described:
    oid: int
    schema: str
    name: str
    identity: str
    can_select: bool
    rows_hidden: bool
    is_published: bool
    columns: Sequence[str]
    row_filter: str | None


@dataclass(frozen=True, slots=True)
class _Part:
    table_oid: int
    schema: str
    name: str
    pages: int
    rows: int


@dataclass(frozen=True, slots=True)
class _Output:
    type_oid: int
    schema: str
    name: str


def describe(
    connection: Connection, publication: str, tables: Sequence[Name], piece_pages: int | None = None
) -> tuple[list[Readable], dict[Name, str]]:
    """How to read tables, as the connection sees them, and why some cannot be; pieces have PIECE_PAGES unless told."""
    found, failed = _described(connection, publication, tables)
    readable = [found[table] for table in tables if table not in failed]
    oids = [one.oid for one in readable]
    identities = {table.oid: set(table.identity) for table in list_tables(connection) if table.oid in oids}
    columns = list_columns(connection, oids)
    parts = fetch_sync(connection, SQL["list_parts"].bind(_Part, oids=oids))
    outputs = _outputs(connection, columns)
    cut: list[Readable] = []
    for one in readable:
        sent = [column for column in columns if column.table_oid == one.oid and column.name in one.columns]
        own = tuple(load_types(connection, {column.type_oid for column in sent} - set(Types.builtin())))
        relation = _relation(one, sent, identities[one.oid])
        mine = [part for part in parts if part.table_oid == one.oid]
        first = sum(len(table.pieces) for table in cut)
        names = tuple(outputs[column.type_oid] for column in sent)
        ranges = [
            pages for part in mine for pages in _pages_of(part, names, one.row_filter or "true", piece_pages or PIECE_PAGES)
        ]
        pieces = tuple(Piece(first + number, relation, own, pages) for number, pages in enumerate(ranges))
        cut.append(Readable(relation, own, pieces, sum(part.rows for part in mine)))
    return cut, failed


def unreadable(connection: Connection, publication: str, tables: Sequence[Name]) -> dict[Name, str]:
    """Why some tables cannot be read; waits for nobody."""
    return _described(connection, publication, tables)[1]


def sizes(connection: Connection, tables: Sequence[Name]) -> dict[Name, int]:
    """How many pages tables have, or 0 if somebody has locked one; those that are missing are left out."""
    found, _ = _described(connection, "", tables)
    fetch_sync(connection, SQL["limit_locks"].bind(str, milliseconds=_GLANCE_MILLISECONDS))
    return {table: _pages(connection, one.oid) for table, one in found.items()}


def _pages(connection: Connection, oid: int) -> int:
    try:
        return sum(part.pages for part in fetch_sync(connection, SQL["list_parts"].bind(_Part, oids=[oid])))
    except psycopg.errors.LockNotAvailable:
        return 0


def _described(
    connection: Connection, publication: str, tables: Sequence[Name]
) -> tuple[dict[Name, _Described], dict[Name, str]]:
    """The tables that are there, and why some cannot be read."""
    schemas, names = [schema for schema, _ in tables], [name for _, name in tables]
    statement = SQL["describe_tables"].bind(_Described, schemas=schemas, names=names, publication=publication)
    found = {(one.schema, one.name): one for one in fetch_sync(connection, statement)}
    failed = {table: reason for table in tables if (reason := _reason(connection, publication, found.get(table)))}
    return found, failed


def _reason(connection: Connection, publication: str, one: _Described | None) -> str | None:
    """Why a table cannot be read; None if it can."""
    if one is None:
        return "it does not exist; create it, or take it out of the pipeline"
    if not one.can_select:
        return f"role {connection.info.user} may not read it; run `grant select` on it to that role"
    if one.rows_hidden:
        return f"row security hides rows of it from role {connection.info.user}; give the role `bypassrls`"
    if not one.is_published:
        return f"publication {publication!r} does not hold it; add it there"
    return None


def _relation(one: _Described, columns: Sequence[Column], identity: set[str]) -> Relation:
    """The table as the stream describes it."""
    return Relation(
        one.oid,
        one.schema,
        one.name,
        one.identity,
        tuple(
            RelationColumn(
                column.name,
                one.identity == _FULL or (one.identity != _NOTHING and column.name in identity),
                column.type_oid,
                column.typmod,
            )
            for column in columns
        ),
    )


def _outputs(connection: Connection, columns: Sequence[Column]) -> dict[int, Name]:
    oids = list({column.type_oid for column in columns})
    found = fetch_sync(connection, SQL["list_outputs"].bind(_Output, oids=oids))
    return {one.type_oid: (one.schema, one.name) for one in found}


def _pages_of(part: _Part, outputs: tuple[Name, ...], row_filter: str, piece_pages: int) -> Iterator[Pages]:
    """The pages of a part in ranges; the last one has no end, since the part may have grown."""
    for first in range(0, part.pages, piece_pages):
        last = first + piece_pages
        yield Pages((part.schema, part.name), first, last if last < part.pages else None, outputs, row_filter)


def _as_text(name: str, output: Name) -> sql.Composable:
    identifier = sql.Identifier(name)
    return sql.SQL("pg_catalog.textin({}({})) as {}").format(sql.Identifier(*output), identifier, identifier)


def import_snapshot(exported: str) -> Statement[None]:
    """For a transaction that is repeatable read: see what the snapshot sees."""
    return SQL["import_snapshot"].compose(exported=sql.Literal(exported))
