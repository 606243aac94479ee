"""A run of pgoutput messages laid end to end, which can be decoded by itself: what travels from capture to decoders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from headwater.errors import DecodeError
from headwater.model import Lsn
from headwater.postgres.replication.messages import Begin, Relation

Bounds: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

# The id of the (sub)transaction that stands behind the tag of a message that came inside a stream block.
XID_BYTES: Final = 4

# How many row changes a message stands for. A truncate counts once for each of its tables, see `changes_per_message`.
_CHANGES: Final = np.zeros(256, np.int64)
_CHANGES[list(b"IUD")] = 1


@dataclass(frozen=True, slots=True)
class Batch:
    """Whole transactions in commit order, or a piece of one that is too large for one batch.

    Message i is `data[bounds[i]:bounds[i + 1]]`. `relations` holds the Relation messages that were sent before, by oid.
    `begin` is the transaction that the first messages belong to when it began in an earlier batch or was streamed;
    `first_ordinal` counts its row changes in earlier batches. `end` is the position to confirm once the batch is durable,
    None when its last transaction goes on in the next batch. `ordinals` has the ordinal of each message when messages that
    count were left out, as in a lane; otherwise it follows from counting.
    """

    data: bytes
    bounds: Bounds
    relations: Mapping[int, bytes]
    changes: int
    end: Lsn | None
    begin: Begin | None = None
    first_ordinal: int = 0
    streamed: bool = False
    ordinals: npt.NDArray[np.int64] | None = None

    @property
    def xid_bytes(self) -> int:
        return XID_BYTES if self.streamed else 0

    def message(self, index: int) -> memoryview:
        return memoryview(self.data)[self.bounds[index] : self.bounds[index + 1]]

    def __len__(self) -> int:
        """How many messages there are."""
        return len(self.bounds) - 1


def placed(error: DecodeError, commit_lsn: Lsn | None, message_type: str | None = None) -> DecodeError:
    """The error with the transaction where it happened, if that is known, and with what to do about it."""
    place = "" if commit_lsn is None else " with this position"
    remedy = (
        f"report it{place}; the slot keeps what is not confirmed, and `headwater tail --peek` shows what comes before it"
    )
    return DecodeError(f"{error.reason}; {remedy}", lsn=commit_lsn, message_type=error.message_type or message_type)


def misfit(error: DecodeError, relation: Relation, column: str) -> DecodeError:
    """The error of a value with the column that it stands in."""
    return DecodeError(f"column {column!r} of {relation.table}: {error.reason}")


def lay_out(messages: Sequence[bytes | memoryview]) -> tuple[bytes, Bounds]:
    """The messages end to end, and where each begins and ends."""
    bounds = np.zeros(len(messages) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)), out=bounds[1:])
    return b"".join(messages), bounds


def tags_of(data: bytes, bounds: Bounds) -> Bytes:
    """The first byte of each message."""
    if (bounds[1:] <= bounds[:-1]).any():
        raise DecodeError("the message is empty")
    return np.frombuffer(data, np.uint8)[bounds[:-1]]


def changes_per_message(data: bytes, bounds: Bounds, tags: Bytes, xid_bytes: int) -> npt.NDArray[np.int64]:
    """How many row changes each message stands for: the steps of the ordinal."""
    counts = _CHANGES[tags]
    for index in np.flatnonzero(tags == ord("T")):
        start = int(bounds[index]) + 1 + xid_bytes
        counts[index] = int.from_bytes(data[start : start + 4])
    return counts


def relations_in(data: bytes, bounds: Bounds, tags: Bytes, xid_bytes: int) -> dict[int, bytes]:
    """The Relation messages by oid, the last of each, without a transaction id."""
    found = {}
    for index in np.flatnonzero(tags == ord("R")):
        body = data[int(bounds[index]) + 1 + xid_bytes : int(bounds[index + 1])]
        found[int.from_bytes(body[:4])] = b"R" + body
    return found
