"""A change as one line of JSON, as `headwater tail` writes it: the fields of the `changes` DataFrame and the event's id; and
a message of an outbox as such a line."""

import json
from collections.abc import Mapping
from typing import Any

from headwater.errors import TransformError
from headwater.model import UNCHANGED, Change, Lsn, Op, Row


def change_line(change: Change, event_id: str) -> str:
    """The line of a change that was decoded with `to_json`."""
    row = {"key": change.key, "before": change.before, "after": change.after}
    # A row that came with its whole table is of no transaction.
    xid = None if change.op is Op.READ else change.xid
    head = {"op": change.op, "schema": change.schema, "table": change.table, "xid": xid}
    place = {"commit_lsn": change.position.commit_lsn, "ordinal": change.position.ordinal}
    parts = {name: None if part is None else json_object(part) for name, part in row.items()}
    return _line({**head, **place, "committed_at": change.committed_at, "unchanged": change.unchanged}, parts, event_id)


def envelope_line(envelope: Mapping[str, Any], event_id: str | None) -> str:
    """The line of a row of the DataFrame `changes`, which a transform may have made."""
    return _line(envelope, {name: _embedded(envelope[name]) for name in ("key", "before", "after")}, event_id)


def message_line(message: Mapping[str, Any]) -> str:
    """The line of a message of an outbox; a payload that is no text is written as hexadecimal digits."""
    payload: bytes = message["payload"]
    try:
        shown = _embedded(payload.decode())
    except UnicodeDecodeError:
        shown = _quoted(payload.hex())
    head = {name: message[name] for name in ("id", "topic", "type", "key")}
    head |= {"headers": dict(message["headers"] or ()), "created_at": message["created_at"].isoformat()}
    return f'{_quoted(head)[:-1]}, "payload": {shown}}}'


def json_object(row: Row) -> str:
    """A row of JSON fragments as an object, without what the server did not send."""
    sent = (f"{_quoted(name)}: {'null' if v is None else v}" for name, v in row.items() if v is not UNCHANGED)
    return "{" + ", ".join(sent) + "}"


def unplaced(column: str) -> TransformError:
    """For a row of the DataFrame `changes` that does not say where it stands, so that nobody could tell it from others."""
    return TransformError(f"a change without {column} came out of the transform; leave that column as it is")


def _line(facts: Mapping[str, Any], row: Mapping[str, str | None], event_id: str | None) -> str:
    head = {
        "id": event_id,
        "op": facts["op"],
        "schema": facts["schema"],
        "table": facts["table"],
        "commit_lsn": str(Lsn(facts["commit_lsn"])),
        "ordinal": facts["ordinal"],
        "xid": facts["xid"],
        "committed_at": facts["committed_at"].isoformat(),
    }
    parts = ", ".join(f'"{name}": {"null" if part is None else part}' for name, part in row.items())
    return f'{_quoted(head)[:-1]}, {parts}, "unchanged": {_quoted(list(facts["unchanged"] or ()))}}}'


def _embedded(text: str | None) -> str | None:
    """JSON of one line; a transform may write anything, and what is no JSON becomes a string."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return _quoted(text)
    return _quoted(value) if "\n" in text else text


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
