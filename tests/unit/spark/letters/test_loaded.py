"""Rows of whole tables as frames and letters: nothing of a row is lost on the way, and its id is its own."""

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa

from headwater.model import Change, Lineage, Lsn, Position
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.postgres.replication.rows import decode_rows
from headwater.spark.frame import Chunk
from headwater.spark.letters import (
    OpenLetter,
    chunk_of,
    frame_of_rows,
    is_attempt_of,
    letter_of_read_envelope,
    letters_of_rows,
    row_of,
)

LINEAGE = Lineage("7000000000000000001", 1, (), "shop.eu", "hw")
COLUMNS = (
    RelationColumn("id", True, 23, -1),
    RelationColumn("größe", False, 25, -1),
    RelationColumn("n", False, 1700, 524294),
)
ROWS = pa.RecordBatch.from_pydict(
    {
        "id": pa.array(["1", "2", "3"]),
        "größe": pa.array(["tab\t", None, "ß"]),
        "n": pa.array(["1.50", "NaN", None], pa.string()),
    }
)
CHUNK = Chunk(
    attempt="2026.a-b",
    piece=7,
    first_row=100,
    relation=Relation(16400, "public", "item", "d", COLUMNS),
    rows=ROWS,
    own_types=(),
    lineage=LINEAGE,
    until=Lsn(0x1F0),
    read_at=datetime(2026, 11, 16, tzinfo=UTC),
)
ENVELOPE = {
    "commit_lsn": 0x1F0,
    "ordinal": 3,
    "xid": None,
    "committed_at": CHUNK.read_at,
    "op": "r",
    "schema": "public",
    "table": "item",
    "key": '{"id": 1}',
    "before": None,
    "after": '{"id": 1}',
    "unchanged": None,
}


def test_a_frame_of_rows_has_each_of_them_at_its_place():
    frame = frame_of_rows(CHUNK)

    changes = [change for change in decode_rows(frame.batch, frame.types) if isinstance(change, Change)]

    assert [change.position for change in changes] == [Position(Lsn(0x1F0), number) for number in (100, 101, 102)]
    assert [(change.key, (change.after or {})["größe"]) for change in changes] == [
        ({"id": 1}, "tab\t"),
        ({"id": 2}, None),
        ({"id": 3}, "ß"),
    ]


def test_a_letter_gives_back_the_row_that_it_was_made_of():
    (letter,) = letters_of_rows(CHUNK, {1: "no number"}, pipeline="shop", sink="files")

    assert (letter.op, letter.key, letter.position, letter.xid) == ("r", {"id": 2}, Position(Lsn(0x1F0), 101), 0)
    assert row_of(letter)["after"] == {"id": 2, "größe": None, "n": "NaN"}
    expected = replace(CHUNK, rows=ROWS.slice(1, 1), first_row=101, attempt="2026_a-b")
    assert chunk_of(letter).rows.to_pylist() == expected.rows.to_pylist()
    assert replace(chunk_of(letter), rows=expected.rows, lineage=LINEAGE) == expected


def test_ids_tell_rows_and_attempts_apart():
    reasons = {0: "", 1: ""}
    chunks = (CHUNK, replace(CHUNK, piece=8), replace(CHUNK, attempt="other"))
    ids = [letter.event_id for chunk in chunks for letter in letters_of_rows(chunk, reasons, pipeline="p", sink="s")]
    others = ({**ENVELOPE, "after": '{"id": 2}'}, {**ENVELOPE, "ordinal": 4}, {**ENVELOPE, "table": "b"}, ENVELOPE)
    ids += [letter_of_read_envelope(one, LINEAGE, "x", "", pipeline="p", sink="s").event_id for one in others]

    assert len(set(ids)) == len(ids) == 10
    assert [is_attempt_of("2026.a-b", id) for id in ids] == [True] * 4 + [False] * 6


def test_a_change_at_the_position_of_a_row_that_was_read_is_later_and_at_that_of_a_change_it_is_the_same():
    place = Position(Lsn(5), 1)
    read = OpenLetter(1, "public", "item", {"id": 1}, None, *place, "r", "1.1.d.s.5.ra-1_1")
    change = replace(read, op="c", event_id="1.1.d.s.5.1")

    assert (read.is_before(place), change.is_before(place)) == (True, False)
    assert (read.is_of("a"), read.is_of("b"), change.is_of("a")) == (True, False, False)
    assert not read.is_before(Position(Lsn(5), 0))
