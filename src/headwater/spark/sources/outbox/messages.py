"""Rows of an outbox as messages, by columns. Pure.

What comes from the stream and what is read from the table has the same form: the texts of the columns that matter.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.capture.emitted import EMITTED
from headwater.errors import DecodeError
from headwater.model import MESSAGE
from headwater.outbox.columns import OutboxColumns
from headwater.outbox.emit import Emitted, decode_emitted
from headwater.postgres.replication.columnar import Group, Ints, Places, as_sent, decode_columns
from headwater.postgres.types import Types, from_text
from headwater.spark.frame import Frame

SCHEMA: Final = pa.schema(
    [*MESSAGE, pa.field("commit_lsn", pa.int64()), pa.field("ordinal", pa.int32()), pa.field("xid", pa.int64())]
)

Pairs: TypeAlias = Sequence[tuple[str, str]]

_TIMESTAMPTZ: Final = 1184
_PAYLOAD_TYPES: Final = {17: "bytea", 114: "json", 3802: "jsonb"}
_JSON, _BYTES, _TEXT = "application/json", "application/octet-stream", "text/plain; charset=utf-8"
_CONTENT_TYPES: Final = {"bytea": _BYTES, "json": _JSON, "jsonb": _JSON}
# The years 1 to 9999, in microseconds of Unix time: what other programs can hold.
_EARLIEST, _LATEST = -62_135_596_800_000_000, 253_402_300_799_999_999
_NO_HEADERS: Final = ("", "{}", "null")


def of_frame(frame: Frame, columns: OutboxColumns) -> pa.RecordBatch:
    """The messages that a frame of inserts holds, in the order of the stream."""
    groups = decode_columns(frame.batch, frame.types, as_sent)
    found = pa.Table.from_batches([_of_group(group, columns) for group in groups], SCHEMA)
    if len(groups) > 1:
        found = found.sort_by([("commit_lsn", "ascending"), ("ordinal", "ascending")])
    return _one(found)


def of_rows(rows: pa.RecordBatch, columns: OutboxColumns, payload_type: str, first: int = 0) -> pa.RecordBatch:
    """The messages of rows that were read from the table; `rows` has the columns that `read_part` asks for.

    They have no place in the stream; their ordinals go on from `first`.
    """
    texts = dict(zip(columns.names, rows.columns, strict=True))
    ordinals = np.arange(first, first + rows.num_rows)
    return _built(texts, columns, _CONTENT_TYPES.get(payload_type, _TEXT), None, ordinals)


def pack_messages(messages: pa.RecordBatch) -> bytes:
    """A form that travels in one value."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, messages.schema) as writer:
        writer.write_batch(messages)
    return sink.getvalue()


def unpack_messages(packed: pa.Buffer) -> pa.RecordBatch:
    """What `pack_messages` made."""
    with pa.ipc.open_stream(packed) as reader:
        return cast("pa.RecordBatch", reader.read_next_batch())


def _of_group(group: Group, columns: OutboxColumns) -> pa.RecordBatch:
    rows = group.after
    assert rows is not None, "an insert has a row"
    if group.relation.oid == EMITTED.oid:
        return _of_emitted(rows, group.places)
    texts = {name: rows.column(name) for name in columns.names}
    types = {column.name: column.type_oid for column in group.relation.columns}
    content_type = _CONTENT_TYPES.get(_PAYLOAD_TYPES.get(types[columns.payload], ""), _TEXT)
    return _built(texts, columns, content_type, group.places, group.places.ordinal)


def _of_emitted(rows: pa.RecordBatch, places: Places) -> pa.RecordBatch:
    """Messages of the WAL. What can be none has no topic, and so becomes a dead letter where it is to be published."""
    events = [_event(lsn, content) for lsn, content in zip(*(column.to_pylist() for column in rows.columns), strict=True)]
    count, type_ = len(events), SCHEMA.field("headers").type
    arrays = [
        *(pa.array([getattr(event, name) for event in events], pa.string()) for name in ("id", "topic", "type", "key")),
        pa.array([event.payload for event in events], pa.binary()),
        pa.array([_JSON] * count, pa.string()),
        pa.array([list(event.headers.items()) for event in events], type_),
        _times(None, places, count),
        pa.array(places.commit_lsn),
        pa.array(places.ordinal, pa.int32()),
        pa.array(places.xid),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _event(lsn: str, content: str) -> Emitted:
    try:
        event = decode_emitted(content.encode())
        for text in (event.id, event.topic, event.type, event.key, *event.headers, *event.headers.values()):
            (text or "").encode()
    except (DecodeError, UnicodeEncodeError):
        return Emitted(f"emitted-{lsn}", "", "", None, content.encode(), {})
    return event if event.id is not None else replace(event, id=f"emitted-{lsn}")


def _built(
    texts: Mapping[str, pa.Array], columns: OutboxColumns, content_type: str, places: Places | None, ordinals: Ints
) -> pa.RecordBatch:
    ids = texts[columns.id]
    count = len(ids)

    def text(column: str | None, otherwise: str | None) -> pa.Array:
        if column is None:
            return pa.array([otherwise] * count, pa.string())
        return texts[column] if otherwise is None else pc.fill_null(texts[column], otherwise)

    written = texts[columns.payload]
    payload = _bytes(written) if content_type == _BYTES else pc.fill_null(written, "").cast(pa.binary())
    nothing = pa.nulls(count, pa.int64())
    arrays = [
        ids,
        text(columns.topic, columns.topic_value or ""),
        text(columns.type, columns.type_value or ""),
        text(columns.key, None),
        payload,
        pa.array([content_type] * count, pa.string()),
        _headers(texts, columns, count),
        _times(None if columns.created_at is None else texts[columns.created_at], places, count),
        nothing if places is None else pa.array(places.commit_lsn),
        pa.array(ordinals, pa.int32()),
        nothing if places is None else pa.array(places.xid),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _times(texts: pa.Array | None, places: Places | None, count: int) -> pa.Array:
    """When messages were written; when their transaction was committed, where the row does not say, or says for ever."""
    micros = np.zeros(count, np.int64) if places is None else places.committed_at
    otherwise = pa.array(micros).cast(pa.timestamp("us", "UTC"))
    if texts is None:
        return otherwise
    found, _ = from_text(texts, Types.builtin(), _TIMESTAMPTZ, -1)
    found = found.cast(pa.timestamp("us", "UTC"))
    number = found.cast(pa.int64())
    is_time = pc.and_(pc.greater(number, _EARLIEST), pc.less(number, _LATEST))
    return pc.if_else(pc.fill_null(is_time, False), found, otherwise)


def _bytes(texts: pa.Array) -> pa.Array:
    """Of the hexadecimal form of `bytea`."""
    return pa.array([b"" if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()], pa.binary())


def _headers(texts: Mapping[str, pa.Array], columns: OutboxColumns, count: int) -> pa.Array:
    type_ = SCHEMA.field("headers").type
    own = [(header, texts[column]) for header, column in columns.header_columns]
    if columns.headers is None:
        return pa.array(_joined([None] * count, own), type_) if own else pa.nulls(count, type_)
    written = texts[columns.headers].dictionary_encode()
    # Most messages have the same headers as others, or none; a trace context makes them differ.
    parsed = [_pairs(text) for text in written.dictionary.to_pylist()]
    if own:
        each = [None if place is None else parsed[place] for place in written.indices.to_pylist()]
        return pa.array(_joined(each, own), type_)
    return pa.array(parsed, type_).take(written.indices)


def _joined(written: Sequence[Pairs | None], own: Sequence[tuple[str, pa.Array]]) -> list[Pairs]:
    """Headers of each row, and those that are columns of their own."""
    names, values = [header for header, _ in own], [texts.to_pylist() for _, texts in own]
    return [
        [*(pairs or ()), *((name, value) for name, value in zip(names, row, strict=True) if value is not None)]
        for pairs, row in zip(written, zip(*values, strict=True), strict=True)
    ]


def _pairs(text: str) -> Pairs | None:
    if text in _NO_HEADERS:
        return None
    try:
        found: Any = json.loads(text)
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        return [("headers", text)]
    pairs = [(name, value if isinstance(value, str) else json.dumps(value)) for name, value in found.items()]
    return [(_sound(name), _sound(value)) for name, value in pairs]


def _sound(text: str) -> str:
    """A text that can be written: JSON may have one half of a character."""
    return text.encode(errors="replace").decode()


def _one(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], SCHEMA)
