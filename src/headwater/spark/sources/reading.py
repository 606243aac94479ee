"""What tasks do with a piece of a table: read it at its snapshot, by ADBC into Arrow, and give its rows their shape."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from headwater.capture.pieces import import_snapshot
from headwater.capture.snapshot import lift_timeouts
from headwater.capture.tables import TableStore
from headwater.errors import ConnectionLost, SourceError
from headwater.postgres.connect import complete, describe
from headwater.postgres.replication.stream import SESSION
from headwater.spark.frame import Chunk, pack
from headwater.spark.shape import Shape
from headwater.spark.sources.envelope import chunk_envelopes
from headwater.spark.sources.loader import PiecePartition
from headwater.spark.sources.native import NATIVE
from headwater.spark.sources.options import Options
from headwater.spark.sources.table import chunk_table

_WIRE_SCHEMA = pa.schema([("lane", pa.int32()), ("changes", pa.int64()), ("frame", pa.binary())])
_NO_LANE = -1
# The connection is gone, or the server goes down or is short of something: it may be otherwise soon.
_PASSING = ("08", "53", "57")
# Whoever waits to lock a table for himself waits for the snapshot's lock on it, and we would wait behind him for ever: the
# attempt is given up then, he gets his turn, and another one follows.
_LOCK_MILLISECONDS = 3000
_LOCK_NOT_AVAILABLE = "55P03"
# One frame; small enough to be worked on in memory, large enough to be worth the calls.
_CHUNK_BYTES = 4 * 1024 * 1024


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
    url = options.url
    import adbc_driver_manager
    from adbc_driver_postgresql import StatementOptions  # type: ignore[import-untyped] # it has no types

    is_done = is_joined = False
    try:
        with closing(_kept.begin(complete(url)).cursor()) as cursor:
            cursor.adbc_statement.set_options(**{StatementOptions.BATCH_SIZE_HINT_BYTES.value: str(_CHUNK_BYTES)})
            cursor.executescript(import_snapshot(partition.exported).query.as_string())
            is_joined = True
            cursor.execute(query)
            yield from cursor.fetch_record_batch()
            cursor.executescript("commit")
        is_done = True
    except adbc_driver_manager.Error as exc:
        if is_joined and not _is_passing(exc) and options.state_url is not None:
            _tell(exc, partition, options)
        raise _translated(exc, partition, url, is_passing=_is_passing(exc)) from exc
    except (OSError, pa.ArrowException) as exc:
        # In the midst of the rows it is Arrow that raises, without the server's code. One that still answers has refused.
        is_lost = not _kept.can_roll_back()
        if not is_lost and options.state_url is not None:
            _tell(exc, partition, options)
        raise _translated(exc, partition, url, is_passing=is_lost) from exc
    finally:
        if not is_done:
            _kept.close()


class _Kept:
    """The connection of this process to a source. No transaction is open on it between two pieces.

    Connecting takes ADBC longer than some pieces, for it asks for all types there are, and Spark's Python workers serve many
    tasks.
    """

    def __init__(self) -> None:
        self._conninfo = ""
        self._connection: Any = None

    def begin(self, conninfo: str) -> Any:
        """The connection, with a transaction that can take a snapshot over; a kept one may have died meanwhile."""
        import adbc_driver_manager

        if self._connection is not None and self._conninfo == conninfo:
            try:
                return _begun(self._connection)
            except adbc_driver_manager.Error:
                self.close()
        self.close()
        self._conninfo, self._connection = conninfo, _connected(conninfo)
        return _begun(self._connection)

    def can_roll_back(self) -> bool:
        """Whether the server is still there."""
        import adbc_driver_manager

        try:
            with closing(self._connection.cursor()) as cursor:
                cursor.executescript("rollback")
        except adbc_driver_manager.Error:
            return False
        return True

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


_kept = _Kept()


def close_kept() -> None:
    """Hang up, if this process has read any piece."""
    _kept.close()


def _connected(conninfo: str) -> Any:
    from adbc_driver_postgresql import dbapi

    connection = dbapi.connect(conninfo, autocommit=True)
    with closing(connection.cursor()) as cursor:
        for statement in SESSION:
            cursor.executescript(statement)
        cursor.execute(lift_timeouts().query.as_string())
        cursor.fetchall()
        cursor.executescript(f"set lock_timeout = {_LOCK_MILLISECONDS}")
    return connection


def _begun(connection: Any) -> Any:
    with closing(connection.cursor()) as cursor:
        cursor.executescript("begin transaction isolation level repeatable read, read only")
    return connection


def _is_passing(error: Any) -> bool:
    return not error.sqlstate or error.sqlstate.startswith((*_PASSING, _LOCK_NOT_AVAILABLE))


def _said(error: Any) -> str:
    return str(error).strip().splitlines()[0]


def _tell(error: Any, partition: PiecePartition, options: Options) -> None:
    """A table that the server cannot read is left out of the next attempt, so that the others go on."""
    relation = partition.piece.relation
    with closing(TableStore(options.state_url or "", options.pipeline)) as store:
        store.save_error((relation.schema, relation.name), _said(error), timedelta(minutes=5))


def _translated(error: Exception, partition: PiecePartition, url: str, *, is_passing: bool) -> SourceError:
    table, said = partition.piece.relation.table, _said(error)
    if is_passing:
        return ConnectionLost(f"reading {table} from PostgreSQL at {describe(url)} broke off: {said}")
    # Its snapshot has gone with the process or the connection that held it; another attempt takes another.
    return ConnectionLost(f"table {table} cannot be read at its snapshot any more ({said}); it is begun anew")
