import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.brokers.nats.acks import AckReader, Acks, Failure
from headwater.brokers.nats.protocol import Inbound, Message

PREFIX = "_INBOX.x."


def answer(number: int, sequence: int, is_duplicate: bool) -> bytes:
    body = b'{"stream":"CREEK_wal","seq":%d%b}' % (sequence, b',"duplicate":true' if is_duplicate else b"")
    return b"MSG _INBOX.x.%d 1 %d\r\n%b\r\n" % (number, len(body), body)


def as_lists(acks: Acks) -> tuple[list[int], list[int], list[bool]]:
    return acks.numbers.tolist(), acks.sequences.tolist(), acks.is_duplicate.tolist()


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 10**9), st.booleans()), min_size=1, max_size=20), st.data())
def test_answers_read_in_bulk_are_those_read_one_by_one(answers, data):
    whole = b"".join(answer(*one) for one in answers)
    cut = data.draw(st.integers(0, len(whole)))
    reader, inbound, bulk = AckReader(PREFIX, 1), Inbound(), []
    for piece in (whole[:cut], whole[cut:]):
        inbound.add(piece)
        while run := inbound.take_run(reader.run):
            bulk += list(zip(*as_lists(reader.parse_run(run)), strict=True))
    assert bulk == answers
    assert inbound.is_empty
    inbound.add(whole)
    single = [reader.parse(message) for message in iter(inbound.take, None) if isinstance(message, Message)]
    assert [tuple(column[0] for column in as_lists(one)) for one in single if isinstance(one, Acks)] == answers


@pytest.mark.parametrize(
    "body",
    [
        b'{"stream":"S", "seq":5}',
        b'{"stream":"S","domain":"hub","seq":5}',
        b'{"stream":"S", "seq":5,"domain":"hub"}',
    ],
)
def test_answers_of_other_servers_are_read_in_bulk_too(body):
    reader, inbound = AckReader(PREFIX, 1), Inbound()
    inbound.add(b"MSG _INBOX.x.3 1 %d\r\n%b\r\n" % (len(body), body))
    assert as_lists(reader.parse_run(inbound.take_run(reader.run))) == ([3], [5], [False])


def test_errors_are_left_out_of_the_bulk():
    reader, inbound = AckReader(PREFIX, 1), Inbound()
    error = b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"},"stream":"S","seq":0}'
    inbound.add(answer(1, 8, False) + b"MSG _INBOX.x.2 1 %d\r\n%b\r\n" % (len(error), error))
    assert as_lists(reader.parse_run(inbound.take_run(reader.run)))[0] == [1]
    assert inbound.take_run(reader.run) == b""
    message = inbound.take()
    assert isinstance(message, Message)
    assert reader.parse(message) == Failure(2, 10077, "maximum messages exceeded")


def test_no_stream_that_listens_is_a_failure():
    message = Message(b"_INBOX.x.2", 1, b"", b"NATS/1.0 503\r\n\r\n", b"")
    failure = AckReader(PREFIX, 1).parse(message)
    assert failure == Failure(2, 503, "no stream listens")
    assert not failure.is_final


def test_a_message_that_is_too_large_is_refused_for_good():
    assert Failure(1, 10054, "message size exceeds maximum allowed").is_final


@pytest.mark.parametrize(
    ("subject", "payload"),
    [
        (b"_INBOX.y.2", b'{"stream":"S","seq":1}'),
        (b"_INBOX.x.q2", b'{"stream":"S","seq":1}'),
        (b"_INBOX.x.2", b"thanks"),
        (b"_INBOX.x.2", b"[]"),
        (b"_INBOX.x.2", b"{}"),
        (b"_INBOX.x.2", b'{"error":"no"}'),
        (b"_INBOX.x.2", b"\xff"),
    ],
)
def test_what_is_no_answer_of_jetstream_to_us_is_passed_over(subject, payload):
    assert AckReader(PREFIX, 1).parse(Message(subject, 1, b"", None, payload)) is None


def test_numbers_are_whole():
    assert AckReader(PREFIX, 1).parse_run(answer(7, 2**40, True)).sequences.dtype == np.int64
