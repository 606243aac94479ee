"""The row-wise decoder, on what servers really sent and on what none would send."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import DecodeError
from headwater.model import UNCHANGED, Change, Lsn
from headwater.postgres.replication import messages as pg
from headwater.postgres.replication.pgoutput import decode
from tests.data.record import FOLDER, VERSIONS, load, recordings
from tests.support.capture.captured_database import row_after
from tests.support.capture.mutations import mutated_messages, require_decode_error
from tests.support.capture.recordings import changes, line


def _decoded(scenario: str, version: int) -> list[pg.PgoutputMessage]:
    found, streamed = [], False
    for data in load(scenario, version):
        message = decode(data, streamed=streamed)
        streamed = (streamed or isinstance(message, pg.StreamStart)) and not isinstance(message, pg.StreamStop)
        found.append(message)
    return found


@pytest.mark.parametrize(("scenario", "version"), [(s.name, v) for s, v in recordings()])
def test_every_recorded_message_decodes(scenario, version):
    assert len(_decoded(scenario, version)) == len(load(scenario, version))


@pytest.mark.parametrize("scenario", ["rows", "schema"])
@pytest.mark.parametrize("version", VERSIONS)
def test_changes_are_as_the_script_made_them(scenario, version):
    expected = (FOLDER / f"{scenario}.expected").read_text(encoding="utf-8").splitlines()
    assert [line(change) for change in changes(scenario, version)] == expected


def test_the_recordings_cover_every_kind_of_message():
    seen = {type(message) for scenario, version in recordings() for message in _decoded(scenario.name, version)}
    assert seen == set(pg.PgoutputMessage.__args__)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unchanged_large_column_is_neither_value_nor_null(version):
    update = next(m for m in _decoded("rows", version) if isinstance(m, pg.Update))
    assert update.new == (b"1", b"hammer", UNCHANGED, b"12.50")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_whole_old_row_gives_what_the_server_did_not_send_again(version):
    raw = [m for m in _decoded("rows", version) if isinstance(m, pg.Update) and m.old_kind == "O"]
    assert UNCHANGED in raw[0].new
    whole = [c for c in changes("rows", version) if isinstance(c, Change) and c.table == "whole" and c.op == "u"]
    assert whole[0].unchanged == ()
    assert whole[0].before is not None
    assert row_after(whole[0])["big"] == whole[0].before["big"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_replicated_transaction_names_its_origin(version):
    origins = [m for m in _decoded("rows", version) if isinstance(m, pg.Origin)]
    assert origins == [pg.Origin(Lsn(0xABCDEF), "elsewhere")]


@pytest.mark.parametrize("version", VERSIONS)
def test_two_phase_commit_is_decoded_with_its_global_ids(version):
    phases = [m for m in _decoded("prepared", version) if hasattr(m, "gid")]
    assert [(type(m).__name__, m.gid) for m in phases] == [
        ("BeginPrepare", "first"),
        ("Prepare", "first"),
        ("CommitPrepared", "first"),
        ("BeginPrepare", "second"),
        ("Prepare", "second"),
        ("RollbackPrepared", "second"),
        ("StreamPrepare", "large one"),
        ("CommitPrepared", "large one"),
    ]


def test_aborts_carry_a_position_since_protocol_4():
    assert all(m.abort_lsn is None for m in _decoded("streamed", 18) if isinstance(m, pg.StreamAbort))
    assert all(m.abort_lsn and m.aborted_at for m in _decoded("parallel", 18) if isinstance(m, pg.StreamAbort))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"Z", "no such message"),
        (b"B\0\0", "in mid field"),
        (b"B" + bytes(21), "left over"),
        (b"I" + struct.pack("!I", 1) + b"X", "'X' stands where"),
        (b"I" + struct.pack("!IcHci", 1, b"N", 1, b"t", 99) + b"short", "leaves the message"),
        (b"I" + struct.pack("!IcHci", 1, b"N", 1, b"t", -5), "leaves the message"),
        (b"I" + struct.pack("!IcHc", 1, b"N", 1, b"b"), "of kind 'b'"),
        (b"R" + struct.pack("!I", 1) + b"no end", "no end"),
        (b"R" + struct.pack("!I", 1) + b"\xff\0t\0d\0\0", "not UTF-8"),
        (b"T" + struct.pack("!IB", 2**31, 0), "in mid field"),
        (b"B" + struct.pack("!QqI", 1, 2**62, 1), "not a time stamp"),
    ],
)
def test_malformed_messages_say_what_is_wrong(data, reason):
    with pytest.raises(DecodeError, match=reason):
        decode(data)


@given(mutated_messages(), st.booleans())
def test_mutated_messages_decode_or_raise_decode_error_and_nothing_else(data: bytes, streamed: bool) -> None:
    require_decode_error(data, streamed=streamed)
