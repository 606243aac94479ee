"""A row change, as people and row-wise code see it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, TypeAlias, final

from headwater.model.lsn import Lsn
from headwater.model.position import Position


@final
class Unchanged:
    """The state of a large column that an update left alone, so that the server did not send it: neither value nor NULL."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"

    def __reduce__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()


class Op(StrEnum):
    """What happened to the row; the letters are those of the `changes` DataFrame."""

    INSERT = "c"
    UPDATE = "u"
    UPDATE_KEY = "u_pk"
    DELETE = "d"
    TRUNCATE = "t"
    READ = "r"


Row: TypeAlias = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one row (or, for a truncate, of one table), decoded.

    `key` holds the columns of the table's replica identity as they were before the change. `before` is what the server
    sent of the old row: the identity's columns, or all of them under `replica identity full`. A column of `after` that the
    server did not send has the value `UNCHANGED`.
    """

    position: Position
    xid: int
    committed_at: datetime
    op: Op
    schema: str
    table: str
    key: Row | None
    before: Row | None
    after: Row | None

    @property
    def unchanged(self) -> tuple[str, ...]:
        """The columns of `after` whose value the server did not send, because it is as it was."""
        return tuple(name for name, value in (self.after or {}).items() if value is UNCHANGED)


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message written with `pg_logical_emit_message`; `position` is None for one that belongs to no transaction."""

    lsn: Lsn
    prefix: str
    content: bytes
    position: Position | None
    xid: int | None
    committed_at: datetime | None
