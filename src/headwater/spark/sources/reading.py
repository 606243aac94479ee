"""What tasks do with a piece of a table: read it at its snapshot, by ADBC into Arrow, and give its rows their shape."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.capture.tables import TableStore
from headwater.errors import ConnectionLost, SourceError
from headwater.postgres.connect import describe
from headwater.spark.frame import Chunk, pack
from headwater.spark.shape import Shape
from headwater.spark.sources.adbc import ReadFailed, rows_at
from headwater.spark.sources.envelope import chunk_envelopes
from headwater.spark.sources.loader import PiecePartition
from headwater.spark.sources.native import NATIVE
from headwater.spark.sources.options import Options
from headwater.spark.sources.table import chunk_table

_WIRE_SCHEMA = pa.schema([("lane", pa.int32()), ("changes", pa.int64()), ("frame", pa.binary())])
_NO_LANE = -1


def read_piece(partition: PiecePartition, options: Options, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows of a piece in the shape that was asked for."""
    piece, first = partition.piece, 0
    names = [column.name for column in piece.relation.columns]
    for batch in _rows(partition, options, piece.query(NATIVE) if options.shape is Shape.TABLE else piece.query()):
        if not batch.num_rows:
            continue
        rows = pa.RecordBatch.from_arrays(batch.columns[: len(names)], names)
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


def _rows(partition: PiecePartition, options: Options, query: str) -> Iterator[pa.RecordBatch]:
    try:
        yield from rows_at(options.url, partition.exported, query)
    except ReadFailed as exc:
        if exc.is_joined and not exc.is_passing and options.state_url is not None:
            _tell(exc, partition, options)
        raise _translated(exc, partition, options.url) from exc


def _tell(error: ReadFailed, partition: PiecePartition, options: Options) -> None:
    """A table that the server cannot read is left out of the next attempt, so that the others go on."""
    relation = partition.piece.relation
    with closing(TableStore(options.state_url or "", options.pipeline)) as store:
        store.save_error((relation.schema, relation.name), str(error), timedelta(minutes=5))


def _translated(error: ReadFailed, partition: PiecePartition, url: str) -> SourceError:
    table = partition.piece.relation.table
    if error.is_passing:
        return ConnectionLost(f"reading {table} from PostgreSQL at {describe(url)} broke off: {error}")
    # Its snapshot has gone with the process or the connection that held it; another attempt takes another.
    return ConnectionLost(f"table {table} cannot be read at its snapshot any more ({error}); it is begun anew")
