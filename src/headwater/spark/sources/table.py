"""Frames to one table's own typed columns, with what happened to the row beside them."""

from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from headwater.errors import DecodeError, SettingsError
from headwater.model import Lsn, Op
from headwater.postgres.catalog import list_columns, list_tables, load_types, select_tables
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.columnar import Group, decode_columns
from headwater.postgres.replication.messages import Relation
from headwater.postgres.types import Types
from headwater.spark.columns import spark_type, to_spark
from headwater.spark.frame import Chunk
from headwater.spark.sources.envelope import by_unchanged, in_order, unchanged_lists
from headwater.spark.sources.native import straightened

_OPS = {"I": Op.INSERT, "U": Op.UPDATE, "D": Op.DELETE, "T": Op.TRUNCATE}
_PLACE = pa.schema(
    [
        ("_op", pa.string()),
        ("_commit_lsn", pa.int64()),
        ("_ordinal", pa.int32()),
        ("_committed_at", pa.timestamp("us", tz="UTC")),
        ("_unchanged", pa.list_(pa.field("element", pa.string()))),
    ]
)


def table_schema(url: str, table: str) -> StructType:
    """The columns of a table as it is now, and those that tell what happened."""
    with translated(url), closing(connect_sync(url)) as connection:
        found = select_tables(list_tables(connection), [table])
        if len(found) != 1:
            raise SettingsError(f"shape `table` reads one table, and {table!r} stands for {len(found)}; name one")
        columns = list_columns(connection, [found[0].oid])
        types = Types.builtin().extended(load_types(connection, {column.type_oid for column in columns}))
    for column in columns:
        if column.name in _PLACE.names:
            raise SettingsError(
                f"column {column.name!r} of {table} has the name of one of ours; read it with shape `envelope`"
            )
    fields = [(column.name, spark_type(types, column.type_oid, column.typmod)) for column in columns]
    return from_arrow_schema(pa.schema([*fields, *_PLACE]))


def to_table(batch: Batch, types: Types, schema: StructType) -> pa.RecordBatch:
    """The row changes of a batch, all to the same table, in the order of the stream."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    parts = [part for group in decode_columns(batch, types, to_spark) for part in _parts(group, wanted)]
    return in_order(parts, wanted)


def chunk_table(chunk: Chunk, schema: StructType) -> pa.RecordBatch:
    """The rows of the table that was read as a whole; columns may be typed already, and the others are text."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    relation, count = chunk.relation, chunk.rows.num_rows
    typed = {}
    for column in relation.columns:
        values = chunk.rows[column.name]
        if pa.types.is_string(values.type):
            typed[column.name], rejected = to_spark(values, chunk.types, column.type_oid, column.typmod)
        else:
            typed[column.name], rejected = straightened(values)
        for row in rejected:
            raise _no_room(relation, column.name, str(values[row]), chunk.until)
    rows = pa.RecordBatch.from_pydict(typed)
    ours = [
        pa.repeat(pa.scalar(Op.READ.value), count),
        pa.repeat(pa.scalar(int(chunk.until)), count),
        pa.array(np.arange(chunk.first_row, chunk.first_row + count), pa.int32()),
        pa.repeat(pa.scalar(chunk.read_at, pa.timestamp("us", tz="UTC")), count),
        unchanged_lists([], count),
    ]
    columns = [_column(rows, field, count, relation) for field in wanted if field.name not in _PLACE.names]
    return pa.RecordBatch.from_arrays([*columns, *ours], schema=wanted)


def _no_room(relation: Relation, column: str, text: str, lsn: int) -> DecodeError:
    return DecodeError(
        f"column {column!r} of {relation.table} has a value that its type in Spark cannot hold ({text[:40]!r}); read the "
        "table with shape `envelope`, whose JSON holds every value",
        lsn=Lsn(lsn),
    )


def _parts(group: Group, wanted: pa.Schema) -> list[pa.RecordBatch]:
    for value in group.rejected:
        raise _no_room(group.relation, value.column, value.text, int(group.places.commit_lsn[value.row]))
    rows = group.after if group.after is not None else group.before
    return [_part(group, index, names, rows, wanted) for names, index in by_unchanged(group)]


def _part(
    group: Group,
    index: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    unchanged: list[str],
    rows: pa.RecordBatch | None,
    wanted: pa.Schema,
) -> pa.RecordBatch:
    places, count = group.places.at(index), len(index)
    ops = np.where(group.key_changed[index], Op.UPDATE_KEY.value, _OPS[group.tag].value)
    ours = [
        pa.array(ops, pa.string()),
        pa.array(places.commit_lsn),
        pa.array(places.ordinal, pa.int32()),
        pa.array(places.committed_at, pa.timestamp("us", tz="UTC")),
        unchanged_lists(unchanged, count),
    ]
    taken = rows if rows is None or count == rows.num_rows else rows.take(pa.array(index))
    columns = [_column(taken, field, count, group.relation) for field in wanted if field.name not in _PLACE.names]
    return pa.RecordBatch.from_arrays([*columns, *ours], schema=wanted)


def _column(rows: pa.RecordBatch | None, field: pa.Field, count: int, relation: Relation) -> pa.Array:
    """A column as the stream declared it; NULL if the table did not have it then."""
    if rows is None or field.name not in rows.schema.names:
        return pa.nulls(count, field.type)
    array = rows[field.name]
    if array.type == field.type:
        return array
    try:
        return pc.cast(array, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise DecodeError(
            f"column {field.name!r} of {relation.table} is {array.type} now, and was {field.type} when the stream was "
            "started; start the query again to read it with its new type"
        ) from exc
