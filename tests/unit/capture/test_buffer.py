"""The meeting place of the capture thread and its consumer."""

from threading import Thread

import pytest

from headwater.capture.buffer import Buffer
from headwater.errors import SlotMissing
from headwater.model import Lsn
from headwater.postgres.replication.batch import Batch, lay_out


def _batch(size: int, end: int | None) -> Batch:
    return Batch(*lay_out([b"x" * size]), {}, 1, None if end is None else Lsn(end))


def _buffer(max_bytes: int = 100) -> tuple[Buffer, list[None]]:
    woken: list[None] = []
    return Buffer(max_bytes, lambda: woken.append(None)), woken


def _end(batch: Batch | None) -> Lsn | None:
    assert batch is not None
    return batch.end


def test_batches_come_out_in_the_order_they_went_in():
    buffer, _ = _buffer()
    for end in (1, 2, 3):
        buffer.put(_batch(1, end))
    assert [_end(buffer.take(0)) for _ in range(3)] == [1, 2, 3]


def test_a_full_buffer_says_so_and_taking_from_it_wakes_the_reader():
    buffer, woken = _buffer(100)
    full = []
    for end in (1, 2):
        buffer.put(_batch(60, end))
        full.append(buffer.is_full)
    buffer.take(0)
    assert woken
    assert [*full, buffer.is_full] == [False, True, False]


def test_a_consumer_that_waits_is_woken_by_a_batch():
    buffer, _ = _buffer()
    taken: list[Batch | None] = []
    consumer = Thread(target=lambda: taken.append(buffer.take(None)))
    consumer.start()
    buffer.put(_batch(1, 7))
    consumer.join(10)
    assert [_end(batch) for batch in taken] == [7]


def test_a_failure_is_raised_after_what_was_read_before_it_is_taken():
    buffer, _ = _buffer()
    buffer.put(_batch(1, 7))
    buffer.fail(SlotMissing("hw"))
    assert _end(buffer.take(0)) == 7
    for _ in range(2):
        with pytest.raises(SlotMissing):
            buffer.take(None)


def test_a_closed_buffer_ends_every_wait():
    buffer, _ = _buffer()
    buffer.close()
    assert buffer.take(None) is None


def test_positions_only_go_forward():
    buffer, _ = _buffer()
    buffer.confirm(Lsn(9))
    buffer.confirm(Lsn(5))
    assert buffer.confirmed == 9


def test_a_piece_without_end_does_not_move_the_end_of_what_was_read_whole():
    buffer, _ = _buffer()
    buffer.put(_batch(1, 7))
    buffer.put(_batch(1, None))
    assert buffer.put_end == 7
