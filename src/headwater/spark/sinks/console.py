"""The sink that prints changes: JSON lines on standard output, in commit order, as `headwater tail` writes them."""

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.functions import unix_micros

from headwater.errors import DecodeError, SettingsError, SinkError
from headwater.model import Change, Lineage, Lsn, Op, Position
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Types, to_json
from headwater.spark.frame import Chunk, Frame, unpack
from headwater.spark.letters import (
    Letter,
    as_read,
    chunk_of,
    frame_of,
    frame_of_rows,
    post_letters,
    prepare_letters,
    read_envelope_id,
    row_id,
    without_misfits,
)
from headwater.spark.shape import ENVELOPE, MESSAGES, Shape
from headwater.spark.sink_settings import ConsoleSinkSettings
from headwater.spark.sinks.lines import change_line, envelope_line, message_line, unplaced
from headwater.spark.sinks.sink import Span, Written
from headwater.spark.sources.outbox.messages import unpack_messages

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class ConsoleSink:
    """Prints a batch when all of it is decoded, so that nothing is printed of one that fails. Batches that come again are
    printed again: the event id tells. Rows of whole tables are printed as they come, and those of an attempt that is made
    anew once more, under other ids.

    The rows of a DataFrame `changes` do not say what their positions belong to; without `lineage` their id is null.
    """

    def __init__(
        self, settings: ConsoleSinkSettings, *, pipeline: str, state_url: str, lineage: Lineage | None = None
    ) -> None:
        self._name, self._pipeline, self._state_url, self._lineage = settings.name, pipeline, state_url, lineage

    @property
    def name(self) -> str:
        return self._name

    def open(self) -> None:
        prepare_letters(self._state_url)

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        lines: list[tuple[Position, str]] = []
        letters: list[Letter] = []
        match shape:
            case Shape.WIRE:
                # A batch has bounds, so the driver can hold it.
                for row in batch.select("frame").collect():
                    printed, refused = self._decoded(unpack(bytes(row["frame"])))
                    lines += printed
                    letters += refused
            case Shape.ENVELOPE:
                moments = batch.withColumn("committed_at", unix_micros("committed_at"))
                rows = moments.select(*ENVELOPE.fieldNames()).collect()
                attempt = "" if span.loading is None else span.loading.attempt
                lines += (self._line(_with_moment(row.asDict()), attempt) for row in rows)
            case Shape.PACKED | Shape.MESSAGE:
                return self._print_messages(batch, shape)
            case Shape.TABLE:
                raise SettingsError("the console sink takes changes of the shapes wire and envelope, not table")
        post_letters(self._state_url, letters)
        # The frames of a lane are in order; sorted, those of all lanes are.
        lines.sort(key=lambda line: line[0])
        self._print("".join(f"{line}\n" for _, line in lines))
        return Written(changes=len(lines), letters=len(letters))

    def _print_messages(self, batch: DataFrame, shape: Shape) -> Written:
        """Print messages of an outbox, in the order of each lane."""
        if shape is Shape.PACKED:
            parts = [unpack_messages(pa.py_buffer(bytes(row["frame"]))) for row in batch.select("frame").collect()]
        else:
            parts = batch.select(*MESSAGES.fieldNames()).toArrow().to_batches()
        lines = [message_line(message) for part in parts for message in part.to_pylist()]
        self._print("".join(f"{line}\n" for line in lines))
        return Written(changes=len(lines))

    def replay(self, letter: Letter) -> None:
        """Print the row of a dead letter."""
        if letter.envelope is not None:
            moment = datetime.fromisoformat(letter.envelope["committed_at"])
            self._print(f"{envelope_line({**letter.envelope, 'committed_at': moment}, letter.event_id)}\n")
            return
        printed, refused = self._decoded(chunk_of(letter) if letter.op == Op.READ else frame_of(letter))
        if refused:
            raise SinkError(self._name, f"the row still cannot be printed: {refused[0].reason}")
        self._print("".join(f"{line}\n" for _, line in printed))

    def close(self) -> None:
        """Standard output stays open."""

    def _decoded(self, rows: Frame | Chunk) -> tuple[list[tuple[Position, str]], list[Letter]]:
        """The lines of a frame or of rows of a whole table, and the letters of those that do not decode."""
        if isinstance(rows, Frame):
            frame, letters = self._readable(rows)
            return list(_lines(frame)), letters
        frame, letters = self._readable(frame_of_rows(rows))
        return list(_read_lines(frame, rows)), [as_read(letter, rows) for letter in letters]

    def _readable(self, frame: Frame) -> tuple[Frame, list[Letter]]:
        try:
            _decode(frame.batch, frame.types)
        except DecodeError:
            return without_misfits(frame, pipeline=self._pipeline, sink=self._name, check=_decode)
        return frame, []

    def _line(self, envelope: Mapping[str, Any], attempt: str) -> tuple[Position, str]:
        for name in ("commit_lsn", "ordinal", "committed_at"):
            if envelope[name] is None:
                raise unplaced(name)
        position = Position(Lsn(envelope["commit_lsn"]), envelope["ordinal"])
        if self._lineage is None:
            id = None
        elif envelope["op"] == Op.READ:
            id = read_envelope_id(envelope, self._lineage, attempt)
        else:
            id = self._lineage.event_id(position)
        return position, envelope_line(envelope, id)

    def _print(self, text: str) -> None:
        """Write all of a text, and return when the system has it.

        Unbuffered, standard output may take a part of a long text and forget the rest without a word.
        """
        try:
            sys.stdout.flush()
            left = memoryview(text.encode())
            while left:
                left = left[sys.stdout.buffer.write(left) :]
            sys.stdout.buffer.flush()
        except BrokenPipeError as exc:
            raise SinkError(self._name, "whoever read the standard output has closed it") from exc
        except OSError as exc:
            raise SinkError(self._name, f"cannot write to standard output: {exc.strerror}") from exc


def _lines(frame: Frame) -> Iterator[tuple[Position, str]]:
    for change in decode_rows(frame.batch, frame.types, to_json):
        if isinstance(change, Change):
            yield change.position, change_line(change, frame.lineage.event_id(change.position))


def _read_lines(frame: Frame, chunk: Chunk) -> Iterator[tuple[Position, str]]:
    for change in decode_rows(frame.batch, frame.types, to_json):
        if isinstance(change, Change):
            yield change.position, change_line(replace(change, op=Op.READ), row_id(chunk, change.position.ordinal))


def _decode(batch: Batch, types: Types) -> None:
    deque(decode_rows(batch, types, to_json), maxlen=0)


def _with_moment(envelope: dict[str, Any]) -> dict[str, Any]:
    micros = envelope["committed_at"]
    return {**envelope, "committed_at": None if micros is None else _EPOCH + timedelta(microseconds=micros)}
