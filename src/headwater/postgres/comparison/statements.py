"""The statements of a comparison, typed, and how a row, a key and a bucket are written in SQL.

A row's hash is made of the hashes of its columns, each with the number of the column as its seed, so that it depends on what
stands in which column, on neither the order of the columns nor a collation, and tells NULL from every text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from psycopg import sql

from headwater.model import Lsn
from headwater.postgres.catalog import Column
from headwater.postgres.comparison.layout import Layout, Relation
from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.postgres", "sql/comparison.sql")

# A difference leads to the rows of its bucket, so there should be few; but with 65,536 buckets a sum takes twice as long as
# with 1,024, since they do not fit the caches of a processor.
_ROWS_IN_BUCKET: Final = 512
_LEAST_BUCKETS: Final = 1024
_MOST_BUCKETS: Final = 65536

_SHOWN_CHARACTERS: Final = 200
# What a server is born with; of other types somebody may have made a cast to text that leaves something out.
_FIRST_OWN_OID: Final = 16384
# bool, "char", cidr, inet, character: their cast to text gives another text than they are sent as.
_UNLIKE_THEIR_TEXT: Final = frozenset({16, 18, 650, 869, 1042})
_PLAIN_TEXT: Final = frozenset({25, 1043})


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a snapshot stands, and the encoding of its server."""

    at: datetime
    lsn: Lsn
    encoding: str


def set_session() -> Statement[None]:
    return SQL["set_session"].compose()


def lift_transaction_timeout() -> Statement[str]:
    return SQL["lift_transaction_timeout"].bind(str)


def begin_snapshot() -> Statement[None]:
    return SQL["begin_snapshot"].compose()


def end_snapshot() -> Statement[None]:
    return SQL["end_snapshot"].compose()


def read_moment() -> Statement[Moment]:
    return SQL["read_moment"].bind(Moment)


def estimate_rows(table: int) -> Statement[int]:
    return SQL["estimate_rows"].bind(int, table=table)


def choose_buckets(estimated_rows: int) -> int:
    """How many buckets: a power of two, so that there are some hundred rows in each."""
    wanted = 1 << max(estimated_rows // _ROWS_IN_BUCKET, 1).bit_length() - 1
    return min(max(wanted, _LEAST_BUCKETS), _MOST_BUCKETS)


class TableStatements:
    """The statements for one side of a table; the rows are left as tuples, for there may be many.

    `alike` are the columns of the key that have the same type on both sides. With `recodes` the servers have different
    encodings, and texts are hashed by what they are in UTF-8.
    """

    def __init__(self, relation: Relation, layout: Layout, *, buckets: int, alike: frozenset[str], recodes: bool) -> None:
        self._relation, self._layout, self._alike = relation, layout, alike
        # Rows of tables that inherit from this one are rows of theirs; a partitioned table has none but those of others.
        only = sql.SQL("only {}" if relation.table.kind == "r" else "{}")
        self._table = only.format(sql.Identifier(relation.table.schema, relation.table.name))
        hashed: Callable[[sql.Composable], sql.Composable] = _recoded if recodes else lambda text: text
        self._hash = _row_hash([hashed(self._text(name)) for name in layout.columns])
        key = [self._text(name) for name in layout.key]
        self._key = key or [sql.SQL("({})::text").format(self._hash)]
        spread = _key_hash([hashed(text) for text in key]) if key else self._hash
        self._bucket = sql.SQL("({}) & {}").format(spread, sql.Literal(buckets - 1))

    def digest_rows(self) -> Statement[None]:
        """Rows: bucket, rows in it, their sum."""
        return SQL["digest_rows"].compose(bucket=self._bucket, hash=self._hash, table=self._table)

    def read_entries(self, buckets: Sequence[int]) -> Statement[None]:
        """Rows: the texts of the key, the hash of the row; the key of a row in a table without one is its hash."""
        order = _listed([sql.SQL("convert_to({}, 'UTF8')").format(text) for text in self._key])
        parts = {**self._entry, "bucket": sql.SQL("({})").format(self._bucket), "order": order}
        return SQL["read_entries"].compose(**parts, buckets=_bigints(buckets))

    def find_entries(self, keys: Sequence[Sequence[str | None]]) -> Statement[None]:
        """Rows as of `read_entries`, those with one of the keys."""
        if not self._layout.key:
            return SQL["find_by_hash"].compose(**self._entry, hashes=_hashes(keys))
        return SQL["find_entries"].compose(**self._entry, **self._wanted(keys))

    def find_texts(self, keys: Sequence[Sequence[str | None]]) -> Statement[None]:
        """Rows: the texts of the key, those of all columns; of a table without a key, one text of the whole row."""
        if not self._layout.key:
            row = sql.SQL("row({})").format(_listed([sql.Identifier(name) for name in self._layout.columns]))
            parts = {**self._entry, "row": row, "length": sql.Literal(_SHOWN_CHARACTERS)}
            return SQL["show_by_hash"].compose(**parts, hashes=_hashes(keys))
        texts = [sql.SQL("row({})::text").format(sql.Identifier(name)) for name in self._layout.columns]
        parts = {"key": _listed(self._key), "table": self._table, "texts": _listed(texts)}
        return SQL["find_columns"].compose(**parts, **self._wanted(keys))

    @property
    def _entry(self) -> dict[str, sql.Composable]:
        return {"key": _listed(self._key), "hash": self._hash, "table": self._table}

    def _text(self, name: str) -> sql.Composable:
        return _text(self._relation.column(name))

    def _wanted(self, keys: Sequence[Sequence[str | None]]) -> dict[str, sql.Composable]:
        """Which keys are wanted: by the column itself if its type is the same on the other side, else by its text."""
        numbers, names = range(len(self._layout.key)), self._layout.key
        wanted = [sql.Identifier("wanted", f"k{number}") for number in numbers]
        columns = [sql.Identifier(name) if name in self._alike else self._text(name) for name in names]
        values = [
            sql.SQL("{}::{}").format(wanted[number], _type(self._relation.column(name)))
            if name in self._alike
            else wanted[number]
            for number, name in enumerate(names)
        ]
        arrays = [sql.SQL("{}::text[]").format(sql.Literal([key[number] for key in keys])) for number in numbers]
        listed = [sql.Identifier(f"k{number}") for number in numbers]
        return {
            "columns": _listed(columns),
            "values": _listed(values),
            "arrays": _listed(arrays),
            "names": _listed(listed),
        }


def _text(column: Column) -> sql.Composable:
    """A value as the server sends it, and NULL as NULL."""
    name = sql.Identifier(column.name)
    if column.type_oid in _PLAIN_TEXT:
        return name
    if column.type_oid < _FIRST_OWN_OID and column.type_oid not in _UNLIKE_THEIR_TEXT:
        return sql.SQL("{}::text").format(name)
    # Not `is not null`, which a composite value with a NULL in it is not either.
    return sql.SQL("case when {} is distinct from null then concat({}) end").format(name, name)


def _recoded(text: sql.Composable) -> sql.Composable:
    return sql.SQL("encode(convert_to({}, 'UTF8'), 'base64')").format(text)


def _row_hash(texts: Sequence[sql.Composable]) -> sql.Composable:
    """Hashes of columns joined so that two rows with values exchanged between them do not add up to the same."""
    one = sql.SQL('coalesce(hashtextextended({} collate "C", {}), {})')
    columns = [one.format(_inner(text), sql.Literal(n), sql.Literal(n)) for n, text in enumerate(texts, start=1)]
    return sql.SQL("hashint8extended({}, 0)").format(sql.SQL(" # ").join(columns))


def _key_hash(texts: Sequence[sql.Composable]) -> sql.Composable:
    one = sql.SQL('coalesce(hashtextextended({} collate "C", {}), 0)')
    return sql.SQL(" # ").join([one.format(_inner(text), sql.Literal(n)) for n, text in enumerate(texts)])


def _inner(text: sql.Composable) -> sql.Composed:
    return sql.SQL("({})").format(text)


def _hashes(keys: Sequence[Sequence[str | None]]) -> sql.Composable:
    return _bigints([int(key[0] or 0) for key in keys])


def _bigints(numbers: Sequence[int]) -> sql.Composable:
    return sql.SQL("{}::bigint[]").format(sql.Literal(list(numbers)))


def _listed(parts: Sequence[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def _type(column: Column) -> sql.SQL:
    # As the catalog's format_type wrote it, which quotes what needs quotes.
    return sql.SQL(cast("Any", column.type_name))
