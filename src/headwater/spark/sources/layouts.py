"""How the columns of tables are numbered, which outlasts their names: read from the catalog when a table is described.

A Relation message has no numbers, and the catalog may have moved on since it was written. So what the catalog says is only
taken for a message that it matches, and that no later transaction has touched a column since, as far as ids of transactions
tell. Whoever gets no layout goes by names.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import numpy as np

from headwater.capture.tables import Name
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.batch import Batch, tags_of
from headwater.postgres.replication.cut import big_endian
from headwater.postgres.replication.messages import Relation
from headwater.postgres.replication.pgoutput import parse_relation
from headwater.postgres.statements import Statement, execute_sync, fetch_sync, load
from headwater.spark.frame import Layout, LayoutColumn

SQL: Final = load("headwater.capture", "sql/layouts.sql")

# Where a Begin message has the id of its transaction.
_XID_AT = 17
_XIDS, _HALF = 2**32, 2**31


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table with all of its columns, as the catalog has it now."""

    oid: int
    schema: str
    name: str
    files: str
    key: Sequence[str]
    numbers: Sequence[int]
    names: Sequence[str]
    type_oids: Sequence[int]
    typmods: Sequence[int]
    type_names: Sequence[str]
    missing: Sequence[str | None]
    has_missing: Sequence[bool]
    has_default: Sequence[bool]
    not_null: Sequence[bool]
    is_generated: Sequence[bool]
    newest_xid: int

    @property
    def layout(self) -> Layout:
        """With all columns that are not generated."""
        return self._layout([at for at, is_generated in enumerate(self.is_generated) if not is_generated])

    def layout_of(self, relation: Relation) -> Layout | None:
        """With the columns that a message has; None if it describes another table."""
        places = {name: at for at, name in enumerate(self.names)}
        if not all(column.name in places for column in relation.columns):
            return None
        found = self._layout([places[column.name] for column in relation.columns])
        return found if found.describes(relation) else None

    def _layout(self, places: Sequence[int]) -> Layout:
        columns = tuple(
            LayoutColumn(
                self.numbers[at],
                self.names[at],
                self.type_oids[at],
                self.typmods[at],
                self.type_names[at],
                self.missing[at] if self.has_missing[at] else None,
                self.has_missing[at],
                self.has_default[at],
                self.not_null[at],
            )
            for at in places
        )
        others = sorted(set(self.numbers) - {column.number for column in columns})
        return Layout(self.oid, columns, tuple(self.key), self.files, tuple(others))


@dataclass(frozen=True, slots=True)
class _Read:
    """A layout, and the last transaction that touched one of its columns."""

    layout: Layout
    newest_xid: int

    def layout_at(self, xids: Iterable[int]) -> Layout:
        """What it tells of changes that some transactions have made."""
        return self.layout if all(map(self._is_as_of, xids)) else _weakened(self.layout)

    def _is_as_of(self, xid: int) -> bool:
        """Whether no later transaction than this one has touched a column, as far as ids tell."""
        return not self.newest_xid or (xid - self.newest_xid) % _XIDS < _HALF


class Layouts:
    """Answers for the batches of a range with the layouts of their tables, as far as they are known.

    A server describes a table again whenever it may have changed, and then the catalog is read again.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._read: dict[bytes, _Read | None] = {}

    def of(self, batches: Iterable[Batch]) -> list[tuple[Relation, Layout]]:
        described: dict[bytes, list[int]] = {}
        again: set[bytes] = set()
        for batch in batches:
            for message, xid, is_new in _described(batch):
                described.setdefault(message, []).append(xid)
                if is_new or message not in self._read:
                    again.add(message)
        if again:
            self._look(again)
        found = ((parse_relation(message), self._read[message], xids) for message, xids in described.items())
        return [(relation, read.layout_at(xids)) for relation, read, xids in found if read is not None]

    def _look(self, messages: Iterable[bytes]) -> None:
        relations = {message: parse_relation(message) for message in messages}
        tables = {table.oid: table for table in read_catalog(self._url, {one.oid for one in relations.values()}, ())}
        for message, relation in relations.items():
            table = tables.get(relation.oid)
            layout = None if table is None else table.layout_of(relation)
            self._read[message] = None if table is None or layout is None else _Read(layout, table.newest_xid)


def read_catalog(url: str, oids: Iterable[int], tables: Iterable[Name]) -> list[CatalogTable]:
    """Those of some tables, by oid or by name, that are there."""
    with translated(url), closing(connect_sync(url)) as connection:
        execute_sync(connection, SQL["set_layout_reading"].compose())
        return fetch_sync(connection, _list_layouts(list(oids), list(tables)))


def read_layouts(url: str, tables: Iterable[Name]) -> Mapping[Name, Layout]:
    """The layouts of some tables as they are now, by schema and name."""
    return {(table.schema, table.name): table.layout for table in read_catalog(url, (), tables)}


def _weakened(layout: Layout) -> Layout:
    """What holds of a layout whatever has happened since: that a column may be NULL harms nobody who hears of it early."""
    columns = (LayoutColumn(None, c.name, c.type_oid, c.typmod, c.type_name, not_null=c.not_null) for c in layout.columns)
    return Layout(layout.oid, tuple(columns))


def _list_layouts(oids: Sequence[int], tables: Sequence[Name]) -> Statement[CatalogTable]:
    schemas, names = [schema for schema, _ in tables], [name for _, name in tables]
    return SQL["list_layouts"].bind(CatalogTable, oids=oids, schemas=schemas, names=names)


def _described(batch: Batch) -> Iterator[tuple[bytes, int, bool]]:
    """The tables of a batch as they are described, each with the id of the transaction that is first to know it so.

    The last says whether the description is part of the batch, and not from before.
    """
    tags = tags_of(batch.data, batch.bounds)
    begins = np.flatnonzero(tags == ord("B"))
    xids = big_endian(batch.data, batch.bounds[begins] + _XID_AT, 4).tolist()
    lead = batch.begin.xid if batch.begin is not None else (xids[0] if xids else 0)
    for message in batch.relations.values():
        yield message, lead, False
    for at in np.flatnonzero(tags == ord("R")).tolist():
        number = int(np.searchsorted(begins, at)) - 1
        yield b"R" + bytes(batch.message(at)[1 + batch.xid_bytes :]), lead if number < 0 else xids[number], True
