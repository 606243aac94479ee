"""What a dead letter is, on its way to the state database and as it stands there."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from headwater.model import Lineage, Lsn, Op, Position
from headwater.postgres.types import PgType


class State(StrEnum):
    """What became of a letter: it waits, a later change of its key has made it pointless, or it was delivered after all."""

    OPEN = "open"
    SUPERSEDED = "superseded"
    REPLAYED = "replayed"


@dataclass(frozen=True, slots=True)
class Letter:
    """A change that a sink could not take, and why.

    It carries either what the server sent, a Relation message and the message of the change without the id of a stream
    block, or, behind a transform, the `envelope`. `key` is the row's key before the change and `new_key` the one that the
    change gave it, None if it stayed: as `to_json` writes values, parsed. `own_types` are the types of the user's own that
    the relation has. The letter of a row that came with its whole table has the op `r` and the message of an insert; all
    changes of the row at or after its position are later.
    """

    pipeline: str
    sink: str
    event_id: str
    schema: str
    table: str
    op: str
    position: Position
    xid: int
    committed_at: datetime
    key: dict[str, Any] | None
    reason: str
    relation: bytes | None = None
    message: bytes | None = None
    envelope: dict[str, Any] | None = None
    new_key: dict[str, Any] | None = None
    own_types: tuple[PgType, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A letter as the state database has it."""

    id: int
    state: State
    created_at: datetime
    letter: Letter


@dataclass(frozen=True, slots=True)
class OpenLetter:
    """What a sink has to know of a letter to tell whether a later change makes it pointless."""

    id: int
    schema: str
    table: str
    key: dict[str, Any] | None
    new_key: dict[str, Any] | None
    commit_lsn: Lsn
    ordinal: int
    op: str
    event_id: str

    @property
    def position(self) -> Position:
        return Position(self.commit_lsn, self.ordinal)

    def is_of(self, attempt: str) -> bool:
        """Whether it is a row that an attempt at reading the whole table has brought."""
        return self.op == Op.READ and is_attempt_of(attempt, self.event_id)

    def is_before(self, position: Position) -> bool:
        """Whether a change at a position is later."""
        return self.position < position or (self.op == Op.READ and self.position == position)


@dataclass(frozen=True, slots=True)
class LetterSummary:
    """A letter as a list shows it, without the row; `state` is one of `State`."""

    id: int
    state: str
    created_at: datetime
    pipeline: str
    sink: str
    event_id: str
    schema: str
    table: str
    op: str
    commit_lsn: Lsn
    ordinal: int
    committed_at: datetime
    key: dict[str, Any] | None
    reason: str

    @property
    def position(self) -> Position:
        return Position(self.commit_lsn, self.ordinal)


def read_id(lineage: Lineage, until: Lsn, attempt: str, row: str) -> str:
    """The event id of a row that came with its whole table: `row` is a word that tells it from others of the attempt."""
    prefix, _, _ = lineage.event_id(Position(until, 0)).rpartition(".")
    return f"{prefix}.r{_word(attempt)}-{row}"


def is_attempt_of(attempt: str, event_id: str) -> bool:
    """Whether an id that `read_id` has made is of a row of an attempt."""
    return event_id.rpartition(".")[2].rpartition("-")[0] == f"r{_word(attempt)}"


def _word(attempt: str) -> str:
    return attempt.replace(".", "_")
