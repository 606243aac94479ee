"""Streams and subjects of the Creek wire, in both of its generations, and where requests are made.

A database, schema or table is one token of a subject. What may not stand in a token, and `%`, is written as %HH there.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import unquote

from headwater.errors import SettingsError

# NATS takes any byte but blanks, the dot and the wildcards in a token; servers and tools get along best with ASCII.
_ESCAPED_IN_TOKEN = re.compile(rb"[^!-~]|[.*>%]")
# A stream is a directory on the server, so its name has no separators of paths either.
_ESCAPED_IN_STREAM = re.compile(rb"[^!-~]|[.*>%/\\]")
_ROOT = re.compile(r"[!-~]+")
_SUFFIX_BYTES = 2


class Generation(StrEnum):
    """Which of Creek's two wires: ONE is what its README describes and its PostgreSQL client speaks."""

    ONE = "1"
    TWO = "2"


class Kind(StrEnum):
    """What a stream holds; the values are the words in its name and its subjects."""

    WAL = "wal"
    SCHEMA = "schema"
    SNAPSHOT = "snap"


class Subject(NamedTuple):
    """A subject taken apart; `suffix` is the last token of a snapshot's."""

    kind: Kind
    database: str
    schema: str
    table: str
    suffix: str | None


@dataclass(frozen=True, slots=True)
class Names:
    """The names that one database's producer and its clients agree on; `root` is the NATS namespace."""

    root: str
    database: str
    generation: Generation = Generation.ONE

    def __post_init__(self) -> None:
        if not _ROOT.fullmatch(self.root) or _ESCAPED_IN_STREAM.search(self.root.encode()):
            raise SettingsError(f"{self.root!r} cannot be a NATS namespace; use letters, digits, dashes and underscores")

    def stream(self, kind: Kind) -> str:
        if self.generation is Generation.ONE:
            return f"{self.root}_{kind}"
        return f"{self.root}_{kind}_{_escaped(self.database, _ESCAPED_IN_STREAM)}"

    def stream_subject(self, kind: Kind) -> str:
        """All subjects of this database in a stream."""
        return f"{self._prefix(kind)}.>"

    def subject(self, kind: Kind, schema: str, table: str) -> str:
        return f"{self._prefix(kind)}.{token(schema)}.{token(table)}"

    def snapshot(self, schema: str, table: str, suffix: str) -> str:
        """The subject, or topic, of one snapshot."""
        return f"{self.subject(Kind.SNAPSHOT, schema, table)}.{suffix}"

    @property
    def schema_requests(self) -> tuple[str, ...]:
        """Where schemas are asked for; Creek's README names the second one of generation 1, and its code the first."""
        if self.generation is Generation.ONE:
            return (f"{self.root}._schema", f"{self.root}._schemas")
        return (self.stream(Kind.SCHEMA),)

    @property
    def snapshot_requests(self) -> tuple[str, ...]:
        """Where snapshots are asked for."""
        return (f"{self.root}._snapshot",) if self.generation is Generation.ONE else (self.stream(Kind.SNAPSHOT),)

    def _prefix(self, kind: Kind) -> str:
        return f"{self.root}.{token(self.database)}.{kind}" if self.generation is Generation.ONE else self.stream(kind)


def token(name: str) -> str:
    """A name as one token of a subject."""
    return _escaped(name, _ESCAPED_IN_TOKEN)


def name_of(text: str) -> str:
    """The name that a token stands for."""
    return unquote(text, errors="strict")


def _escaped(name: str, escaped: re.Pattern[bytes]) -> str:
    return escaped.sub(lambda found: b"%%%02X" % ord(found[0]), name.encode()).decode("ascii")


def parse_subject(subject: str, root: str, generation: Generation) -> Subject:
    """The parts of a subject in one of the streams; raises `ValueError` for any other."""
    try:
        head, *tokens = subject.removeprefix(root).split(".")
        if generation is Generation.ONE:
            database, kind, *rest = tokens
            is_ours = head == "" and subject.startswith(root)
        else:
            nothing, kind, database = head.split("_", 2)
            rest, is_ours = tokens, nothing == "" and subject.startswith(root)
        wanted = 3 if Kind(kind) is Kind.SNAPSHOT else 2
        if not is_ours or len(rest) != wanted or not all(tokens):
            raise ValueError("it has other parts")
        return Subject(Kind(kind), name_of(database), name_of(rest[0]), name_of(rest[1]), rest[2] if wanted == 3 else None)
    except ValueError as error:
        raise ValueError(f"not a subject of {root!r}: {subject!r}") from error


def snapshot_suffix(at: datetime, random: bytes) -> str:
    """The last token of a snapshot's subject: its time with microseconds, and two random bytes in hex."""
    if len(random) != _SUFFIX_BYTES:
        raise ValueError(f"a suffix takes {_SUFFIX_BYTES} random bytes, not {len(random)}")
    return f"{at:%Y%m%d%H%M%S}_{at.microsecond:06}_{random.hex()}"
