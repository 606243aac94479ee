"""The messages of the Creek wire that are JSON: schemas, headers of snapshots, requests; and what ends a snapshot."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Self

from headwater.model import Lsn

EOF: Final = b"EOF"


@dataclass(frozen=True, slots=True)
class SchemaMessage:
    """A schema: on its stream and in replies. `source` is the table as `schema.table`."""

    fingerprint: str
    schema: str
    source: str
    created_at: datetime

    def to_json(self) -> bytes:
        return _dumped(
            {
                "fingerprint": self.fingerprint,
                "schema": self.schema,
                "source": self.source,
                "created_at": _instant(self.created_at),
            }
        )

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Raises `ValueError` for anything else than a schema message."""
        found = _Object(body, "schema message")
        return cls(found.text("fingerprint"), found.text("schema"), found.text("source"), found.instant("created_at"))


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """The first message of a snapshot. `topic` is its subject: empty on the wire, and filled in by whoever reads it."""

    topic: str
    fingerprint: str
    schema: str
    tx_id: int
    lsn: Lsn
    at: datetime
    approx_rows: int

    def to_json(self) -> bytes:
        return _dumped(
            {
                "topic": self.topic,
                "fingerprint": self.fingerprint,
                "schema": self.schema,
                "tx_id": self.tx_id,
                "lsn": str(self.lsn),
                "at": _instant(self.at),
                "approx_rows": self.approx_rows,
            }
        )

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Raises `ValueError` for anything else than a header."""
        found = _Object(body, "snapshot header")
        return cls(
            found.text("topic", ""),
            found.text("fingerprint"),
            found.text("schema"),
            found.integer("tx_id"),
            Lsn.parse(found.text("lsn")),
            found.instant("at"),
            found.integer("approx_rows"),
        )


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    database: str
    namespace: str
    table: str

    def to_json(self) -> bytes:
        return _dumped({"database": self.database, "namespace": self.namespace, "table": self.table})

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Raises `ValueError` for anything else than a request."""
        found = _Object(body, "snapshot request")
        return cls(found.text("database"), found.text("namespace"), found.text("table"))


class _Object:
    """A JSON object with members that must be there."""

    def __init__(self, body: bytes, what: str) -> None:
        try:
            content = json.loads(body)
        except ValueError as error:
            raise ValueError(f"not a {what}: it is no JSON") from error
        if not isinstance(content, dict):
            raise ValueError(f"not a {what}: it is no JSON object")
        self._content, self._what = content, what

    def text(self, name: str, default: str | None = None) -> str:
        value = self._content.get(name, default)
        if not isinstance(value, str):
            raise ValueError(f"not a {self._what}: {name!r} is not text")
        return value

    def integer(self, name: str) -> int:
        value = self._content.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"not a {self._what}: {name!r} is not a whole number")
        return value

    def instant(self, name: str) -> datetime:
        try:
            value = datetime.fromisoformat(self.text(name))
        except ValueError as error:
            raise ValueError(f"not a {self._what}: {name!r} is not a time of RFC 3339") from error
        if value.tzinfo is None:
            raise ValueError(f"not a {self._what}: {name!r} has no offset from UTC")
        return value


def _dumped(content: dict[str, object]) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


def _instant(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise ValueError("a time on the wire has an offset from UTC")
    return moment.isoformat().replace("+00:00", "Z")
