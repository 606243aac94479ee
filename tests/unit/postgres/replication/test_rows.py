"""Rows: operations, keys and places of changes, and errors that say where they happened."""

import pytest

from headwater.errors import DecodeError
from headwater.model import UNCHANGED, Change, LogicalMessage, Lsn, Op, Position
from headwater.postgres.replication.batch import Batch, lay_out
from headwater.postgres.replication.messages import Begin
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Types, to_json
from tests.support.capture import pgoutput_writer as write

TABLE = [("id", 25, -1, True), ("n", 23, -1, False)]
DESCRIBED = write.relation(1, "t", TABLE)


def _decoded(*messages: bytes) -> list[Change | LogicalMessage]:
    return list(decode_rows(Batch(*lay_out(messages), {}, 0, None), Types.builtin()))


def _changes(*messages: bytes) -> list[Change]:
    found = _decoded(write.begin(100, xid=7), DESCRIBED, *messages, write.commit(100, 105))
    return [change for change in found if isinstance(change, Change)]


def test_each_operation_has_its_rows_and_the_ordinal_counts_on():
    changes = _changes(
        write.insert(1, ["a", "1"]),
        write.update(1, ["a", "2"]),
        write.update(1, ["b", "2"], ["a", None]),
        write.delete(1, ["b", None]),
        write.truncate(1),
    )
    assert [(change.op, change.key, change.before, change.after) for change in changes] == [
        (Op.INSERT, {"id": "a"}, None, {"id": "a", "n": 1}),
        (Op.UPDATE, {"id": "a"}, None, {"id": "a", "n": 2}),
        (Op.UPDATE_KEY, {"id": "a"}, {"id": "a"}, {"id": "b", "n": 2}),
        (Op.DELETE, {"id": "b"}, {"id": "b"}, None),
        (Op.TRUNCATE, None, None, None),
    ]
    assert [change.position for change in changes] == [Position(Lsn(100), ordinal) for ordinal in range(5)]


def test_an_old_key_that_is_the_new_one_is_no_key_change_and_fills_what_was_not_sent():
    (change,) = _changes(write.update(1, [UNCHANGED, UNCHANGED], ["long", None]))
    assert (change.op, change.after, change.unchanged) == (Op.UPDATE, {"id": "long", "n": UNCHANGED}, ("n",))


def test_the_whole_old_row_fills_all_and_does_not_tell_of_a_key_change():
    (change,) = _changes(write.update(1, ["b", UNCHANGED], ["a", "1"], "O"))
    assert (change.op, change.after) == (Op.UPDATE, {"id": "b", "n": 1})


def test_a_transaction_goes_on_with_the_ordinal_and_the_tables_of_earlier_batches():
    begin = _changes(write.insert(1, ["a", "1"]))[0]
    (change,) = decode_rows(
        Batch(*lay_out([write.insert(1, ["b", "2"])]), {1: DESCRIBED}, 1, None, _begin(begin), 5), Types.builtin(), to_json
    )
    assert isinstance(change, Change)
    assert (change.position, change.after) == (Position(Lsn(100), 5), {"id": '"b"', "n": "2"})


def test_a_logical_message_takes_no_ordinal_and_has_a_position_only_inside_a_transaction():
    inside, outside = write.message(50, "p", b"in"), write.message(60, "p", b"out", transactional=False)
    first, change, second = _decoded(write.begin(100), DESCRIBED, inside, write.insert(1, ["a", "1"]), outside)
    assert isinstance(first, LogicalMessage)
    assert isinstance(second, LogicalMessage)
    assert (first.position, change.position, second.position) == (Position(Lsn(100), 0), Position(Lsn(100), 0), None)


def test_a_value_that_does_not_fit_is_reported_with_position_table_and_column():
    with pytest.raises(DecodeError, match=r"'I' at 0/64: column 'n' of public.t: 'x' is no valid int4; report it") as raised:
        _changes(write.insert(1, ["a", "1"]), write.insert(1, ["b", "x"]))
    assert (raised.value.lsn, raised.value.message_type) == (100, "I")


def test_a_malformed_message_is_reported_with_the_position_of_its_transaction():
    with pytest.raises(DecodeError) as raised:
        _changes(write.insert(1, ["a", "1"])[:-1])
    assert raised.value.lsn == 100


@pytest.mark.parametrize("message", [write.stream_stop(), write.stream_start(5), write.stream_abort(5, 5)])
def test_messages_that_frame_the_stream_have_no_place_in_a_batch(message):
    with pytest.raises(DecodeError, match="no place in a batch"):
        _changes(message)


def test_a_change_after_the_commit_is_refused_without_a_position():
    with pytest.raises(DecodeError, match="before the Begin") as raised:
        _decoded(write.begin(100), DESCRIBED, write.commit(100, 105), write.insert(1, ["a", "1"]))
    assert raised.value.lsn is None


def _begin(change: Change) -> Begin:
    return Begin(change.position.commit_lsn, change.committed_at, change.xid)
