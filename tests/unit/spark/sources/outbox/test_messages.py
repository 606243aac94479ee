"""Rows of an outbox as messages: what each column becomes."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from headwater.outbox.columns import OutboxColumns
from headwater.spark.sources.outbox.messages import SCHEMA, of_rows, pack_messages, unpack_messages

OWN = OutboxColumns.headwater()


def _rows(columns, *rows):
    texts = [pa.array([row[place] for row in rows], pa.string()) for place in range(len(columns.names))]
    return pa.RecordBatch.from_arrays(texts, list(columns.names))


def test_our_own_table_gives_what_was_written():
    row = ("id1", "orders", "Created", "k", '{"b":1, "a":2}', '{"traceparent":"00-1"}', "2026-11-16 10:00:00.123456+00")
    (message,) = of_rows(_rows(OWN, row), OWN, "json").to_pylist()
    assert message == {
        "id": "id1",
        "topic": "orders",
        "type": "Created",
        "key": "k",
        "payload": b'{"b":1, "a":2}',
        "content_type": "application/json",
        "headers": [("traceparent", "00-1")],
        "created_at": datetime(2026, 11, 16, 10, 0, 0, 123456, UTC),
        "commit_lsn": None,
        "ordinal": 0,
        "xid": None,
    }


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("{}", None),
        (None, None),
        ('{"a":1,"b":"x"}', [("a", "1"), ("b", "x")]),
        ("[1]", [("headers", "[1]")]),
    ],
)
def test_headers_are_texts_and_what_is_no_object_is_not_lost(written, found):
    row = ("id1", "t", "T", None, "{}", written, "2026-11-16 10:00:00+00")
    (message,) = of_rows(_rows(OWN, row), OWN, "json").to_pylist()
    assert (message["headers"], message["key"]) == (found, None)


def test_a_table_of_ones_own_has_constants_bytes_and_headers_from_columns():
    columns = OutboxColumns.dialogporten("events")
    row = ("e1", "Created", "\\x00ff", "2026-11-16 10:00:00+00", "c1")
    (message,) = of_rows(_rows(columns, row), columns, "bytea").to_pylist()
    assert (message["topic"], message["type"], message["payload"]) == ("events", "Created", b"\x00\xff")
    assert message["headers"] == [("correlation-id", "c1")]
    assert message["content_type"] == "application/octet-stream"


def test_a_time_without_end_and_an_empty_payload_are_messages_all_the_same():
    row = ("id1", "t", "T", None, None, "{}", "infinity")
    (message,) = of_rows(_rows(OWN, row), OWN, "json").to_pylist()
    assert (message["payload"], message["created_at"]) == (b"", datetime(1970, 1, 1, tzinfo=UTC))


def test_packed_messages_are_the_same_again():
    row = ("id1", "t", "T", "é", json.dumps({"n": 1}), '{"a":"ü"}', "2026-11-16 10:00:00+00")
    messages = of_rows(_rows(OWN, row, row), OWN, "json")
    again = unpack_messages(pa.py_buffer(pack_messages(messages)))
    assert again.equals(messages)
    assert again.schema == SCHEMA


def test_what_the_type_of_the_payload_promises_is_what_is_said_of_it():
    row = ("id1", "t", "T", None, "hello", "{}", "2026-11-16 10:00:00+00")
    types = {"json": "application/json", "jsonb": "application/json", "text": "text/plain; charset=utf-8"}
    for payload_type, said in types.items():
        (message,) = of_rows(_rows(OWN, row), OWN, payload_type).to_pylist()
        assert message["content_type"] == said


def test_headers_that_cannot_be_written_stop_nothing():
    deep = "[" * 100_000 + "]" * 100_000
    rows = [("id1", "t", "T", None, "1", text, "2026-11-16 10:00:00+00") for text in ('{"a":"\\ud800"}', deep)]
    first, second = of_rows(_rows(OWN, *rows), OWN, "json").to_pylist()
    assert (first["headers"], second["headers"]) == ([("a", "?")], [("headers", deep)])
