"""The Parquet sink: tasks write a range to hidden files, the driver makes them count and then visible."""

import os
import secrets
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame
from pyspark.sql.functions import unix_micros

from headwater.errors import SettingsError, SinkError
from headwater.model import Lineage, Op, Position
from headwater.postgres.connect import connect_sync, translated
from headwater.spark.letters import (
    Letter,
    chunk_of,
    frame_of,
    is_attempt_of,
    list_open,
    post_letters,
    prepare_letters,
    supersede,
)
from headwater.spark.shape import ENVELOPE, Shape
from headwater.spark.sink_settings import ParquetSinkSettings
from headwater.spark.sinks.parquet.columns import Bounds, Part, Table, folder_name, sort_chunk, sort_envelopes
from headwater.spark.sinks.parquet.directory import Committed, Directory, LoadedPieces, StagedFile, sync, unwritable
from headwater.spark.sinks.parquet.task import Assignment, Staged, sort, stage_envelopes, stage_frames, write_part
from headwater.spark.sinks.sink import Loading, Span, Written


class ParquetSink:
    """Files that are only ever added. A range that was written is skipped, and of one that overlaps what is new is written.

    A value that its column cannot hold, such as NaN in a numeric(8,2), makes its row a dead letter.
    """

    def __init__(
        self, settings: ParquetSinkSettings, *, pipeline: str, state_url: str, lineage: Lineage | None = None
    ) -> None:
        """`lineage` is what the positions of a DataFrame `changes` belong to; frames tell it themselves."""
        self._own_lineage = lineage
        self._name, self._pipeline, self._state_url = settings.name, pipeline, state_url
        self._directory = Directory(local_path(settings.path), sink=settings.name)

    @property
    def name(self) -> str:
        return self._name

    def open(self) -> None:
        prepare_letters(self._state_url)
        self._directory.open(self._owner)

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        try:
            staged = _run(batch, shape, self._assignment(span))
            self._require_success(staged)
            return self._finish(staged, span)
        except Exception:
            self._directory.discard()
            raise

    def replay(self, letter: Letter) -> None:
        """Add the row of a dead letter, in a file of its own; one that is there stays as it is."""
        directory = self._directory
        directory.require_owner(self._owner)
        if letter.op == Op.READ and any(is_attempt_of(one.attempt, letter.event_id) for one in directory.read().loads):
            raise SinkError(
                self._name,
                f"table {letter.schema}.{letter.table} is still being loaded; replay the letter when it is complete",
            )
        if letter.envelope is not None:
            found = sort_envelopes([_values(letter.envelope)], Bounds(letter.position))
        elif letter.op == Op.READ:
            found = sort_chunk(chunk_of(letter), pipeline=self._pipeline, sink=self._name)
        else:
            found = sort(self._assignment_of(letter), frame_of(letter))
        if found.letters:
            raise SinkError(self._name, f"the row still cannot be written: {found.letters[0].reason}")
        for part in found.parts:
            self._add(part, f"letter-{sha256(letter.event_id.encode()).hexdigest()[:32]}.parquet")

    def close(self) -> None:
        self._directory.close()

    @property
    def _owner(self) -> str:
        return f"sink {self._name!r} of pipeline {self._pipeline!r}"

    def _require_success(self, staged: Sequence[Staged]) -> None:
        for failure in (part.failure for part in staged if part.failure is not None):
            raise unwritable(self._name, self._directory.path, OSError(failure, os.strerror(failure)))

    def _assignment(self, span: Span) -> Assignment:
        committed, loading = self._directory.committed, span.loading
        behind = dict(committed.behind)
        # A batch that begins where a table was held back has changes of such tables only, under whatever names.
        is_held = loading is None and span.start in behind.values()
        start = span.start if is_held else max(span.start, committed.end)
        # Tables that are held back at different times come with the same positions.
        name = f"{label(start, span.end)}-held{secrets.token_hex(4)}" if is_held else label(start, span.end)
        written = Bounds(start) if is_held else Bounds(start, behind)
        assignment = Assignment(self._directory.path, self._pipeline, self._name, written, name)
        if loading is None:
            return assignment
        loaded = next((load.last for load in committed.loads if load.attempt == loading.attempt), 0)
        if loading.attempt == committed.completed:
            loaded = loading.last
        return replace(assignment, attempt=folder_name(loading.attempt), first=loading.first, loaded=loaded)

    def _finish(self, staged: Sequence[Staged], span: Span) -> Written:
        known, lineage = self._directory.committed, self._lineage(staged)
        letters = [letter for part in staged for letter in part.letters]
        written = Written(sum(part.changes for part in staged), sum(part.skipped for part in staged), len(letters))
        end = max(known.end, span.end)
        behind = dict(known.behind)
        if span.loading is None:
            # Otherwise tables are still held back.
            behind = {table: max(low, span.end) if span.start <= low else low for table, low in known.behind}
        files = tuple(file for part in staged for file in part.files)
        after = Committed(end, lineage, files, known.loads, _behind(behind, end), known.completed)
        if span.loading is not None and span.loading.attempt != known.completed:
            waiting = tuple(file for part in staged for file in part.waiting)
            after = _with_load(replace(after, behind=tuple(behind.items())), span.loading, waiting)
        is_same = (after.loads, after.behind, after.completed) == (known.loads, known.behind, known.completed)
        if written.changes or written.letters or not is_same:
            # Letters first: a range that counts is not read again.
            post_letters(self._state_url, letters)
            self._supersede(
                {load.attempt for load in known.loads} - {load.attempt for load in after.loads} - {after.completed}
            )
            self._directory.commit(after)
        return written

    def _supersede(self, dead: Set[str | None]) -> None:
        """Take back the letters of attempts that have died: another one brings the same rows."""
        if not dead:
            return
        with translated(self._state_url), closing(connect_sync(self._state_url)) as state:
            waiting = list_open(state, self._pipeline, self._name)
            supersede(state, [one.id for one in waiting if any(attempt and one.is_of(attempt) for attempt in dead)])

    def _lineage(self, staged: Sequence[Staged]) -> Lineage | None:
        """The lineage of the batch; unless it goes on from that of what is written, positions do not tell what is new."""
        known = self._directory.committed
        lineage = next((part.lineage for part in staged if part.lineage is not None), self._own_lineage or known.lineage)
        if lineage and known.lineage and not lineage.continues(known.lineage, known.end.commit_lsn):
            raise SinkError(
                self._name,
                f"{self._directory.path} was written from another server, or from another history of this one, so it cannot "
                "be told which changes it has; give the sink a new path",
            )
        return lineage

    def _assignment_of(self, letter: Letter) -> Assignment:
        return Assignment(self._directory.path, self._pipeline, self._name, Bounds(letter.position), label="")

    def _add(self, part: Part, name: str) -> None:
        folder = self._directory.path / part.folder
        try:
            # The one who replays holds the letter, so nobody else writes this file.
            write_part(part, folder / f".{name}")
            (folder / f".{name}").rename(folder / name)
            for changed in (folder, folder.parent, self._directory.path):
                sync(changed)
        except OSError as exc:
            raise unwritable(self._name, self._directory.path, exc) from exc


def label(start: Position, end: Position) -> str:
    """A range in the name of a file."""
    return "-".join(f"{bound.commit_lsn:016X}.{bound.ordinal}" for bound in (start, end))


def _with_load(committed: Committed, loading: Loading, waiting: tuple[StagedFile, ...]) -> Committed:
    """What counts after a batch with rows of whole tables, or after one that completes an attempt at them."""
    tables, behind = loading.tables, dict(committed.behind)
    known = next((load for load in committed.loads if load.attempt == loading.attempt), None)
    # Another attempt at one of the tables has died.
    others = tuple(load for load in committed.loads if load is not known and not set(load.tables) & set(tables))
    files = (*(known.files if known else ()), *waiting)
    if loading.is_complete:
        behind |= dict.fromkeys(tables, loading.position)
        return replace(
            committed,
            files=(*committed.files, *files),
            loads=others,
            behind=_behind(behind, committed.end),
            completed=loading.attempt,
        )
    last = max(loading.last, known.last if known else 0)
    loads = (*others, LoadedPieces(loading.attempt, tables, last, files))
    return replace(committed, loads=loads, behind=_behind(behind, committed.end))


def _behind(positions: Mapping[Table, Position], end: Position) -> tuple[tuple[Table, Position], ...]:
    return tuple(sorted((table, low) for table, low in positions.items() if low < end))


def local_path(path: str) -> Path:
    """The directory that a path or a file:// URI names."""
    parts = urlsplit(path)
    if "://" not in path:
        return Path(path).absolute()
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        raise SettingsError(
            f"the parquet sink writes to local directories for now, not to {parts.scheme}://; "
            "name a path or a file:/// URI that the driver and all executors see"
        )
    return Path(unquote(parts.path)).absolute()


def _run(batch: DataFrame, shape: Shape, assignment: Assignment) -> list[Staged]:
    match shape:
        case Shape.WIRE:
            rows, task = batch.select("lane", "frame"), stage_frames
        case Shape.ENVELOPE:
            # As a number, for a timestamp becomes the local time of whichever machine reads it.
            batch = batch.withColumn("committed_at", unix_micros("committed_at"))
            rows, task = batch.select(*ENVELOPE.fieldNames()), stage_envelopes
        case _:
            raise SettingsError(f"the parquet sink takes changes of the shapes wire and envelope, not {shape}")
    staged: list[Staged] = rows.rdd.mapPartitionsWithIndex(partial(task, assignment)).collect()
    return staged


def _values(envelope: dict[str, Any]) -> list[Any]:
    """A stored envelope in the order of the columns."""
    moment = datetime.fromisoformat(envelope["committed_at"])
    return [{**envelope, "committed_at": moment}[name] for name in ENVELOPE.fieldNames()]
