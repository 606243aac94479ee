"""The tables that a publication sends, as the stream describes them, read from the catalog: also those that are quiet."""

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.creek import statements
from headwater.creek.statements import SentTable
from headwater.postgres.catalog import Column, Table, list_columns, list_tables, load_types
from headwater.postgres.connect import Connection
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.postgres.statements import fetch_sync
from headwater.postgres.types import PgType, Types

_FULL, _NOTHING = "f", "n"


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table, and the types of the user's own that its columns have."""

    relation: Relation
    own_types: tuple[PgType, ...]

    @property
    def types(self) -> Types:
        return Types.builtin().extended(self.own_types) if self.own_types else Types.builtin()


def published_tables(connection: Connection, publication: str) -> list[PublishedTable]:
    """Every table that the publication sends, by schema and name; none if there is no such publication."""
    sent = fetch_sync(connection, statements.list_published(publication))
    oids = [one.oid for one in sent]
    columns = list_columns(connection, oids)
    known = {table.oid: table for table in list_tables(connection)}
    foreign = {column.type_oid for column in columns} - set(Types.builtin())
    own = load_types(connection, foreign) if foreign else []
    return [_published(one, columns, known[one.oid], own) for one in sent if one.oid in known]


def _published(one: SentTable, columns: Sequence[Column], table: Table, own: Sequence[PgType]) -> PublishedTable:
    sent = [column for column in columns if column.table_oid == one.oid and column.name in one.columns]
    is_key = {
        column.name: one.identity == _FULL or (one.identity != _NOTHING and column.name in table.identity) for column in sent
    }
    described = (RelationColumn(column.name, is_key[column.name], column.type_oid, column.typmod) for column in sent)
    relation = Relation(one.oid, one.schema, one.name, one.identity, tuple(described))
    return PublishedTable(relation, _needed(relation, own))


def _needed(relation: Relation, known: Sequence[PgType]) -> tuple[PgType, ...]:
    """Those of the types that the columns are of, or that these are made of."""
    by_oid = {type_.oid: type_ for type_ in known}
    needed: dict[int, PgType] = {}
    wanted = [column.type_oid for column in relation.columns]
    while wanted:
        oid = wanted.pop()
        if oid in by_oid and oid not in needed:
            needed[oid] = type_ = by_oid[oid]
            wanted += [type_.element, type_.base, *(field.oid for field in type_.fields)]
    return tuple(needed[oid] for oid in sorted(needed))
