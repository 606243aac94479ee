"""What tasks do with a piece of a table: read it at its snapshot, by ADBC into Arrow, and give its rows their shape."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa
from psycopg import sql
from pyspark.sql.types import StructType

from headwater.capture.pieces import import_snapshot
from headwater.errors import ConnectionLost, SourceError
from headwater.postgres.connect import complete, describe
from headwater.postgres.replication.stream import SESSION
from headwater.spark.frame import Chunk, pack
from headwater.spark.shape import Shape
from headwater.spark.sources.envelope import chunk_envelopes
from headwater.spark.sources.loader import PiecePartition
from headwater.spark.sources.options import Options
from headwater.spark.sources.table import chunk_table

_WIRE_SCHEMA = pa.schema([("lane", pa.int32()), ("changes", pa.int64()), ("frame", pa.binary())])
_NO_LANE = -1
# The connection is gone, or the server goes down or is short of something: it may be otherwise soon.
_PASSING = ("08", "53", "57")
# One frame; small enough to be worked on in memory, large enough to be worth the calls.
_CHUNK_BYTES = 8 * 1024 * 1024


def read_piece(partition: PiecePartition, options: Options, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a piece in the shape that was asked for."""
    piece, first = partition.piece, 0
    for batch in _rows(partition, options.url):
        if not batch.num_rows:
            continue
        names = [column.name for column in piece.relation.columns]
        rows = pa.RecordBatch.from_arrays([_plain(column) for column in batch.columns[: len(names)]], names)
        chunk = Chunk(
            partition.attempt,
            piece.number,
            first,
            piece.relation,
            rows,
            piece.own_types,
            partition.lineage,
            partition.until,
            partition.read_at,
        )
        first += batch.num_rows
        if options.shape is Shape.WIRE:
            yield pa.RecordBatch.from_arrays(
                [pa.array([_NO_LANE], pa.int32()), pa.array([rows.num_rows]), pa.array([pack(chunk)], pa.binary())],
                schema=_WIRE_SCHEMA,
            )
        elif options.shape is Shape.ENVELOPE:
            yield chunk_envelopes(chunk, options.protection)
        else:
            yield chunk_table(chunk, schema)


def _plain(column: pa.Array) -> pa.Array:
    return column if column.type == pa.string() else column.cast(pa.string())


def _rows(partition: PiecePartition, url: str) -> Iterator[pa.RecordBatch]:
    import adbc_driver_manager
    from adbc_driver_postgresql import StatementOptions, dbapi  # type: ignore[import-untyped] # it has no types

    try:
        with closing(dbapi.connect(complete(url), autocommit=True)) as connection, closing(connection.cursor()) as cursor:
            cursor.adbc_statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(_CHUNK_BYTES)})
            _execute(cursor, "begin transaction isolation level repeatable read, read only")
            _execute(cursor, import_snapshot(partition.exported).query)
            for statement in SESSION:
                _execute(cursor, statement)
            cursor.execute(partition.piece.query)
            yield from cursor.fetch_record_batch()
    except adbc_driver_manager.Error as exc:
        raise _translated(exc, partition, url) from exc


def _execute(cursor: Any, statement: str | sql.Composable) -> None:
    cursor.executescript(statement if isinstance(statement, str) else statement.as_string())


def _translated(error: Any, partition: PiecePartition, url: str) -> SourceError:
    state, table = error.sqlstate or "", partition.piece.relation.table
    said = str(error).strip().splitlines()[0]
    if not state or state.startswith(_PASSING):
        return ConnectionLost(f"reading {table} from PostgreSQL at {describe(url)} broke off: {said}")
    # Its snapshot has gone with the process or the connection that held it; another attempt takes another.
    return ConnectionLost(f"table {table} cannot be read at its snapshot any more ({said}); it is begun anew")
