"""Lines of a stream as messages."""

import io
from datetime import UTC, datetime

import pytest

from headwater.cli.topics.append import read_chunks
from headwater.errors import TopicError
from headwater.topics import Message, Topic

TOPIC = Topic(1, "orders", 2, False, None, None, 10, datetime(2026, 11, 16, tzinfo=UTC))


class Pieces(io.RawIOBase):
    """Gives what it was given, piece by piece, as a pipe does."""

    def __init__(self, *pieces):
        self._pieces = list(pieces)

    def readable(self):
        return True

    def readinto(self, buffer):
        piece = self._pieces.pop(0) if self._pieces else b""
        buffer[: len(piece)] = piece
        return len(piece)


def chunks(*pieces):
    return read_chunks(io.BufferedReader(Pieces(*pieces)), TOPIC, Message)


def payloads(*pieces):
    return [[message.payload for message in chunk] for chunk in chunks(*pieces)]


def test_what_a_pipe_has_is_given_at_once_and_lines_are_whole():
    assert payloads(b"a\nb\nc", b"d\ne", b"f") == [[b"a", b"b"], [b"cd"], [b"ef"]]


def test_an_empty_stream_has_no_messages_and_an_empty_line_is_one():
    assert payloads() == []
    assert payloads(b"\n") == [[b""]]


def test_of_a_bad_line_those_before_it_are_given_and_then_its_number_is_told():
    found = chunks(b"one\ntwo\n", b"three\nmuch too long\nfive\n")

    assert [message.payload for message in next(found)] == [b"one", b"two"]
    assert [message.payload for message in next(found)] == [b"three"]
    with pytest.raises(TopicError, match=r"line 4: the message has 13 bytes.*; the lines before it are appended"):
        next(found)
