"""What a database holds and what its server is set to: tables, columns, keys, rights, types, settings. Read-only.

Tables are asked for by name as in psql: `orders` is looked up along the search path, `sales.orders` in its schema,
`public.*` stands for many, and `"Order Items"` keeps its case and its blanks.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from headwater.errors import SettingsError, SourceError
from headwater.postgres.connect import Connection
from headwater.postgres.statements import fetch_sync, load
from headwater.postgres.types.registry import Field, Kind, PgType

SQL: Final = load("headwater.postgres", "sql/catalog.sql")

# The letters of pg_class.relkind: ordinary and partitioned tables, views, materialized views, foreign tables.
TableKind: TypeAlias = Literal["r", "p", "v", "m", "f"]
# The letters of pg_class.relreplident: default (the primary key), nothing, full, index.
ReplicaIdentity: TypeAlias = Literal["d", "n", "f", "i"]

_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_$]*")
_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")+)"|(?P<plain>[^\s".]+)')


@dataclass(frozen=True, slots=True)
class Table:
    """A relation with columns: `key` is its primary key, `identity` the columns of the index that names its rows in WAL."""

    oid: int
    schema: str
    name: str
    kind: TableKind
    persistence: Literal["p", "u"]
    replica_identity: ReplicaIdentity
    visible: bool
    ancestors: Sequence[int]
    key: Sequence[str]
    identity: Sequence[str]

    def __str__(self) -> str:
        return f"{_shown(self.schema)}.{_shown(self.name)}"

    @property
    def is_partition(self) -> bool:
        return bool(self.ancestors)

    @property
    def is_capturable(self) -> bool:
        """Whether its changes are in the WAL under its own name: a table, partitioned or not, that is logged."""
        return self.kind in ("r", "p") and self.persistence == "p"

    @property
    def has_identity(self) -> bool:
        """Whether the WAL tells which row an update or a delete hit."""
        return self.replica_identity == "f" or bool(self.identity)


@dataclass(frozen=True, slots=True)
class Column:
    """A column: `generated` is stored, virtual or not at all, `identity` always, by default or not at all."""

    table_oid: int
    attnum: int
    name: str
    type_oid: int
    typmod: int
    type_name: str
    not_null: bool
    generated: Literal["", "s", "v"]
    identity: Literal["", "a", "d"]
    key_position: int | None


@dataclass(frozen=True, slots=True)
class Rights:
    """What the current user may do with a table; `rows_hidden` if row security applies to what the user reads of it."""

    oid: int
    can_use_schema: bool
    can_select: bool
    is_owner: bool
    rows_hidden: bool


@dataclass(frozen=True, slots=True)
class Server:
    """A server's identity and settings as seen by the current user; None stands for no limit, or a setting it lacks."""

    version_number: int
    version: str
    database: str
    in_recovery: bool
    system_identifier: str
    wal_level: str
    max_replication_slots: int
    used_replication_slots: int
    max_wal_senders: int
    used_wal_senders: int
    max_slot_wal_keep_bytes: int | None
    wal_sender_timeout_ms: int
    idle_replication_slot_timeout_seconds: int | None
    user: str
    is_superuser: bool
    can_replicate: bool
    can_create: bool

    @property
    def major(self) -> int:
        return self.version_number // 10000


@dataclass(frozen=True, slots=True)
class Pattern:
    """A table name as a user writes it, which may stand for several tables; without `schema`, those on the search path."""

    text: str
    schema: re.Pattern[str] | None
    name: re.Pattern[str]
    is_wild: bool

    def matches(self, table: Table) -> bool:
        in_schema = table.visible if self.schema is None else self.schema.fullmatch(table.schema) is not None
        return in_schema and self.name.fullmatch(table.name) is not None


@dataclass(frozen=True, slots=True)
class _TypeRow:
    oid: int
    schema: str
    name: str
    kind: str
    element: int
    base: int
    base_typmod: int
    delimiter: str
    field_names: Sequence[str]
    field_types: Sequence[int]
    field_typmods: Sequence[int]


def read_server(connection: Connection) -> Server:
    return fetch_sync(connection, SQL["read_server"].bind(Server))[0]


def is_pooled(connection: Connection) -> bool:
    """Whether something between us and the server shares its connections among clients.

    A client learns a process id when it connects, to cancel statements by. A pooler makes that one up, for it cannot know
    yet which of its connections to the server will serve the next transaction.
    """
    return fetch_sync(connection, SQL["read_backend_pid"].bind(int)) != [connection.info.backend_pid]


def list_tables(connection: Connection) -> list[Table]:
    """All relations with columns, by schema and name, except the system's and temporary ones."""
    return fetch_sync(connection, SQL["list_tables"].bind(Table))


def list_columns(connection: Connection, tables: Iterable[int]) -> list[Column]:
    """The columns of the tables with these oids, by oid and attnum; dropped ones are left out."""
    return fetch_sync(connection, SQL["list_columns"].bind(Column, tables=list(tables)))


def list_rights(connection: Connection, tables: Iterable[int]) -> list[Rights]:
    return fetch_sync(connection, SQL["list_rights"].bind(Rights, tables=list(tables)))


def load_types(connection: Connection, oids: Iterable[int] | None = None) -> list[PgType]:
    """These types and all that they are made of; by default the types of all columns of all tables."""
    rows = fetch_sync(connection, SQL["load_types"].bind(_TypeRow, oids=None if oids is None else list(oids)))
    return [_type(row) for row in rows]


def select_tables(tables: Sequence[Table], patterns: Iterable[str]) -> list[Table]:
    """Those of `tables` that match, each once, by schema and name.

    A wildcard leaves out what cannot be captured (views, unlogged tables) and partitions whose parent it matches too; a
    plain name gives whatever bears it.
    """
    found: dict[int, Table] = {}
    for pattern in map(parse_pattern, patterns):
        matched = [table for table in tables if pattern.matches(table)]
        chosen = _expanded(matched) if pattern.is_wild else matched
        if not chosen:
            raise SourceError(_not_found(pattern, tables))
        found.update((table.oid, table) for table in chosen)
    return sorted(found.values(), key=lambda table: (table.schema, table.name))


def parse_pattern(text: str) -> Pattern:
    """Read a table name, `[schema.]table`; `*` and `?` are wildcards unless quoted, and unquoted letters are lower case."""
    parts = list(_PART.finditer(text))
    if not 1 <= len(parts) <= 2 or ".".join(part[0] for part in parts) != text.strip():
        raise SettingsError(f'not a table name: {text!r}; write table, schema.table, schema.* or "Quoted Name"')
    *schema, name = (_regex(part) for part in parts)
    is_wild = any(set("*?") & set(part["plain"] or "") for part in parts)
    return Pattern(text.strip(), schema[0] if schema else None, name, is_wild)


def leaves_without_identity(tables: Sequence[Table], table: Table) -> list[Table]:
    """The tables that hold a table's rows, itself or its partitions, and have no replica identity of their own."""
    family = [table] if table.kind != "p" else [part for part in tables if table.oid in part.ancestors and part.kind == "r"]
    return [member for member in family if not member.has_identity]


def _expanded(matched: Sequence[Table]) -> list[Table]:
    oids = {table.oid for table in matched}
    return [table for table in matched if table.is_capturable and not oids & set(table.ancestors)]


def _not_found(pattern: Pattern, tables: Sequence[Table]) -> str:
    if pattern.is_wild:
        schemas = ", ".join(dict.fromkeys(table.schema for table in tables)) or "none"
        return f"no table matches {pattern.text}; correct the pattern (schemas with tables: {schemas})"
    near = near_names(pattern, tables)
    hint = f"did you mean {' or '.join(near)}?" if near else "create it, or correct its name and schema"
    return f"table {pattern.text} does not exist; {hint}"


def near_names(pattern: Pattern, tables: Sequence[Table]) -> list[str]:
    """Up to three tables that a mistyped name may have meant: the same name in another schema, then similar ones."""
    wanted = pattern.text.replace('"', "").lower()
    bare = wanted.rpartition(".")[2]
    spellings: dict[str, list[str]] = {}
    for table in sorted(tables, key=lambda table: not table.visible):
        for spelling in (f"{table.schema}.{table.name}", table.name):
            spellings.setdefault(spelling.lower(), []).append(str(table))
    similar = [bare, *difflib.get_close_matches(wanted, spellings), *difflib.get_close_matches(bare, spellings)]
    return list(dict.fromkeys(name for spelling in similar for name in spellings.get(spelling, ())))[:3]


def _regex(part: re.Match[str]) -> re.Pattern[str]:
    if part["quoted"] is not None:
        return re.compile(re.escape(part["quoted"].replace('""', '"')))
    escaped = re.escape(part["plain"].lower())
    return re.compile(escaped.replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _shown(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def _type(row: _TypeRow) -> PgType:
    fields = zip(row.field_names, row.field_types, row.field_typmods, strict=True)
    return PgType(
        oid=row.oid,
        schema=row.schema,
        name=row.name,
        kind=Kind(row.kind),
        element=row.element,
        base=row.base,
        base_typmod=row.base_typmod,
        delimiter=row.delimiter,
        fields=tuple(Field(*field) for field in fields),
    )
