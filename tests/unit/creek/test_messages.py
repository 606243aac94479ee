"""Messages that are JSON: as Creek writes them, and what Creek wrote."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest

from headwater.creek.messages import EOF, SchemaMessage, SnapshotHeader, SnapshotRequest
from headwater.model import Lsn

AT = datetime(2023, 8, 30, 12, 1, 2, 123456, UTC)
SCHEMA = SchemaMessage("9oTzOV2QDOA=", '{"type":"record"}', "public.other", AT)
HEADER = SnapshotHeader("", "tehSZhnhMvI=", '{"type":"record"}', 504, Lsn.parse("0/17FA337"), AT, -1)


def test_a_schema_message_has_creeks_keys_in_creeks_order():
    assert SCHEMA.to_json() == (
        b'{"fingerprint":"9oTzOV2QDOA=","schema":"{\\"type\\":\\"record\\"}","source":"public.other",'
        b'"created_at":"2023-08-30T12:01:02.123456Z"}'
    )


def test_a_snapshot_header_has_creeks_keys_in_creeks_order():
    assert json.loads(HEADER.to_json()) == {
        "topic": "",
        "fingerprint": "tehSZhnhMvI=",
        "schema": '{"type":"record"}',
        "tx_id": 504,
        "lsn": "0/17FA337",
        "at": "2023-08-30T12:01:02.123456Z",
        "approx_rows": -1,
    }
    assert list(json.loads(HEADER.to_json())) == ["topic", "fingerprint", "schema", "tx_id", "lsn", "at", "approx_rows"]


def test_messages_come_back_as_they_were():
    request = SnapshotRequest("db", "public", 'a "t"')
    assert SchemaMessage.from_json(SCHEMA.to_json()) == SCHEMA
    assert SnapshotHeader.from_json(HEADER.to_json()) == HEADER
    assert SnapshotRequest.from_json(request.to_json()) == request
    assert EOF == b"EOF"


def test_times_as_go_writes_them_are_read():
    body = json.loads(SCHEMA.to_json()) | {"created_at": "2023-08-30T14:01:02.123456789+02:00"}
    expected = datetime(2023, 8, 30, 14, 1, 2, 123456, timezone(timedelta(hours=2)))
    assert SchemaMessage.from_json(json.dumps(body).encode()).created_at == expected


def test_a_header_of_the_first_version_has_no_topic():
    body = json.loads(HEADER.to_json())
    del body["topic"]
    assert SnapshotHeader.from_json(json.dumps(body).encode()) == HEADER


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[]", "no JSON object"),
        (b'{"database":1,"namespace":"n","table":"t"}', "'database' is not text"),
        (b'{"database":"d","table":"t"}', "'namespace' is not text"),
    ],
)
def test_a_request_that_is_none_is_refused_with_the_reason(body, reason):
    with pytest.raises(ValueError, match=f"not a snapshot request: .*{reason}"):
        SnapshotRequest.from_json(body)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lsn", "x"),
        ("at", "yesterday"),
        ("at", "2023-08-30T12:01:02"),
        ("tx_id", "1"),
        ("tx_id", True),
        ("approx_rows", None),
    ],
)
def test_a_header_with_a_wrong_member_is_refused(name, value):
    body = json.loads(HEADER.to_json()) | {name: value}
    with pytest.raises(ValueError, match="not a"):
        SnapshotHeader.from_json(json.dumps(body).encode())


def test_a_time_without_offset_is_never_sent():
    with pytest.raises(ValueError, match="offset from UTC"):
        SchemaMessage("", "", "", datetime(2023, 8, 30)).to_json()
