"""SQL from `.sql` files, bound to named parameters and a row type: the only way by which SQL reaches a connection.

A file holds blocks that begin with `-- name: claim_jobs`. The default schema `headwater` is written out in the file and
swapped for a configured one when it is loaded. `bind` makes a `Statement`; the executors below run it, sync or async, on
whatever connection the caller has, inside the caller's own transaction.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib.resources import files
from types import NoneType
from typing import Any, Generic, TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.pq import Escaping
from psycopg.rows import BaseRowFactory, class_row, scalar_row

DEFAULT_SCHEMA = "headwater"

Row = TypeVar("Row")

_BLOCK = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_PARAMETER = re.compile(r"%\((\w+)\)[sb]")


@dataclass(frozen=True, slots=True)
class Statement(Generic[Row]):
    """A statement that is ready to run: its text, its parameters, and what a row of its result becomes."""

    name: str
    query: sql.SQL | sql.Composed
    parameters: Mapping[str, object] | None
    row: type[Row]

    @property
    def row_factory(self) -> BaseRowFactory[Row]:
        return class_row(self.row) if is_dataclass(self.row) else cast("BaseRowFactory[Row]", scalar_row)


@dataclass(frozen=True, slots=True)
class Query:
    """A named block of a `.sql` file."""

    name: str
    text: str

    def bind(self, row: type[Row], **parameters: object) -> Statement[Row]:
        """A statement whose rows become `row`: a dataclass by column name, any other type by its only column."""
        wanted, query = _prepared(self.text)
        if wanted != parameters.keys():
            raise TypeError(f"statement {self.name} takes {sorted(wanted)}, not {sorted(parameters)}")
        return Statement(self.name, query, parameters, row)

    def compose(self, **parts: sql.Composable) -> Statement[None]:
        """A statement that takes no parameters, such as DDL: its `{names}` are filled with identifiers and literals."""
        # Without parameters psycopg leaves every % alone, so that it may stand in an identifier.
        return Statement(self.name, sql.SQL(cast("Any", self.text)).format(**parts), None, NoneType)


def load(package: str, file: str = "sql/queries.sql", *, schema: str = DEFAULT_SCHEMA) -> Mapping[str, Query]:
    """The queries of a packaged file by name."""
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    return parse(text, schema=schema)


def parse(text: str, *, schema: str = DEFAULT_SCHEMA) -> Mapping[str, Query]:
    """The queries of a file's text by name."""
    parts = _BLOCK.split(with_schema(text, schema))
    return {name: Query(name, body.strip().rstrip(";")) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def with_schema(text: str, schema: str) -> str:
    """The text with the schema `headwater`, wherever it qualifies a name, replaced by a configured one."""
    if schema == DEFAULT_SCHEMA:
        return text
    quoted = '"' + schema.replace('"', '""').replace("%", "%%") + '"'
    return re.sub(rf"\b{DEFAULT_SCHEMA}(?=\.\w)|(?<=schema ){DEFAULT_SCHEMA}\b", lambda _: quoted, text)


@cache
def _prepared(text: str) -> tuple[frozenset[str], sql.SQL]:
    # The text comes from a packaged file, never from a user, which is what LiteralString stands for.
    return frozenset(_PARAMETER.findall(text)), sql.SQL(cast("Any", text))


def written_out(connection: psycopg.BaseConnection[Any], statement: Statement[Any]) -> bytes:
    """The text with its parameters, all of them texts or null, as literals: a message of several statements takes no others.

    psycopg's client-side cursor does the same for values of all types, at four times the cost.
    """
    assert isinstance(statement.query, sql.SQL) and statement.parameters is not None
    parts, escaping = list(_parts(statement.query.as_string())), Escaping(connection.pgconn)
    for place in range(1, len(parts), 2):
        value = statement.parameters[parts[place].decode()]
        parts[place] = b"null" if value is None else escaping.escape_literal(str(value).encode())
    return b"".join(parts)


@cache
def _parts(text: str) -> tuple[bytes, ...]:
    """What is between the parameters of a text, and in between the names of the parameters."""
    return tuple(part.encode() for part in _PARAMETER.split(text))


def fetch_sync(connection: psycopg.Connection[Any], statement: Statement[Row]) -> list[Row]:
    """Run a statement and return its rows."""
    with connection.cursor(row_factory=statement.row_factory) as cursor:
        return cursor.execute(statement.query, statement.parameters).fetchall()


def execute_sync(connection: psycopg.Connection[Any], statement: Statement[Any]) -> int:
    """Run a statement and return how many rows it touched."""
    return connection.execute(statement.query, statement.parameters).rowcount


async def fetch(connection: psycopg.AsyncConnection[Any], statement: Statement[Row]) -> list[Row]:
    """Run a statement and return its rows."""
    async with connection.cursor(row_factory=statement.row_factory) as cursor:
        return await (await cursor.execute(statement.query, statement.parameters)).fetchall()


async def execute(connection: psycopg.AsyncConnection[Any], statement: Statement[Any]) -> int:
    """Run a statement and return how many rows it touched."""
    return (await connection.execute(statement.query, statement.parameters)).rowcount
