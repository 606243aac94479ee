"""From what a partition holds to what is appended at once: the changes of a frame, or the rows of a piece. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import SinkError
from headwater.model import Lineage, Lsn
from headwater.spark.frame import Chunk, Frame, unpack
from headwater.spark.letters import Letter
from headwater.spark.shape import Shape
from headwater.spark.sinks.nats.parts import JsonParts, Part, Whose
from headwater.spark.sinks.postgres.loading_statements import PieceOrigin
from headwater.spark.sinks.postgres.task import is_loaded
from headwater.spark.sinks.sink import Loading

# A whole table is the only one of its lanes.
WHOLE: Final = (0, 1)

Lane: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of whole tables that are appended together, or not at all: a piece of an attempt, or a part of some."""

    attempt: str
    number: int
    part: int
    origin: PieceOrigin


@dataclass(frozen=True, slots=True)
class Work:
    """What is appended in one transaction, in order; `letters` are of rows that can be no messages.

    `locks` name what no other task appends at the same time. The positions of changes are those of the tables' `lane`; rows
    of whole tables have none, and are known by their `piece`.
    """

    locks: tuple[str, ...]
    parts: tuple[Part, ...]
    letters: tuple[Letter, ...]
    lineage: Lineage
    lane: Lane = WHOLE
    piece: Piece | None = None

    @property
    def rows(self) -> int:
        return sum(len(part.messages) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Works:
    """Takes the batches of a partition apart. `number` is that of the partition.

    `lineage` names the rows of a DataFrame `changes`, which do not say what their positions belong to.
    """

    whose: Whose
    shape: Shape
    lineage: Lineage
    loading: Loading | None

    def of(self, batches: Iterable[pa.RecordBatch], number: int) -> Iterator[Work]:
        if self.shape is Shape.WIRE:
            packed = (unpack(frame.as_buffer().to_pybytes()) for batch in batches for frame in batch["frame"])
            return self._of_frames(packed)
        if self.shape is Shape.ENVELOPE:
            return self._of_rows((batch for batch in batches if batch.num_rows), number)
        raise SinkError(self.whose.sink, f"it does not take changes of shape {self.shape}")

    def _of_frames(self, frames: Iterable[Frame | Chunk]) -> Iterator[Work]:
        for key, some in groupby(frames, key=lambda one: (one.attempt, one.piece) if isinstance(one, Chunk) else None):
            if key is None:
                yield from (self._of_frame(frame) for frame in some if isinstance(frame, Frame))
            else:
                yield self._of_piece([chunk for chunk in some if isinstance(chunk, Chunk)])

    def _of_frame(self, frame: Frame) -> Work:
        parts, letters = JsonParts(self.whose).of(frame)
        return Work((f"lane {frame.lane}",), tuple(parts), tuple(letters), frame.lineage, frame.key_lane or WHOLE)

    def _of_piece(self, chunks: list[Chunk]) -> Work:
        first, made = chunks[0], [JsonParts(self.whose).of(chunk) for chunk in chunks]
        origin = PieceOrigin(first.lineage.system_identifier, None, first.until, first.read_at)
        return _loaded(made, Piece(first.attempt, first.piece, 0, origin), first.lineage)

    def _of_rows(self, batches: Iterable[pa.RecordBatch], number: int) -> Iterator[Work]:
        loaded: list[pa.RecordBatch] = []
        for batch in batches:
            is_read = is_loaded(batch, self.shape)
            changes, read = batch.filter(pc.invert(is_read)), batch.filter(is_read)
            if changes.num_rows:
                parts, letters = JsonParts(self.whose).of_envelopes(changes, self.lineage, "")
                locks = tuple(sorted({f"table {part.messages.table}" for part in parts}))
                yield Work(locks, tuple(parts), tuple(letters), self.lineage)
            if read.num_rows:
                loaded.append(read)
        if loaded:
            yield self._of_read(loaded, number)

    def _of_read(self, batches: list[pa.RecordBatch], number: int) -> Work:
        if self.loading is None:
            raise SinkError(self.whose.sink, "rows of a whole table came in a batch that has none; report it")
        attempt, first = self.loading.attempt, batches[0]
        made = [JsonParts(self.whose).of_envelopes(batch, self.lineage, attempt) for batch in batches]
        until, read_at = Lsn(first["commit_lsn"][0].as_py()), first["committed_at"][0].as_py()
        origin = PieceOrigin(self.lineage.system_identifier, None, until, read_at)
        return _loaded(made, Piece(attempt, self.loading.first, number, origin), self.lineage)


def _loaded(made: list[tuple[list[Part], list[Letter]]], piece: Piece, lineage: Lineage) -> Work:
    parts = tuple(part for parts, _ in made for part in parts)
    letters = tuple(letter for _, letters in made for letter in letters)
    return Work((f"load {piece.attempt} {piece.number} {piece.part}",), parts, letters, lineage, piece=piece)
