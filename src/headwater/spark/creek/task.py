"""What tasks do for a snapshot: read pages of a table at it, encode the rows, and hand them over in large bundles."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headwater.creek.encode import encode_rows
from headwater.creek.framing import Ints, frame
from headwater.errors import ConnectionLost, SourceError
from headwater.postgres.connect import describe
from headwater.postgres.types import Types
from headwater.spark.creek.cuts import Cut
from headwater.spark.sources.adbc import ReadFailed, rows_at

# What a task gives back at a time; the driver holds a few of these.
MOST_BYTES = 32 * 1024 * 1024
# A row passes through Java, which has it several times over for a moment.
LARGEST_BYTES = 96 * 1024 * 1024
# What a task gives back in the end instead of rows: there are more than the driver can hold, or one is beyond the schema.
TOO_MUCH, MISFIT = b"", b"?"
_SCHEMA = pa.schema([("packet", pa.large_binary()), ("row", pa.int64()), ("number", pa.int64())])


@dataclass(frozen=True, slots=True)
class Bundle:
    """Packets of rows: of each, the row that it belongs to, from 0 on, and its number among that row's packets."""

    packets: pa.Array
    of_row: Ints
    numbers: Ints

    @property
    def rows(self) -> int:
        return int(self.of_row[-1]) + 1 if len(self.of_row) else 0

    @property
    def starts(self) -> pa.Array:
        """Which packets are the first of a row."""
        return pa.array(self.numbers == 0)

    def to_bytes(self) -> bytes:
        columns = [self.packets.cast(pa.large_binary()), pa.array(self.of_row), pa.array(self.numbers)]
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, _SCHEMA) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
        return bytes(sink.getvalue())

    @classmethod
    def from_bytes(cls, data: bytes) -> "Bundle":
        (batch,) = pa.ipc.open_stream(data)
        return cls(batch.column("packet"), *(batch.column(name).to_numpy() for name in ("row", "number")))


@dataclass(frozen=True, slots=True)
class RowTask:
    """Reads cuts of one table at an exported snapshot; packets hold at most `chunk` bytes of a row each."""

    url: str = field(repr=False)
    exported: str
    chunk: int
    is_widened: bool
    most_bytes: int = MOST_BYTES
    largest_bytes: int = LARGEST_BYTES

    def __call__(self, cuts: Iterable[Cut]) -> Iterator[bytes]:
        """The bundles of the cuts; at last TOO_MUCH if a cut has to be parted, or MISFIT if the schema must be widened."""
        for cut in cuts:
            held = 0
            for rows in self._rows(cut):
                bundle = self._encoded(rows, cut)
                if bundle is None:
                    yield MISFIT
                    return
                data = bundle.to_bytes()
                held += len(data)
                if held > self.most_bytes and cut.can_be_parted:
                    yield TOO_MUCH
                    return
                if held > self.largest_bytes:
                    raise self._too_large(held, cut)
                yield data

    def _rows(self, cut: Cut) -> Iterator[pa.RecordBatch]:
        relation = cut.piece.relation
        names = [column.name for column in relation.columns]
        try:
            for batch in rows_at(self.url, self.exported, cut.piece.query()):
                if batch.num_rows:
                    yield pa.RecordBatch.from_arrays(batch.columns[: len(names)], names)
        except ReadFailed as exc:
            said = f"reading {relation.table} from PostgreSQL at {describe(self.url)} broke off: {exc}"
            raise (ConnectionLost(said) if exc.is_passing else SourceError(said)) from exc

    def _too_large(self, size: int, cut: Cut) -> SourceError:
        table, mebibyte = cut.piece.relation.table, 1024 * 1024
        return SourceError(
            f"a row of {table} has {size // mebibyte} MiB, more than the {self.largest_bytes // mebibyte} of a snapshot"
        )

    def _encoded(self, rows: pa.RecordBatch, cut: Cut) -> Bundle | None:
        relation = cut.piece.relation
        types = Types.builtin().extended(cut.piece.own_types) if cut.piece.own_types else Types.builtin()
        data, misfits = encode_rows(rows, relation, types, widened=self.is_widened)
        if misfits.any():
            return None
        framed = frame(data, self.chunk)
        return Bundle(framed.packets, framed.messages, framed.numbers)


def row_ids(topic: str, first: int, bundle: Bundle) -> pa.Array:
    """The ids of a bundle's packets; `first` is the number of its first row."""
    return pa.compute.binary_join_element_wise(
        f"{topic}-row-",
        pa.array(bundle.of_row + first).cast(pa.string()),
        "-seq-",
        pa.array(bundle.numbers).cast(pa.string()),
        "",
    )


def packet_ids(name: str, count: int) -> pa.Array:
    """The ids of the packets of one message."""
    return pa.array([f"{name}-seq-{number}" for number in np.arange(count)])
