"""The messages that the pgoutput plugin sends, as values. `decode` in `pgoutput` makes them from bytes."""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from headwater.model import Lsn, Unchanged

# A column as sent: text, NULL, or not sent because an update left it alone.
Value: TypeAlias = bytes | Unchanged | None
Tuple: TypeAlias = tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Begin:
    """What follows, up to Commit, is one transaction, whose commit record is at `commit_lsn`."""

    commit_lsn: Lsn
    committed_at: datetime
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction was itself replicated from elsewhere."""

    lsn: Lsn
    name: str


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """`key` tells whether the column belongs to the replica identity."""

    name: str
    key: bool
    type_oid: int
    typmod: int


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the changes that follow see it. `identity`: d(efault), n(othing), f(ull) or i(ndex)."""

    oid: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]

    @property
    def table(self) -> str:
        """The name with its schema, for messages to people."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Type:
    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class Insert:
    relation_oid: int
    new: Tuple


@dataclass(frozen=True, slots=True)
class Update:
    """`old_kind` is K for an old key, O for the whole old row, None when neither was sent since the key stayed."""

    relation_oid: int
    old_kind: str | None
    old: Tuple | None
    new: Tuple


@dataclass(frozen=True, slots=True)
class Delete:
    relation_oid: int
    old_kind: str
    old: Tuple


@dataclass(frozen=True, slots=True)
class Truncate:
    relation_oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class Message:
    """Written with `pg_logical_emit_message`."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class StreamStart:
    """What follows, up to Stream Stop, belongs to a transaction that is still in progress."""

    xid: int
    first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    pass


@dataclass(frozen=True, slots=True)
class StreamCommit:
    xid: int
    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at: datetime


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """The subtransaction `subxid`, or with `subxid == xid` the whole transaction, is void. LSN and time since protocol 4."""

    xid: int
    subxid: int
    abort_lsn: Lsn | None
    aborted_at: datetime | None


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepared_at: datetime
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepared_at: datetime
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    commit_lsn: Lsn
    end_lsn: Lsn
    committed_at: datetime
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    prepare_end_lsn: Lsn
    rollback_end_lsn: Lsn
    prepared_at: datetime
    rolled_back_at: datetime
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class StreamPrepare:
    prepare_lsn: Lsn
    end_lsn: Lsn
    prepared_at: datetime
    xid: int
    gid: str


PgoutputMessage: TypeAlias = (
    Begin
    | Commit
    | Origin
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | Message
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
    | StreamPrepare
)
