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
from headwater.model import Lineage, Position
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.columnar import Group, decode_columns
from headwater.postgres.types import Types
from headwater.spark.columns import to_spark
from headwater.spark.frame import Frame, unpack
from headwater.spark.letters import Letter, without_misfits
from headwater.spark.sinks.parquet.columns import Part, Sorted, sort_envelopes, sort_frame
from headwater.spark.sinks.parquet.directory import PREFIX, StagedFile

# Envelopes are turned into columns so many at a time; more would only cost memory.
_CHUNK: Final = 50_000


@dataclass(frozen=True, slots=True)
class Assignment:
    """What all tasks of a batch are told: changes before `start` are written already."""

    path: Path
    pipeline: str
    sink: str
    start: Position
    end: Position


@dataclass(frozen=True, slots=True)
class Staged:
    """What became of a task's changes; `failure` is the errno of what kept it from writing them."""

    files: tuple[StagedFile, ...] = ()
    changes: int = 0
    skipped: int = 0
    letters: tuple[Letter, ...] = ()
    lineage: Lineage | None = None
    failure: int | None = None


def stage_frames(assignment: Assignment, partition: int, rows: Iterable[Sequence[Any]]) -> Iterator[Staged]:
    """Write the frames of a partition; a row is (lane, frame)."""
    frames = (unpack(bytes(packed)) for _, packed in rows)
    sorted_ = ((sort(assignment, frame), frame.lane, frame.lineage) for frame in frames)
    yield _stage(assignment, partition, sorted_)


def stage_envelopes(assignment: Assignment, partition: int, rows: Iterable[Sequence[Any]]) -> Iterator[Staged]:
    """Write the rows of the DataFrame `changes` in a partition, which takes the place of a lane."""
    every = iter(rows)
    chunks = iter(lambda: list(islice(every, _CHUNK)), [])
    yield _stage(assignment, partition, ((sort_envelopes(chunk, assignment.start), partition, None) for chunk in chunks))


def sort(assignment: Assignment, frame: Frame) -> Sorted:
    """A frame's rows by where they go; those that no file can hold become letters."""
    names = {"pipeline": assignment.pipeline, "sink": assignment.sink}
    try:
        return sort_frame(frame, assignment.start, **names)
    except DecodeError:
        rest, letters = without_misfits(frame, **names, check=_decode)
        found = sort_frame(rest, assignment.start, **names)
        new = tuple(letter for letter in letters if letter.position >= assignment.start)
        return Sorted(found.parts, found.skipped + len(letters) - len(new), (*found.letters, *new))


def write_part(part: Part, file: Path) -> None:
    """Write rows to a file, which is on disk on return; its folder is not."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(file, part.rows.schema) as writer:
        writer.write_table(part.rows)
    _sync(file)


def _stage(assignment: Assignment, partition: int, found: Iterable[tuple[Sorted, int, Lineage | None]]) -> Staged:
    total = Staged()
    files = _Files(assignment, partition)
    try:
        with files:
            for rows, lane, lineage in found:
                for part in rows.parts:
                    files.write(lane, part)
                total = Staged(
                    changes=total.changes + sum(len(part.rows) for part in rows.parts),
                    skipped=total.skipped + rows.skipped,
                    letters=(*total.letters, *rows.letters),
                    lineage=lineage,
                )
    except OSError as exc:
        return Staged(failure=exc.errno or 0)
    return replace(total, files=tuple(files.staged))


@dataclass(slots=True)
class _Files:
    """The files of a task, one for each folder and shape of rows; they are on disk when the block ends."""

    assignment: Assignment
    partition: int
    staged: list[StagedFile] = field(default_factory=list)
    _writers: dict[tuple[str, int, pa.Schema], pq.ParquetWriter] = field(default_factory=dict)

    def write(self, lane: int, part: Part) -> None:
        place = (part.folder, lane, part.rows.schema)
        if place not in self._writers:
            self._writers[place] = self._open(*place)
        self._writers[place].write_table(part.rows)

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for writer in self._writers.values():
            writer.close()
        for file in self.staged:
            path = self.assignment.path / file.folder / file.hidden
            if kind is None:
                _sync(path)
            else:
                path.unlink(missing_ok=True)

    def _open(self, folder: str, lane: int, schema: pa.Schema) -> pq.ParquetWriter:
        start, end = (f"{bound.commit_lsn:016X}.{bound.ordinal}" for bound in (self.assignment.start, self.assignment.end))
        visible = f"{PREFIX}{start}-{end}-lane{lane}-{self.partition}.{len(self.staged)}.parquet"
        # Another attempt at the same task may still be writing.
        file = StagedFile(folder, f".{visible}.{secrets.token_hex(4)}", visible)
        path = self.assignment.path / folder / file.hidden
        path.parent.mkdir(parents=True, exist_ok=True)
        self.staged.append(file)
        return pq.ParquetWriter(path, schema)


def _decode(batch: Batch, types: Types) -> list[Group]:
    return decode_columns(batch, types, to_spark)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
