"""The replication protocol's own messages."""

import struct
from datetime import UTC, datetime

import pytest

from headwater.errors import DecodeError
from headwater.model import Lsn, TimelineSwitch
from headwater.postgres.replication.protocol import (
    Keepalive,
    parse_keepalive,
    parse_timeline_history,
    start_replication,
    status_update,
)


def test_a_keepalive_tells_where_the_server_is_and_whether_it_wants_an_answer():
    assert parse_keepalive(struct.pack("!cQqB", b"k", 77, 0, 1)) == Keepalive(Lsn(77), True)
    assert parse_keepalive(struct.pack("!cQqB", b"k", 77, 0, 0)) == Keepalive(Lsn(77), False)


@pytest.mark.parametrize("data", [b"k", b"k" + bytes(16), b"x" + bytes(17)])
def test_what_is_no_keepalive_raises_decode_error(data):
    with pytest.raises(DecodeError):
        parse_keepalive(data)


def test_a_status_update_confirms_flush_and_apply_and_never_claims_to_have_received_less():
    now = datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC)
    tag, written, flushed, applied, micros, reply = struct.unpack("!cQQQqB", status_update(Lsn(50), Lsn(40), now))
    assert (tag, written, flushed, applied, micros, reply) == (b"r", 50, 50, 50, 1_000_000, 0)
    assert struct.unpack("!cQQQqB", status_update(Lsn(50), Lsn(90), now))[1:4] == (90, 50, 50)


def test_names_and_options_are_quoted_in_the_start_command():
    command = start_replication('odd"slot', Lsn(16), {"publication_names": '"a","it\'s"'}).as_string()
    assert command == """START_REPLICATION SLOT "odd""slot" LOGICAL 0/10 ("publication_names" '"a","it''s"')"""


def test_a_timeline_history_gives_its_switches_and_leaves_out_comments():
    content = "1\t0/3000000\tno recovery target specified\n\n# a comment\n2\t1/A0\tbefore 2026-01-01\n"
    assert parse_timeline_history(content) == (TimelineSwitch(1, Lsn(0x3000000)), TimelineSwitch(2, Lsn(0x1_000000A0)))
