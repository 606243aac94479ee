"""Whether a table can be an outbox by a mapping of its columns, and what can be promised for it. Read-only."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headwater.errors import SettingsError
from headwater.outbox import statements
from headwater.outbox.columns import OutboxColumns
from headwater.outbox.statements import ColumnFacts, TableFacts
from headwater.postgres.catalog import list_tables, parse_pattern, select_tables
from headwater.postgres.connect import Connection
from headwater.postgres.statements import fetch_sync

_NAMES: Final = ("text", "varchar", "bpchar", "name", "citext", "uuid", "int2", "int4", "int8")
# By their names in the catalog; an enum, which has a name of its own, stands for text.
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "id": ("uuid", "text", "varchar", "int4", "int8"),
    "topic": _NAMES,
    "type": _NAMES,
    "key": _NAMES,
    "payload": ("json", "jsonb", "text", "varchar", "bytea"),
    "headers": ("json", "jsonb"),
    "created_at": ("timestamptz",),
}
# Without a value in these there is no message, or it cannot be found again.
_REQUIRED: Final = ("id", "topic", "type", "created_at")
_XID_DEFAULT: Final = "pg_current_xact_id()"


class Recovery(StrEnum):
    """What is delivered after the slot was lost: exactly the rest; or with a guess about clocks; or nothing of it."""

    EXACT = "exact"
    SKEWED = "skewed"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class MappedTable:
    """A table that can be an outbox: `id_type` and `payload_type` as the catalog writes them.

    `has_index` tells whether recovery can read it in order by an index; without one it is sorted as a whole.
    """

    oid: int
    schema: str
    name: str
    columns: OutboxColumns
    id_type: str
    payload_type: str
    recovery: Recovery
    has_index: bool

    @property
    def promise(self) -> str:
        """What becomes of messages when the slot is lost, in a sentence."""
        match self.recovery:
            case Recovery.EXACT:
                return "after the loss of the slot exactly what was not delivered is delivered"
            case Recovery.SKEWED:
                return (
                    "after the loss of the slot rows are delivered by their time, with a skew: some twice, and none is lost "
                    "unless a transaction or a clock was slower than that; a column xid8 would make it exact"
                )
            case Recovery.NONE:
                return (
                    "what was not delivered when the slot is lost, is lost too; columns created_at and xid would prevent it"
                )


def check_mapping(connection: Connection, table: str, columns: OutboxColumns) -> MappedTable:
    """A table as an outbox, with what can be promised; raises SettingsError for the first thing that stands in the way."""
    if columns.xid is not None and columns.created_at is None:
        raise SettingsError(
            "an outbox with a column for the transaction needs one for the time, too, to read its rows in order; map one to "
            "created_at, or leave xid out"
        )
    facts = _find(connection, table)
    shown = f"{facts.schema}.{facts.name}"
    found = {column.name: column for column in fetch_sync(connection, statements.describe_columns(facts.oid))}
    complaint = next(_about_table(facts), None) or next(_about_columns(columns, found), None)
    if complaint is not None:
        raise SettingsError(f"table {shown} cannot be an outbox: {complaint}")
    at = columns.created_at
    return MappedTable(
        oid=facts.oid,
        schema=facts.schema,
        name=facts.name,
        columns=columns,
        id_type=found[columns.id].declared,
        payload_type=found[columns.payload].base,
        recovery=_recovery(columns),
        has_index=at is not None and fetch_sync(connection, statements.has_index_by_time(facts.oid, at))[0],
    )


def _find(connection: Connection, table: str) -> TableFacts:
    if parse_pattern(table).is_wild:
        raise SettingsError(f"an outbox is one table, and {table} may be many; write its name without * and ?")
    found = select_tables(list_tables(connection), [table])
    return fetch_sync(connection, statements.describe_table(found[0].oid))[0]


def _recovery(columns: OutboxColumns) -> Recovery:
    if columns.created_at is None:
        return Recovery.NONE
    return Recovery.EXACT if columns.xid is not None else Recovery.SKEWED


def _about_table(facts: TableFacts) -> Iterator[str]:
    if facts.kind not in ("r", "p"):
        kind = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}.get(facts.kind, "no table")
        yield f"it is {kind}, and only tables have inserts in the WAL; name the table behind it"
    if facts.persistence != "p":
        yield "it is unlogged, so that its inserts are not in the WAL; run `alter table ... set logged`"
    if facts.is_partition:
        yield "it is a partition; name the table that it belongs to"
    if not facts.can_select:
        yield "this role may not read it, which recovery has to; grant it usage of the schema, and select"
    if facts.rows_hidden:
        yield "row security hides rows of it from this role, and recovery would lose them; give the role bypassrls"


def _about_columns(columns: OutboxColumns, found: Mapping[str, ColumnFacts]) -> Iterator[str]:
    mapped = [*columns.parts(), *([("xid", columns.xid)] if columns.xid is not None else [])]
    missing = [name for _, name in mapped if name not in found]
    if missing:
        yield f"it has no column {' and no column '.join(missing)}; correct the mapping (it has {', '.join(found)})"
        return
    for part, name in mapped:
        column = found[name]
        if column.generated:
            yield f"column {name} is generated, and the WAL does not have it; map a stored column to {part}"
        if part == "xid":
            yield from _about_xid(column)
            continue
        # Any type has a text, which is what a header is.
        allowed = _TYPES.get(part, (column.base,))
        if column.base not in allowed and not (column.kind == "e" and allowed is _NAMES):
            yield f"column {name} is of type {column.declared}, and {part} has to be one of {', '.join(allowed)}"
        if part in _REQUIRED and not column.not_null:
            yield f"column {name} may be null, and every message needs its {part}; set the column not null"


def _about_xid(column: ColumnFacts) -> Iterator[str]:
    filled = (column.filled_with or "").removeprefix("pg_catalog.")
    if column.base != "xid8" or not column.not_null or filled != _XID_DEFAULT:
        yield (
            f"column {column.name} does not tell the transaction for certain; it has to be "
            f"`xid8 not null default {_XID_DEFAULT}`, which no writer sets"
        )
