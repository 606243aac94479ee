"""Letters from frames and back: what a letter carries is enough to make its change again."""

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from headwater.errors import DecodeError
from headwater.model import UNCHANGED, Change, Lineage, Lsn, Position
from headwater.postgres.replication.batch import Batch, lay_out
from headwater.postgres.replication.columnar import decode_columns
from headwater.postgres.replication.messages import Begin
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Kind, PgType, to_json
from headwater.spark.frame import Frame
from headwater.spark.letters import (
    frame_of,
    key_of,
    letter_at,
    letter_of_envelope,
    letter_of_message,
    letters_at,
    row_of,
    without_misfits,
)
from tests.support.capture import pgoutput_writer as write

LINEAGE = Lineage("7000000000000000001", 3, (), "my.shop", "hw")
COLUMNS = [("id", 20, -1, True), ("name", 25, -1, False)]
OTHER = [("id", 20, -1, True), ("mood", 90001, -1, False)]
MOOD = PgType(oid=90001, schema="public", name="mood", kind=Kind.ENUM)
UNUSED = PgType(oid=90002, schema="public", name="unused", kind=Kind.ENUM)
TO: dict[str, Any] = {"pipeline": "shop", "sink": "out"}


def frame(*messages: bytes, **facts) -> Frame:
    data, bounds = lay_out(messages)
    batch = Batch(data, bounds, relations={}, changes=0, end=None, **facts)
    return Frame(5, None, batch, (MOOD, UNUSED), LINEAGE)


def changes(of: Frame) -> list[Change]:
    return [change for change in decode_rows(of.batch, of.types, to_json) if isinstance(change, Change)]


TWO_TRANSACTIONS = frame(
    write.begin(100, micros=5, xid=8),
    write.relation(1, "a", COLUMNS),
    write.insert(1, ["1", "one"]),
    write.update(1, ["2", UNCHANGED], ["1", None]),
    write.commit(100, 110),
    write.begin(200, micros=6, xid=9),
    write.relation(2, "b", OTHER),
    write.relation(1, "a", [*COLUMNS, ("more", 23, -1, False)]),
    write.insert(2, ["7", "happy"]),
    write.truncate(1, 2),
    write.insert(1, ["3", None, "5"]),
    write.delete(1, ["3", None, None]),
    write.commit(200, 210),
)


def test_a_frame_made_of_a_letter_holds_the_same_change_with_the_same_id():
    every = changes(TWO_TRANSACTIONS)

    made = [frame_of(letter_at(TWO_TRANSACTIONS, change.position, "why", **TO)) for change in every]

    assert [changes(one) for one in made] == [[change] for change in every]
    assert [one.lineage.event_id(change.position) for one, change in zip(made, every, strict=True)] == [
        LINEAGE.event_id(change.position) for change in every
    ]


def test_a_letter_names_its_change_and_both_keys_of_one_that_moves_a_row():
    letter = letter_at(TWO_TRANSACTIONS, Position(Lsn(100), 1), "why", **TO)

    assert (letter.op, letter.schema, letter.table, letter.xid) == ("u_pk", "public", "a", 8)
    assert (letter.key, letter.new_key) == ({"id": 1}, {"id": 2})
    assert letter.event_id == "7000000000000000001.3.my.shop.hw.64.1"
    assert letter.reason == "why"
    assert row_of(letter) == {"key": {"id": 1}, "before": {"id": 1}, "after": {"id": 2}, "unchanged": ["name"]}


def test_a_letter_carries_the_types_of_its_table_and_no_others():
    assert letter_at(TWO_TRANSACTIONS, Position(Lsn(200), 0), "", **TO).own_types == (MOOD,)
    assert letter_at(TWO_TRANSACTIONS, Position(Lsn(100), 0), "", **TO).own_types == ()


def test_a_message_is_found_by_its_index_too():
    assert letter_of_message(TWO_TRANSACTIONS, 2, "", **TO) == letter_at(TWO_TRANSACTIONS, Position(Lsn(100), 0), "", **TO)


def test_ordinals_of_a_lane_are_those_of_the_transaction():
    messages = [write.begin(100), write.relation(1, "a", COLUMNS), write.insert(1, ["1", "x"]), write.insert(1, ["2", "y"])]
    laned = frame(*messages, ordinals=np.array([0, 0, 4, 9]))

    letters = letters_at(laned, {Position(Lsn(100), 4): "a", Position(Lsn(100), 9): "b"}, **TO)

    assert [(letter.key, letter.reason, letter.position.ordinal) for letter in letters] == [
        ({"id": 1}, "a", 4),
        ({"id": 2}, "b", 9),
    ]


def test_what_came_in_a_stream_block_is_kept_without_its_transaction_id():
    begin = Begin(Lsn(300), datetime(2026, 1, 1, tzinfo=UTC), 12)
    messages = [write.streamed(one, 12) for one in (write.relation(1, "a", COLUMNS), write.insert(1, ["1", "x"]))]
    streamed = frame(*messages, begin=begin, first_ordinal=40, streamed=True)

    letter = letter_of_message(streamed, 1, "", **TO)

    assert (letter.message, letter.position) == (write.insert(1, ["1", "x"]), Position(Lsn(300), 40))
    assert changes(frame_of(letter)) == changes(streamed)


def test_only_the_rows_that_do_not_decode_are_taken_out():
    rows = [["1", "a"], ["oh", "b"], ["3", "c"], ["no", "d"], ["5", "e"]]
    spoiled = frame(write.begin(100), write.relation(1, "a", COLUMNS), *(write.insert(1, row) for row in rows))
    with pytest.raises(DecodeError):
        decode_columns(spoiled.batch, spoiled.types)

    rest, letters = without_misfits(spoiled, **TO)

    assert [(change.position.ordinal, change.after) for change in changes(rest)] == [
        (0, {"id": "1", "name": '"a"'}),
        (2, {"id": "3", "name": '"c"'}),
        (4, {"id": "5", "name": '"e"'}),
    ]
    assert [(letter.position.ordinal, letter.key) for letter in letters] == [(1, {"id": "oh"}), (3, {"id": "no"})]
    assert all("column 'id' of public.a" in letter.reason for letter in letters)
    assert row_of(letters[0])["after"] == {"id": "oh", "name": "b"}


def test_a_batch_that_nobody_can_read_is_not_taken_for_bad_rows():
    broken = frame(write.begin(100), b"R???", write.insert(1, ["1", "a"]))

    with pytest.raises(DecodeError):
        without_misfits(broken, **TO)


ENVELOPE = {
    "commit_lsn": 100,
    "ordinal": 2,
    "xid": 8,
    "committed_at": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
    "op": "u",
    "schema": "public",
    "table": "a",
    "key": '{"id": 1}',
    "before": None,
    "after": '{"id": 1, "name": "x"}',
    "unchanged": ["photo"],
}


def test_a_letter_of_an_envelope_carries_it_as_json():
    letter = letter_of_envelope(ENVELOPE, LINEAGE, "why", **TO)

    assert (letter.key, letter.position, letter.message) == ({"id": 1}, Position(Lsn(100), 2), None)
    assert letter.envelope == {**ENVELOPE, "committed_at": "2026-01-02T03:04:05.000678+00:00"}
    assert row_of(letter)["after"] == {"id": 1, "name": "x"}


def test_an_envelope_whose_key_is_no_json_is_kept_all_the_same():
    letter = letter_of_envelope({**ENVELOPE, "key": "{oh"}, LINEAGE, "why", **TO)

    assert (letter.key, row_of(letter)["key"]) == (None, "{oh")


def test_keys_compare_with_those_of_decoded_changes():
    every = changes(TWO_TRANSACTIONS)

    assert [key_of(change) for change in every] == [
        letter_at(TWO_TRANSACTIONS, change.position, "", **TO).key for change in every
    ]
    assert all(first.position < second.position for first, second in pairwise(every))
