"""How a change looks as one line: JSON for programs, words for people. Values come as JSON fragments from `to_json`."""

import json
from base64 import b64encode
from datetime import datetime
from functools import lru_cache

import typer

from headwater.model import UNCHANGED, Change, Lineage, LogicalMessage, Op, Row

_WORDS = {
    Op.INSERT: ("insert", "green"),
    Op.UPDATE: ("update", "yellow"),
    Op.UPDATE_KEY: ("key update", "yellow"),
    Op.DELETE: ("delete", "red"),
    Op.TRUNCATE: ("truncate", "red"),
    Op.READ: ("read", "blue"),
}
# Wide enough for most values; a longer one would push the rest of its row off the screen.
_VALUE_WIDTH = 60


def json_line(change: Change | LogicalMessage, lineage: Lineage) -> str:
    """One JSON object with the fields of the `changes` DataFrame and the event's stable id."""
    if isinstance(change, LogicalMessage):
        return json.dumps(_message_fields(change, lineage), ensure_ascii=False)
    place = change.position
    return (
        f'{{"id": {_quoted(lineage.event_id(place))}, "op": "{change.op}", "schema": {_name(change.schema)}, '
        f'"table": {_name(change.table)}, "commit_lsn": "{place.commit_lsn}", "ordinal": {place.ordinal}, '
        f'"xid": {change.xid}, "committed_at": "{_iso(change.committed_at)}", "key": {_object(change.key)}, '
        f'"before": {_object(change.before)}, "after": {_object(change.after)}, '
        f'"unchanged": [{", ".join(map(_name, change.unchanged))}]}}'
    )


def text_line(change: Change | LogicalMessage, *, color: bool) -> str:
    """Time, position, what happened to which table, and the row."""
    if isinstance(change, LogicalMessage):
        content = change.content.decode(errors="backslashreplace")
        return printable(f"{clock(change.committed_at)}  {change.lsn}  message  {change.prefix}  {shortened(content)}")
    word, style = _WORDS[change.op]
    shown = typer.style(f"{word:10}", fg=style) if color else f"{word:10}"
    place = f"{clock(change.committed_at)}  {change.position!s:16}"
    return f"{place}  {shown}  {printable(f'{change.schema}.{change.table}  {_words(change)}')}".rstrip()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


# Names and times recur from change to change.
_name = lru_cache(maxsize=4096)(_quoted)
_iso = lru_cache(maxsize=64)(datetime.isoformat)


def _message_fields(message: LogicalMessage, lineage: Lineage) -> dict[str, object]:
    return {
        "id": lineage.message_id(message.lsn),
        "op": "m",
        "lsn": str(message.lsn),
        "prefix": message.prefix,
        **_content(message.content),
        "commit_lsn": None if message.position is None else str(message.position.commit_lsn),
        "xid": message.xid,
        "committed_at": None if message.committed_at is None else message.committed_at.isoformat(),
    }


def _content(content: bytes) -> dict[str, str]:
    try:
        return {"content": content.decode()}
    except UnicodeDecodeError:
        return {"content_base64": b64encode(content).decode()}


def _object(row: Row | None) -> str:
    if row is None:
        return "null"
    sent = [f"{_name(name)}: {'null' if v is None else v}" for name, v in row.items() if v is not UNCHANGED]
    return "{" + ", ".join(sent) + "}"


def _words(change: Change) -> str:
    """The new row, behind what it was before as far as that is known and different; of a deleted row what was sent."""
    before, after = change.before or {}, change.after
    if after is None:
        return _values(before)
    old = {name: value for name, value in before.items() if after.get(name) != value}
    return f"{_values(old)} -> {_values(after)}" if old else _values(after)


def printable(text: str) -> str:
    """The text without what would make a terminal do something: control characters and changes of direction."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _values(row: Row) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in row.items())


def _value(value: object) -> str:
    if value is UNCHANGED:
        return "(unchanged)"
    return "NULL" if value is None else shortened(str(value))


def shortened(text: str, width: int = _VALUE_WIDTH) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def clock(moment: datetime | None) -> str:
    """The time of day, where we are."""
    return "-" * 12 if moment is None else moment.astimezone().strftime("%H:%M:%S.%f")[:-3]
