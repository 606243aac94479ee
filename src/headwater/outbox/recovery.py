"""Which rows of an outbox are read when its slot was lost, and in which parts. Pure SQL; nothing is held open meanwhile.

A row that is visible in one snapshot is visible in every later one, since nobody changes the rows of an outbox before they
are delivered. So the rows between two snapshots can be read at any time, in as many transactions as it takes, and again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import sql

from headwater.model import Snapshot
from headwater.outbox.mapping import MappedTable
from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.outbox", "sql/recovery.sql")

# When a row was written, as text, and its id.
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Cut:
    """The last row of a part, by its key, and how many rows the part has."""

    at: str
    id: str
    rows: int

    @property
    def key(self) -> Key:
        return self.at, self.id


@dataclass(frozen=True, slots=True)
class Gap:
    """What is to be read: what `until` sees, without what `since` sees and without the transactions in `delivered`.

    `before` are earlier readings that were not finished: of what a snapshot sees they had delivered all up to a key. Of a
    table that does not tell transactions, the rows from `since_at` on, whatever snapshots say; and all rows, if there is no
    `until`.
    """

    until: Snapshot | None
    since: Snapshot | None = None
    delivered: tuple[int, ...] = ()
    since_at: str | None = None
    before: tuple[tuple[Snapshot, Key], ...] = ()


def list_cuts(table: MappedTable, gap: Gap, after: Key | None, size: int) -> Statement[Cut]:
    """The parts that are left to be read after a key, of so many rows each."""
    query = SQL["list_cuts"].compose(**_names(table), size=sql.Literal(size), condition=_where(table, gap, after))
    return Statement(query.name, query.query, None, Cut)


def is_foreign(table: MappedTable) -> Statement[bool]:
    """Whether rows that are there have transactions that are not, to be asked within one snapshot."""
    name, xid = sql.Identifier(table.schema, table.name), sql.Identifier(table.columns.xid or "")
    query = SQL["is_foreign"].compose(table=name, xid=xid)
    return Statement(query.name, query.query, None, bool)


def read_part(table: MappedTable, gap: Gap, after: Key | None, last: Key, lane: tuple[int, int] | None) -> str:
    """The query for one lane, (k, n), of a part; its columns are those that messages are made of, as text."""
    condition = sql.SQL(" and ").join([_where(table, gap, after), _compose("up_to", table, last)])
    key = table.columns.key
    lanes = SQL["all_rows"].compose().query
    if lane is not None and key is not None:
        lanes = SQL["lane"].compose(key=sql.Identifier(key), lanes=sql.Literal(lane[1]), lane=sql.Literal(lane[0])).query
    read = SQL["read_part"].compose(
        **_names(table),
        columns=_texts(table.columns.names),
        condition=condition,
        lane=lanes,
    )
    return read.query.as_string()


@dataclass(frozen=True, slots=True)
class Choice:
    """Rows that are to be delivered once more: from a time on, before another, of some topics, or with some ids."""

    since: str | None = None
    until: str | None = None
    topics: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()


def read_again(table: MappedTable, choice: Choice, after: Key | None, size: int) -> str:
    """The query for the next rows of a choice; its columns are those of `read_part`, and the time at the end."""
    at, columns = _at(table), table.columns
    conditions: list[sql.Composable] = [SQL["all_rows"].compose().query]
    if choice.since is not None:
        conditions.append(SQL["since"].compose(at=at, since=_typed(choice.since, "timestamptz")).query)
    if choice.until is not None:
        conditions.append(SQL["before"].compose(at=at, until=_typed(choice.until, "timestamptz")).query)
    if choice.topics:
        topic = sql.Identifier(columns.topic) if columns.topic is not None else sql.Literal(columns.topic_value)
        conditions.append(_is_one_of(topic, choice.topics))
    if choice.ids:
        conditions.append(_is_one_of(sql.Identifier(columns.id), choice.ids))
    if after is not None:
        conditions.append(_compose("after", table, after))
    read = SQL["read_again"].compose(
        **_names(table),
        columns=_texts([*columns.names, columns.created_at or ""]),
        condition=sql.SQL(" and ").join(conditions),
        size=sql.Literal(size),
    )
    return read.query.as_string()


def _is_one_of(column: sql.Composable, values: Sequence[str]) -> sql.Composable:
    return SQL["is_one_of"].compose(column=column, values=sql.Literal(list(values))).query


def _texts(names: Sequence[str]) -> sql.Composable:
    return sql.SQL(", ").join([sql.Composed([sql.Identifier(name), sql.SQL("::text")]) for name in names])


def _where(table: MappedTable, gap: Gap, after: Key | None) -> sql.Composable:
    conditions = [_missing(table, gap), *_unread(table, gap)]
    if after is not None:
        conditions.append(_compose("after", table, after))
    return sql.SQL(" and ").join(conditions)


def _unread(table: MappedTable, gap: Gap) -> Iterator[sql.Composable]:
    """That an earlier reading has not come to it. What it sees has a transaction of this server."""
    if table.columns.xid is None or gap.until is None:
        return
    for snapshot, key in gap.before:
        is_read = _compose("up_to", table, key)
        seen = _typed(str(snapshot), "pg_snapshot")
        yield SQL["unread"].compose(xid=sql.Identifier(table.columns.xid), seen=seen, is_read=is_read).query


def _missing(table: MappedTable, gap: Gap) -> sql.Composable:
    xid = table.columns.xid
    if xid is None:
        if gap.since_at is None:
            return SQL["all_rows"].compose().query
        return SQL["since"].compose(at=_at(table), since=_typed(gap.since_at, "timestamptz")).query
    if gap.until is None:
        return SQL["all_rows"].compose().query
    until, until_snapshot = _typed(str(gap.until), "pg_snapshot"), gap.until
    if gap.since is None:
        return SQL["seen"].compose(xid=sql.Identifier(xid), until=until).query
    since = gap.since
    delivered = [number for number in gap.delivered if not since.sees(number) and until_snapshot.sees(number)]
    return (
        SQL["not_delivered"]
        .compose(
            xid=sql.Identifier(xid),
            oldest=_typed(str(since.xmin), "xid8"),
            until=until,
            since=_typed(str(since), "pg_snapshot"),
            delivered=_typed(_array(delivered), "xid8[]"),
        )
        .query
    )


def _compose(name: str, table: MappedTable, key: Key) -> sql.Composable:
    at, id_ = _typed(key[0], "timestamptz"), _typed(key[1], table.id_type)
    names = ("after_at", "after_id") if name == "after" else ("last_at", "last_id")
    bound = dict(zip(names, (at, id_), strict=True))
    return SQL[name].compose(at=_at(table), id=sql.Identifier(table.columns.id), **bound).query


def _names(table: MappedTable) -> dict[str, sql.Composable]:
    name = sql.Identifier(table.schema, table.name)
    return {"table": name, "at": _at(table), "id": sql.Identifier(table.columns.id)}


def _at(table: MappedTable) -> sql.Identifier:
    return sql.Identifier(table.columns.created_at or "")


def _typed(text: str, type_: str) -> sql.Composable:
    # The type is ours, or as the catalog writes it.
    return sql.SQL("{}::{}").format(sql.Literal(text), sql.SQL(type_))


def _array(numbers: Sequence[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"
