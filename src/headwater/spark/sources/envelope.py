"""Frames to the columns of `changes`: any table's rows, with key, old and new row as JSON objects."""

from collections import deque
from collections.abc import Iterator, Sequence
from json.encoder import encode_basestring

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import DecodeError, SettingsError
from headwater.model import Op
from headwater.postgres.replication.batch import Batch, misfit
from headwater.postgres.replication.columnar import Group, Ints, as_sent, decode_columns
from headwater.postgres.replication.messages import Relation
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Types, to_json, to_json_column
from headwater.spark.frame import Chunk
from headwater.spark.sources.protect import Protection

SCHEMA = pa.schema(
    [
        ("commit_lsn", pa.int64()),
        ("ordinal", pa.int32()),
        ("xid", pa.int64()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        ("op", pa.string()),
        ("schema", pa.string()),
        ("table", pa.string()),
        ("key", pa.string()),
        ("before", pa.string()),
        ("after", pa.string()),
        ("unchanged", pa.list_(pa.field("element", pa.string()))),
    ]
)
_OPS = {"I": Op.INSERT, "U": Op.UPDATE, "D": Op.DELETE, "T": Op.TRUNCATE}


def to_envelopes(batch: Batch, types: Types, protection: Protection) -> pa.RecordBatch:
    """The row changes of a batch, one row each, in the order of the stream."""
    try:
        groups = decode_columns(batch, types, as_sent)
        return in_order([part for group in groups for part in _envelopes(group, types, protection)], SCHEMA)
    except DecodeError:
        # Columns do not tell which change it was. The row decoder refuses the same one, and names its place.
        deque(decode_rows(batch, types, to_json), maxlen=0)
        raise


def chunk_envelopes(chunk: Chunk, protection: Protection) -> pa.RecordBatch:
    """The rows of a table that was read as a whole, as changes that say what was there."""
    relation, count = chunk.relation, chunk.rows.num_rows
    after = _fragments(relation, chunk.rows, chunk.types, protection)
    keys = [column.name for column in relation.columns if column.key]
    key = {name: after[name] for name in keys} if after is not None and keys else None
    arrays = [
        pa.repeat(pa.scalar(int(chunk.until)), count),
        pa.array(np.arange(chunk.first_row, chunk.first_row + count), pa.int32()),
        pa.nulls(count, pa.int64()),
        pa.repeat(pa.scalar(chunk.read_at, pa.timestamp("us", tz="UTC")), count),
        _constant(Op.READ.value, count),
        _constant(relation.schema, count),
        _constant(relation.name, count),
        _objects(key, count),
        pa.nulls(count, pa.string()),
        _objects(after, count),
        unchanged_lists([], count),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def in_order(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of several groups as one batch, by their position, which the columns named like this give."""
    if len(parts) == 1:
        return parts[0]
    whole = pa.Table.from_batches(parts, schema).combine_chunks()
    lsn, ordinal = (name for name in schema.names if name.removeprefix("_") in ("commit_lsn", "ordinal"))
    order = np.lexsort((whole[ordinal].to_numpy(), whole[lsn].to_numpy()))
    return whole.take(pa.array(order)).combine_chunks().to_batches()[0]


def _envelopes(group: Group, types: Types, protection: Protection) -> Iterator[pa.RecordBatch]:
    """The rows of a group; those that have other columns unchanged make a part of their own."""
    for names, rows in by_unchanged(group):
        index = pa.array(rows)
        before = _fragments(group.relation, _taken(group.before, index), types, protection)
        after = _fragments(group.relation, _taken(group.after, index), types, protection)
        after = None if after is None else {name: array for name, array in after.items() if name not in names}
        yield _part(group, rows, before, after, names)


def by_unchanged(group: Group) -> Iterator[tuple[list[str], Ints]]:
    """The rows of a group by which columns the server left out of them."""
    rows = np.arange(len(group))
    marked = [name for name, mask in group.unchanged.items() if mask.any()]
    if not marked:
        yield [], rows
        return
    masks = np.stack([group.unchanged[name] for name in marked])
    patterns, which = np.unique(masks, axis=1, return_inverse=True)
    for number, pattern in enumerate(patterns.T):
        yield (
            [name for name, is_unchanged in zip(marked, pattern, strict=True) if is_unchanged],
            rows[which.ravel() == number],
        )


def _part(
    group: Group,
    rows: Ints,
    before: dict[str, pa.StringArray] | None,
    after: dict[str, pa.StringArray] | None,
    unchanged: list[str],
) -> pa.RecordBatch:
    relation, places, count = group.relation, group.places.at(rows), len(rows)
    keys = [column.name for column in relation.columns if column.key]
    source = after if before is None else before
    key = None if source is None or not keys else {name: source[name] for name in keys if name in source}
    ops = np.where(group.key_changed[rows], Op.UPDATE_KEY.value, _OPS[group.tag].value)
    arrays = [
        pa.array(places.commit_lsn),
        pa.array(places.ordinal, pa.int32()),
        pa.array(places.xid),
        pa.array(places.committed_at, pa.timestamp("us", tz="UTC")),
        pa.array(ops, pa.string()),
        _constant(relation.schema, count),
        _constant(relation.name, count),
        _objects(key, count),
        _objects(before, count),
        _objects(after, count),
        unchanged_lists(unchanged, count),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def unchanged_lists(names: list[str], count: int) -> pa.ListArray:
    """The same list of names for each of so many rows."""
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * len(names))
    return pa.ListArray.from_arrays(offsets, pa.array(names * count, pa.string()), type=SCHEMA.field("unchanged").type)


def _constant(text: str, count: int) -> pa.StringArray:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _taken(rows: pa.RecordBatch | None, index: pa.Array) -> pa.RecordBatch | None:
    return rows if rows is None or len(index) == rows.num_rows else rows.take(index)


def _fragments(
    relation: Relation, rows: pa.RecordBatch | None, types: Types, protection: Protection
) -> dict[str, pa.StringArray] | None:
    if rows is None:
        return None
    found = {}
    for column in relation.columns:
        if column.name in rows.schema.names:
            name = f"{relation.table}.{column.name}"
            texts = protection.apply(rows[column.name], name)
            try:
                found[column.name] = to_json_column(texts, types, column.type_oid)
            except DecodeError as error:
                if protection.covers(name):
                    raise SettingsError(
                        f"column {name} is not of a type that holds text, so it cannot be masked or hashed; name one that "
                        "is, or change the value by SQL of your own"
                    ) from error
                raise misfit(error, relation, column.name) from error
    return found


def _objects(columns: dict[str, pa.StringArray] | None, count: int) -> pa.StringArray:
    """A JSON object for each row, with all columns of it."""
    if columns is None:
        return pa.nulls(count, pa.string())
    parts: list[object] = []
    for number, (name, fragments) in enumerate(columns.items()):
        parts += [f"{',' if number else '{'}{encode_basestring(name)}:", fragments]
    if not parts:
        return _constant("{}", count)
    return pc.binary_join_element_wise(*parts, "}", "", null_handling="replace", null_replacement="null")
