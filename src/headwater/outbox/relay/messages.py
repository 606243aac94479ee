"""Entries as columns, which is how brokers take them. Pure."""

import json
from collections.abc import Sequence

import pyarrow as pa

from headwater.model import MESSAGE, Messages
from headwater.outbox.relay.entry import Entry

_NO_HEADERS: list[tuple[str, str]] = []


def as_messages(entries: Sequence[Entry]) -> Messages:
    """The messages of entries, in their order."""
    columns = [
        [entry.id for entry in entries],
        [entry.topic for entry in entries],
        [entry.type for entry in entries],
        [entry.key for entry in entries],
        [entry.payload.encode() for entry in entries],
        ["application/json"] * len(entries),
        [_headers(entry.headers) for entry in entries],
        [entry.created_us for entry in entries],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, MESSAGE, strict=True)]
    return Messages(pa.RecordBatch.from_arrays(arrays, schema=MESSAGE))


def _headers(text: str) -> list[tuple[str, str]]:
    return _NO_HEADERS if text == "{}" else list(json.loads(text).items())
