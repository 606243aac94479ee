"""Transactions in commit order: whole, in pieces, streamed, aborted."""

import subprocess
import sys
from pathlib import Path

import pytest

from headwater.capture.assemble import Assembler
from headwater.errors import DecodeError
from headwater.model import Change, LogicalMessage, Lsn
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.rows import decode_rows
from tests.data.record import VERSIONS, load
from tests.support.capture import pgoutput_writer as write
from tests.support.capture.captured_database import open_files, row_after
from tests.support.capture.recordings import TYPES, batches, changes, line

RELATION = write.relation(1, "t", [("id", 23, -1, True)])


def _rows(found):
    """Commit, ordinal and id of each insert."""
    rows = [change for batch in found for change in decode_rows(batch, TYPES)]
    return [(row.position.commit_lsn, row.position.ordinal, row_after(row)["id"]) for row in rows if isinstance(row, Change)]


def _transaction(commit: int, *ids: int) -> list[bytes]:
    inserts = [write.insert(1, [str(i)]) for i in ids]
    return [write.begin(commit), RELATION, *inserts, write.commit(commit, commit + 5)]


@pytest.mark.parametrize(("scenario", "version"), [("streamed", v) for v in VERSIONS] + [("parallel", 16), ("parallel", 18)])
@pytest.mark.parametrize("batch_bytes", [2_000, 20_000, 1 << 20])
def test_a_streamed_transaction_gives_the_same_changes_and_ordinals_as_a_whole_one(scenario, version, batch_bytes):
    streamed = [line(c) for c in changes(scenario, version, batch_bytes) if isinstance(c, Change)]
    whole = [line(c) for c in changes("unstreamed", version) if isinstance(c, Change)]
    assert streamed == whole


@pytest.mark.parametrize("version", VERSIONS)
def test_a_logical_message_in_a_streamed_transaction_comes_once_with_its_transaction(version):
    messages = [c for c in changes("streamed", version) if isinstance(c, LogicalMessage)]
    assert [(m.prefix, m.content) for m in messages] == [("app", b"streamed")]
    assert messages[0].position is not None


@pytest.mark.parametrize("batch_bytes", [1, 60, 500, 5_000, 1 << 20])
def test_pieces_of_any_size_give_the_same_changes_with_the_same_positions(batch_bytes):
    stream = [m for n in range(1, 30) for m in _transaction(n * 100, *range(n * 1000, n * 1000 + n))]
    whole = _rows(batches(stream))
    assert len(whole) == sum(range(1, 30))
    assert _rows(batches(stream, batch_bytes)) == whole


def test_small_transactions_are_gathered_and_end_where_the_last_of_them_ends():
    (batch,) = batches([*_transaction(100, 1), *_transaction(200, 2)])
    assert (batch.changes, batch.end, batch.begin) == (2, Lsn(205), None)


def test_only_the_last_piece_of_a_large_transaction_can_be_confirmed():
    found = batches(_transaction(100, *range(50)), batch_bytes=200)
    assert len(found) > 3
    assert [batch.end for batch in found[:-1]] == [None] * (len(found) - 1)
    assert found[-1].end == Lsn(105)
    assert [batch.first_ordinal for batch in found[1:]] == [
        sum(b.changes for b in found[: i + 1]) for i in range(len(found) - 1)
    ]


def test_every_batch_can_be_decoded_without_the_ones_before_it():
    found = batches([*_transaction(100, *range(30)), *_transaction(200, 99)], batch_bytes=100)
    assert [row for batch in reversed(found) for row in reversed(_rows([batch]))] == list(reversed(_rows(found)))


def test_a_transaction_without_commit_is_not_given_out_by_a_flush(tmp_path):
    assembler = Assembler(1 << 20, tmp_path)
    assert not [*assembler.feed(map(memoryview, _transaction(100, 1)[:-1])), *assembler.flush()]


def test_streamed_transactions_come_in_the_order_of_their_commits():
    def block(xid: int, *ids: int, first: bool) -> list[bytes]:
        inserts = [write.streamed(write.insert(1, [str(i)]), xid) for i in ids]
        return [write.stream_start(xid, first=first), write.streamed(RELATION, xid), *inserts, write.stream_stop()]

    stream = [*block(7, 1, 2, first=True), *block(8, 10, first=True), *block(7, 3, first=False), *_transaction(50, 99)]
    stream += [write.stream_commit(8, 100, 105), *block(9, 5, first=True), write.stream_abort(9, 9)]
    stream += [write.stream_commit(7, 200, 205)]
    assert _rows(batches(stream)) == [(50, 0, 99), (100, 0, 10), (200, 0, 1), (200, 1, 2), (200, 2, 3)]


def test_what_an_aborted_subtransaction_wrote_is_left_out_and_not_counted():
    def insert(i: int, subxid: int) -> bytes:
        return write.streamed(write.insert(1, [str(i)]), subxid)

    stream = [
        write.stream_start(7),
        write.streamed(RELATION, 7),
        insert(1, 7),
        insert(2, 8),
        insert(3, 9),
        write.stream_stop(),
    ]
    stream += [write.stream_abort(7, 8), write.stream_start(7, first=False), insert(4, 7), write.stream_stop()]
    stream += [write.stream_abort(7, 9), write.stream_commit(7, 100, 105)]
    assert _rows(batches(stream)) == [(100, 0, 1), (100, 1, 4)]


def test_a_truncate_takes_an_ordinal_for_each_of_its_tables():
    other = write.relation(2, "u", [("id", 23, -1, True)])
    stream = [write.begin(10), RELATION, other, write.truncate(1, 2), write.insert(1, ["1"]), write.commit(10, 15)]
    (batch,) = batches(stream)
    places = [(c.op, c.table, c.position.ordinal) for c in decode_rows(batch, TYPES) if isinstance(c, Change)]
    assert batch.changes == 3
    assert places == [("t", "t", 0), ("t", "u", 1), ("c", "t", 2)]


def test_a_logical_message_outside_of_transactions_can_be_confirmed_by_itself():
    (batch,) = batches([write.message(77, "app", b"x", transactional=False)])
    assert (batch.end, batch.changes) == (Lsn(77), 0)
    (found,) = decode_rows(batch, TYPES)
    assert found == LogicalMessage(Lsn(77), "app", b"x", None, None, None)


@pytest.mark.parametrize(
    "stream",
    [
        [write.insert(1, ["1"])],
        [write.commit(1, 2)],
        [write.begin(1), write.begin(2)],
        [write.begin(1), write.stream_start(7)],
        [write.stream_start(7), write.stream_start(8)],
        [write.stream_start(7), write.commit(1, 2)],
        [write.stream_stop()],
        [b""],
        [b"Z"],
        [b"S"],
        [write.begin(1), write.commit(1, 2)[:5]],
    ],
)
def test_messages_out_of_place_raise_decode_error(stream):
    with pytest.raises(DecodeError):
        batches(stream)


def test_a_slot_that_decodes_at_prepare_is_refused_with_the_remedy():
    with pytest.raises(DecodeError, match="two_phase = false"):
        batches(load("prepared", 18))


def test_nothing_is_left_in_the_spill_directory_whether_committed_aborted_or_dropped(tmp_path):
    stream = load("streamed", 18)
    assembler = Assembler(10_000, tmp_path)
    opened: list[int] = []
    held: list[Batch] = []
    for message in stream:
        held += assembler.feed([memoryview(message)])
        opened.append(open_files(tmp_path))
    assert set(opened) == {0, 1}
    assert held
    # Stopped in the middle of a transaction, all is let go too.
    list(assembler.feed(map(memoryview, stream[: opened.index(1) + 1])))
    assert open_files(tmp_path) == 1
    assembler.close()
    assert open_files(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []


FULL_DISK = """
import resource, sys
from pathlib import Path
from headwater.capture.assemble import Assembler
from headwater.errors import SourceError
from tests.data.record import load
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    list(Assembler(10_000, Path(sys.argv[1])).feed(map(memoryview, load("streamed", 18))))
except SourceError as exc:
    print(exc)
"""


def test_a_full_disk_names_the_transaction_the_directory_and_the_remedy(tmp_path):
    command, root = [sys.executable, "-c", FULL_DISK, str(tmp_path)], Path(__file__).parents[3]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert "cannot keep transaction" in run.stdout
    assert str(tmp_path) in run.stdout
    assert "make room" in run.stdout
