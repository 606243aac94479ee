"""Messages that a broker refused, as dead letters, and letters as messages again. Pure."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from headwater.model import MESSAGE, Lsn, Messages, Op, Position
from headwater.spark.letters import Letter


def letters_of(
    rows: pa.RecordBatch, reasons: Mapping[int, str], *, pipeline: str, sink: str, table: tuple[str, str]
) -> list[Letter]:
    """The letters of some messages, by their place."""
    return [_letter(rows.slice(place, 1).to_pylist()[0], reason, pipeline, sink, table) for place, reason in reasons.items()]


def is_of_outbox(letter: Letter) -> bool:
    """Whether it is one of `letters_of`, and not that of a change."""
    return (letter.envelope or {}).get("message") is True


def messages_of(letter: Letter) -> Messages:
    """The message of a letter."""
    written = json.loads((letter.envelope or {})["after"])
    payload, is_text = written["payload"], isinstance(written["payload"], str)
    row = {
        **written,
        "payload": payload.encode() if is_text else b64decode(payload["base64"]),
        "headers": list((written["headers"] or {}).items()),
        "created_at": datetime.fromisoformat(written["created_at"]),
    }
    return Messages(pa.RecordBatch.from_pylist([row], MESSAGE))


def _letter(row: dict[str, Any], reason: str, pipeline: str, sink: str, table: tuple[str, str]) -> Letter:
    lsn, ordinal, at = row["commit_lsn"] or 0, row["ordinal"] or 0, row["created_at"].astimezone(UTC)
    after = {name: row[name] for name in ("id", "topic", "type", "key", "content_type")}
    after |= {"payload": _text(row["payload"]), "headers": dict(row["headers"] or ()), "created_at": at.isoformat()}
    key = {"id": row["id"]}
    return Letter(
        pipeline=pipeline,
        sink=sink,
        event_id=row["id"],
        schema=table[0],
        table=table[1],
        op=str(Op.INSERT),
        position=Position(Lsn(lsn), ordinal),
        xid=row["xid"] or 0,
        committed_at=at,
        key=key,
        reason=reason,
        envelope={
            "commit_lsn": lsn,
            "ordinal": ordinal,
            "xid": row["xid"],
            "committed_at": at.isoformat(),
            "op": str(Op.INSERT),
            "schema": table[0],
            "table": table[1],
            "key": json.dumps(key),
            "before": None,
            "after": json.dumps(after, ensure_ascii=False),
            "unchanged": [],
            "message": True,
        },
    )


def _text(payload: bytes) -> str | dict[str, str]:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(payload).decode()}
