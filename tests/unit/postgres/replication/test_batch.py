"""A batch's bytes are cut where they were joined, and what stands in them is counted without decoding it."""

import pytest

from headwater.errors import DecodeError
from headwater.model import Lsn
from headwater.postgres.replication.batch import (
    XID_BYTES,
    Batch,
    changes_per_message,
    lay_out,
    placed,
    relations_in,
    tags_of,
)
from tests.support.capture import pgoutput_writer as write

ID = [("id", 20, -1, True)]


def test_messages_laid_out_are_found_again():
    messages: list[bytes | memoryview] = [write.begin(1), memoryview(write.insert(1, ["1"])), write.commit(1, 2)]
    batch = Batch(*lay_out(messages), {}, 1, None)
    assert [bytes(batch.message(i)) for i in range(len(batch))] == [bytes(message) for message in messages]


def test_nothing_laid_out_is_an_empty_batch():
    data, bounds = lay_out([])
    assert (data, bounds.tolist(), len(Batch(data, bounds, {}, 0, None))) == (b"", [0], 0)


def test_tags_are_the_first_bytes():
    assert bytes(tags_of(*lay_out([write.begin(1), write.insert(1, ["B"]), write.commit(1, 2)]))) == b"BIC"


def test_an_empty_message_has_no_tag():
    with pytest.raises(DecodeError, match="empty"):
        tags_of(*lay_out([write.begin(1), b"", write.commit(1, 2)]))


@pytest.mark.parametrize("streamed", [False, True])
def test_a_row_counts_once_and_a_truncate_once_for_each_table(streamed):
    messages = [
        write.relation(1, "t", ID),
        write.insert(1, ["1"]),
        write.truncate(1, 2, 3),
        write.message(5, "p", b""),
        write.update(1, ["1"]),
        write.delete(1, ["1"]),
    ]
    data, bounds = lay_out([write.streamed(message, 7) if streamed else message for message in messages])
    counts = changes_per_message(data, bounds, tags_of(data, bounds), XID_BYTES if streamed else 0)
    assert counts.tolist() == [0, 1, 3, 0, 1, 1]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_last_relation_message_of_a_table_counts_and_has_no_transaction_id(streamed):
    old, new, other = write.relation(1, "t", ID), write.relation(1, "renamed", ID), write.relation(2, "u", ID)
    messages = [old, other, write.insert(1, ["1"]), new]
    data, bounds = lay_out([write.streamed(message, 7) if streamed else message for message in messages])
    found = relations_in(data, bounds, tags_of(data, bounds), XID_BYTES if streamed else 0)
    assert found == {1: new, 2: other}


def test_an_error_gets_its_place_and_a_remedy():
    error = placed(DecodeError("it is broken"), Lsn(0x1_0000_0002), "I")
    assert (error.lsn, error.message_type) == (0x1_0000_0002, "I")
    assert str(error).startswith("cannot decode replication message 'I' at 1/2: it is broken; report it with this position;")


def test_an_error_outside_of_any_transaction_promises_no_position():
    error = placed(DecodeError("it is broken", message_type="B"), None, "I")
    assert (error.lsn, error.message_type) == (None, "B")
    assert "position" not in str(error)
