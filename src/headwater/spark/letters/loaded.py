"""Rows that came with their whole table, as frames of inserts and as letters, and letters as such rows again. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

from headwater.model import Lineage, Lsn, Op, Position
from headwater.postgres.replication.batch import Batch, lay_out
from headwater.postgres.replication.columnar import as_sent, decode_columns
from headwater.postgres.replication.compose import describe_relation, insert_row
from headwater.postgres.replication.messages import Begin
from headwater.spark.frame import Chunk, Frame
from headwater.spark.letters.letter import Letter, read_id
from headwater.spark.letters.making import Envelope, frame_of, letter_of_envelope, letters_at


def frame_of_rows(chunk: Chunk) -> Frame:
    """The rows as if each had been inserted, numbered as in their piece."""
    rows = zip(*(column.to_pylist() for column in chunk.rows.columns), strict=True)
    data, bounds = lay_out([insert_row(chunk.relation.oid, row) for row in rows])
    batch = Batch(
        data,
        bounds,
        relations={chunk.relation.oid: describe_relation(chunk.relation)},
        changes=chunk.rows.num_rows,
        end=None,
        begin=Begin(chunk.until, chunk.read_at, 0),
        first_ordinal=chunk.first_row,
    )
    return Frame(0, None, batch, chunk.own_types, chunk.lineage)


def letters_of_rows(chunk: Chunk, reasons: Mapping[int, str], *, pipeline: str, sink: str) -> list[Letter]:
    """The letters of rows of a chunk, by their number in it; their position is where the WAL ended, and the row."""
    found = []
    for row, reason in reasons.items():
        one = replace(chunk, rows=chunk.rows.slice(row, 1), first_row=chunk.first_row + row)
        place = Position(chunk.until, one.first_row)
        (letter,) = letters_at(frame_of_rows(one), {place: reason}, pipeline=pipeline, sink=sink)
        found.append(as_read(letter, chunk))
    return found


def as_read(letter: Letter, chunk: Chunk) -> Letter:
    """The letter of an insert in the frame of a chunk's rows, as that of the row that was read."""
    return replace(letter, op=str(Op.READ), event_id=row_id(chunk, letter.position.ordinal))


def letter_of_read_envelope(envelope: Envelope, lineage: Lineage, attempt: str, reason: str, **addressee: str) -> Letter:
    """The letter of a row of the DataFrame `changes` that came with its whole table."""
    letter = letter_of_envelope(envelope, lineage, reason, **addressee)
    return replace(letter, event_id=read_envelope_id(envelope, lineage, attempt))


def read_envelope_id(envelope: Envelope, lineage: Lineage, attempt: str) -> str:
    """The event id of such a row. Rows of several pieces have the same number, and none says which piece it is of."""
    facts = (envelope[name] for name in ("schema", "table", "ordinal", "key", "after"))
    digest = blake2b("\0".join(map(str, facts)).encode(), digest_size=16).hexdigest()
    return read_id(lineage, Lsn(envelope["commit_lsn"]), attempt, digest)


def row_id(chunk: Chunk, row: int) -> str:
    """The event id of a row of a chunk's piece."""
    return read_id(chunk.lineage, chunk.until, chunk.attempt, f"{chunk.piece}_{row}")


def chunk_of(letter: Letter) -> Chunk:
    """The row of a letter that `letters_of_rows` has made."""
    frame = frame_of(letter)
    (group,) = decode_columns(frame.batch, frame.types, as_sent)
    attempt, _, row = letter.event_id.rpartition(".")[2].removeprefix("r").rpartition("-")
    return Chunk(
        attempt=attempt,
        piece=int(row.partition("_")[0]),
        first_row=letter.position.ordinal,
        relation=group.relation,
        rows=group.after,
        own_types=letter.own_types,
        lineage=frame.lineage,
        until=letter.position.commit_lsn,
        read_at=letter.committed_at,
    )
