"""The Parquet sink: tasks write a range to hidden files, the driver makes them count and then visible."""

import os
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import DataFrame
from pyspark.sql.functions import unix_micros

from headwater.errors import SettingsError, SinkError
from headwater.model import Lineage, Position
from headwater.spark.letters import Letter, frame_of, post_letters, prepare_letters
from headwater.spark.settings import ParquetSinkSettings
from headwater.spark.shape import ENVELOPE, Shape
from headwater.spark.sinks.parquet.columns import Part, sort_envelopes
from headwater.spark.sinks.parquet.directory import Committed, Directory, sync, unwritable
from headwater.spark.sinks.parquet.task import Assignment, Staged, sort, stage_envelopes, stage_frames, write_part
from headwater.spark.sinks.sink import Span, Written


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
        start = max(span.start, self._directory.committed.end)
        assignment = Assignment(self._directory.path, self._pipeline, self._name, start, span.end)
        try:
            staged = _run(batch, shape, assignment)
            self._require_success(staged)
            return self._finish(staged, span)
        except Exception:
            self._directory.discard()
            raise

    def replay(self, letter: Letter) -> None:
        """Add the row of a dead letter, in a file of its own; one that is there stays as it is."""
        directory = self._directory
        directory.require_owner(self._owner)
        if letter.envelope is None:
            found = sort(self._assignment_of(letter), frame_of(letter))
        else:
            found = sort_envelopes([_values(letter.envelope)], letter.position)
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

    def _finish(self, staged: Sequence[Staged], span: Span) -> Written:
        lineage = self._lineage(staged)
        letters = [letter for part in staged for letter in part.letters]
        written = Written(sum(part.changes for part in staged), sum(part.skipped for part in staged), len(letters))
        if written.changes or written.letters:
            # Letters first: a range that counts is not read again.
            post_letters(self._state_url, letters)
            self._directory.commit(Committed(span.end, lineage, tuple(file for part in staged for file in part.files)))
        return written

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
        after = Position(letter.position.commit_lsn, letter.position.ordinal + 1)
        return Assignment(self._directory.path, self._pipeline, self._name, letter.position, after)

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
        case Shape.TABLE:
            raise SettingsError("the parquet sink takes changes of the shapes wire and envelope, not table")
    staged: list[Staged] = rows.rdd.mapPartitionsWithIndex(partial(task, assignment)).collect()
    return staged


def _values(envelope: dict[str, Any]) -> list[Any]:
    """A stored envelope in the order of the columns."""
    moment = datetime.fromisoformat(envelope["committed_at"])
    return [{**envelope, "committed_at": moment}[name] for name in ENVELOPE.fieldNames()]
