"""Logical messages of a prefix as rows: they are counted, placed and ordered as rows are, and others are left alone."""

import struct

from headwater.capture.assemble import Assembler
from headwater.capture.emitted import EMITTED, EmittedRows
from headwater.postgres.replication.columnar import as_sent, decode_columns
from headwater.postgres.types import Types


def _message(prefix, content, *, transactional=True, lsn=7):
    return memoryview(
        b"M" + struct.pack("!BQ", transactional, lsn) + prefix.encode() + b"\0" + struct.pack("!I", len(content)) + content
    )


BEGIN = memoryview(b"B" + struct.pack("!QqI", 100, 0, 42))
COMMIT = memoryview(b"C" + struct.pack("!BQQq", 0, 100, 120, 0))


def _rows(tmp_path, *messages):
    assembler, emitted = Assembler(1 << 20, tmp_path), EmittedRows("ours")
    (batch,) = list(assembler.feed(emitted.of([BEGIN, *messages, COMMIT]))) + list(assembler.flush())
    return batch, decode_columns(batch, Types.builtin(), as_sent)


def test_messages_of_the_prefix_are_rows_with_positions(tmp_path):
    batch, (group,) = _rows(tmp_path, _message("ours", b"a", lsn=3), _message("ours", "é".encode(), lsn=4))
    assert (batch.changes, group.relation) == (2, EMITTED)
    assert group.after.to_pylist() == [{"lsn": "0/3", "content": "a"}, {"lsn": "0/4", "content": "é"}]
    assert (group.places.ordinal.tolist(), group.places.commit_lsn.tolist()) == ([0, 1], [100, 100])


def test_other_messages_and_those_of_no_transaction_are_none(tmp_path):
    batch, groups = _rows(tmp_path, _message("theirs", b"a"), _message("ours.too", b"b"))
    assert (batch.changes, groups) == (0, [])
    outside = _message("ours", b"c", transactional=False)
    assert list(EmittedRows("ours").of([outside])) == [outside]


def test_what_is_no_text_does_not_stop_the_others(tmp_path):
    _, (group,) = _rows(tmp_path, _message("ours", b"\xff"), _message("ours", b"fine"))
    assert group.after["content"].to_pylist() == ["\ufffd", "fine"]


def test_the_table_is_described_once(tmp_path):
    emitted = EmittedRows("ours")
    first, second = list(emitted.of([_message("ours", b"a")])), list(emitted.of([_message("ours", b"b")]))
    assert [bytes(message[:1]) for message in first + second] == [b"R", b"I", b"I"]
