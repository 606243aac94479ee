"""What a task does: decode its part of a batch, and write it to hidden files. Runs in Spark's Python workers."""

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import DecodeError
from headwater.model import Lineage, Lsn, Op, Position
from headwater.spark.frame import Chunk, Frame, unpack
from headwater.spark.letters import Letter, without_misfits
from headwater.spark.sinks.parquet.columns import (
    ENVELOPE_COLUMNS,
    Bounds,
    Part,
    Sorted,
    decode,
    sort_chunk,
    sort_envelopes,
    sort_frame,
)
from headwater.spark.sinks.parquet.directory import LOADED, PREFIX, StagedFile

# Envelopes are turned into columns so many at a time; more would only cost memory.
_CHUNK: Final = 50_000
NOTHING_WRITTEN: Final = Bounds(Position(Lsn(0), 0))


@dataclass(frozen=True, slots=True)
class Assignment:
    """What all tasks of a batch are told: `written` are the changes that are there already, and `loaded` the pieces.

    `attempt` is the one at reading whole tables that has rows in the batch; `label` tells the batch's files from others.
    """

    path: Path
    pipeline: str
    sink: str
    written: Bounds
    label: str
    attempt: str = ""
    first: int = 0
    loaded: int = 0


@dataclass(frozen=True, slots=True)
class Staged:
    """What became of a task's changes; `failure` is the errno of what kept it from writing them.

    `waiting` are files with rows of whole tables, which are to be seen when all of these are there.
    """

    files: tuple[StagedFile, ...] = ()
    waiting: tuple[StagedFile, ...] = ()
    changes: int = 0
    skipped: int = 0
    letters: tuple[Letter, ...] = ()
    lineage: Lineage | None = None
    failure: int | None = None


def stage_frames(assignment: Assignment, partition: int, rows: Iterable[Sequence[Any]]) -> Iterator[Staged]:
    """Write the frames and chunks of a partition; a row is (lane, frame)."""
    yield _stage(assignment, partition, (_found(assignment, unpack(bytes(packed))) for _, packed in rows))


def stage_envelopes(assignment: Assignment, partition: int, rows: Iterable[Sequence[Any]]) -> Iterator[Staged]:
    """Write the rows of the DataFrame `changes` in a partition, which takes the place of a lane."""
    every = iter(rows)
    chunks = iter(lambda: list(islice(every, _CHUNK)), [])
    yield _stage(assignment, partition, (found for chunk in chunks for found in _found_rows(assignment, partition, chunk)))


def _found(assignment: Assignment, frame: Frame | Chunk) -> "_Found":
    if isinstance(frame, Frame):
        return _Found(sort(assignment, frame), f"lane{frame.lane}", frame.lineage)
    if frame.piece < assignment.loaded:
        return _Found(Sorted((), frame.rows.num_rows, ()), "", frame.lineage, is_loaded=True)
    rows = sort_chunk(frame, pipeline=assignment.pipeline, sink=assignment.sink)
    return _Found(rows, f"piece{frame.piece}", frame.lineage, is_loaded=True)


def _found_rows(assignment: Assignment, partition: int, rows: Sequence[Sequence[Any]]) -> Iterator["_Found"]:
    op = ENVELOPE_COLUMNS.get_field_index("op")
    changes, read = [row for row in rows if row[op] != Op.READ], [row for row in rows if row[op] == Op.READ]
    if changes:
        yield _Found(sort_envelopes(changes, assignment.written), f"lane{partition}")
    if not read:
        return
    # Pieces cannot be told apart here, but those of a batch are there all or none.
    if assignment.first < assignment.loaded:
        yield _Found(Sorted((), len(read), ()), "", is_loaded=True)
    else:
        yield _Found(sort_envelopes(read, NOTHING_WRITTEN), f"piece{assignment.first}", is_loaded=True)


def sort(assignment: Assignment, frame: Frame) -> Sorted:
    """A frame's rows by where they go; those that no file can hold become letters."""
    names = {"pipeline": assignment.pipeline, "sink": assignment.sink}
    try:
        return sort_frame(frame, assignment.written, **names)
    except DecodeError:
        rest, letters = without_misfits(frame, **names, check=decode)
        found = sort_frame(rest, assignment.written, **names)
        new = tuple(letter for letter in letters if letter.position >= assignment.written.of(letter.schema, letter.table))
        return Sorted(found.parts, found.skipped + len(letters) - len(new), (*found.letters, *new))


def write_part(part: Part, file: Path) -> None:
    """Write rows to a file, which is on disk on return; its folder is not."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(file, part.rows.schema) as writer:
        writer.write_table(part.rows)
    _sync(file)


@dataclass(frozen=True, slots=True)
class _Found:
    """Rows by where they go, `label` in the names of their files, and what their positions belong to, if that is known."""

    rows: Sorted
    label: str
    lineage: Lineage | None = None
    is_loaded: bool = False


def _stage(assignment: Assignment, partition: int, found: Iterable[_Found]) -> Staged:
    total = Staged()
    files = _Files(assignment, partition)
    try:
        with files:
            for one in found:
                for part in one.rows.parts:
                    files.write(one, part)
                total = Staged(
                    changes=total.changes + sum(len(part.rows) for part in one.rows.parts),
                    skipped=total.skipped + one.rows.skipped,
                    letters=(*total.letters, *one.rows.letters),
                    lineage=one.lineage,
                )
    except OSError as exc:
        return Staged(failure=exc.errno or 0)
    return replace(total, files=tuple(files.staged), waiting=tuple(files.waiting))


@dataclass(slots=True)
class _Files:
    """The files of a task, one for each folder and shape of rows; they are on disk when the block ends."""

    assignment: Assignment
    partition: int
    staged: list[StagedFile] = field(default_factory=list)
    waiting: list[StagedFile] = field(default_factory=list)
    _writers: dict[tuple[str, str, pa.Schema], pq.ParquetWriter] = field(default_factory=dict)

    def write(self, found: _Found, part: Part) -> None:
        place = (part.folder, found.label, part.rows.schema)
        if place not in self._writers:
            self._writers[place] = self._open(*place, is_loaded=found.is_loaded)
        self._writers[place].write_table(part.rows)

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()
        for file in (*self.staged, *self.waiting):
            path = self.assignment.path / file.folder / file.hidden
            if kind is None:
                _sync(path)
            else:
                path.unlink(missing_ok=True)

    def _open(self, folder: str, label: str, schema: pa.Schema, *, is_loaded: bool) -> pq.ParquetWriter:
        batch = f"{LOADED}{self.assignment.attempt}" if is_loaded else f"{PREFIX}{self.assignment.label}"
        visible = f"{batch}-{label}-{self.partition}.{len(self._writers)}.parquet"
        # Another attempt at the same task may still be writing.
        file = StagedFile(folder, f".{visible}.{secrets.token_hex(4)}", visible)
        path = self.assignment.path / folder / file.hidden
        path.parent.mkdir(parents=True, exist_ok=True)
        (self.waiting if is_loaded else self.staged).append(file)
        return pq.ParquetWriter(path, schema)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
