"""From plugin messages to batches: transactions in commit order, whole or in pieces. No socket, no clock, no thread.

Small transactions are gathered. One that is larger than a batch is cut into pieces as it comes, since the server sends it
only after its commit. One that is still in progress (a stream block) is spilled to disk and comes out when it commits,
without what its aborted subtransactions wrote; so its ordinals are the same as if it had come whole.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from headwater.capture.spill import Block, Spill
from headwater.errors import DecodeError
from headwater.model import Lsn
from headwater.postgres.replication.batch import XID_BYTES, Batch, changes_per_message, lay_out, relations_in, tags_of
from headwater.postgres.replication.messages import (
    Begin,
    Commit,
    Message,
    StreamAbort,
    StreamCommit,
    StreamStart,
)
from headwater.postgres.replication.pgoutput import STREAMED_TAGS, decode, decode_subtransaction, expect

_BEGIN, _COMMIT, _MESSAGE = b"BCM"
_STREAM_START, _STREAM_STOP, _STREAM_COMMIT, _STREAM_ABORT = b"SEcA"
_IN_TRANSACTION = frozenset(b"IUDTROYM")
_TWO_PHASE = frozenset(b"bPKrp")


class Assembler:
    """Takes messages in the order of the stream and gives batches in the order of commits."""

    def __init__(self, batch_bytes: int, spill_directory: Path) -> None:
        self._batch_bytes, self._spill_directory = batch_bytes, spill_directory
        self._relations: Mapping[int, bytes] = MappingProxyType({})
        self._messages: list[memoryview] = []
        self._size = 0
        self._whole = 0  # how many of the messages belong to ended transactions
        self._last: memoryview = memoryview(b"")  # the message that ended the last of those
        self._open: memoryview | None = None  # the Begin that has no Commit yet
        self._continued: Begin | None = None  # the transaction of which earlier batches hold the first part
        self._first_ordinal = 0
        self._block: Spill | None = None
        self._spills: dict[int, Spill] = {}
        self._aborted: dict[int, set[int]] = {}

    @property
    def has_whole(self) -> bool:
        """Whether `flush` would give something."""
        return self._whole > 0

    def feed(self, messages: Iterable[memoryview]) -> Iterator[Batch]:
        """Take messages; give the batches that are full. `flush` gives what is whole but not full."""
        for message in messages:
            tag = message[0] if len(message) else 0
            if self._block is not None:
                self._in_block(self._block, tag, message)
                continue
            is_open = self._open is not None
            if tag in _IN_TRANSACTION and is_open:
                self._messages.append(message)
            elif tag == _BEGIN and not is_open:
                self._messages.append(message)
                self._open = message
            elif (tag == _COMMIT and is_open) or (tag == _MESSAGE and not is_open):
                self._messages.append(message)
                self._open, self._last, self._whole = None, message, len(self._messages)
            elif tag == _STREAM_COMMIT and not is_open:
                yield from self.flush()
                yield from self._stream_commit(expect(StreamCommit, message))
                continue
            else:
                self._stream_control(tag, message)
                continue
            self._size += len(message)
            if self._size >= self._batch_bytes:
                yield self._seal(self._whole or len(self._messages))

    def flush(self) -> Iterator[Batch]:
        """Give the ended transactions that are left, if any."""
        if self._whole:
            yield self._seal(self._whole)

    def close(self) -> None:
        """Forget what is in progress and free the disk."""
        for spill in self._spills.values():
            spill.close()
        self._spills.clear()

    def _in_block(self, block: Spill, tag: int, message: memoryview) -> None:
        if tag in STREAMED_TAGS:
            block.add(message)
        elif tag == _STREAM_STOP:
            # What one transaction holds in memory is bounded while it waits for its next block.
            block.write()
            self._block = None
        elif tag != ord("O"):
            raise _out_of_place(tag)

    def _stream_control(self, tag: int, message: memoryview) -> None:
        if tag == _STREAM_START and self._open is None:
            start = expect(StreamStart, message)
            self._block = self._spills.setdefault(start.xid, self._new_spill(start.xid))
        elif tag == _STREAM_ABORT and self._open is None:
            self._stream_abort(expect(StreamAbort, message))
        elif tag in _TWO_PHASE:
            raise DecodeError("the slot decodes at PREPARE; create it with two_phase = false", message_type=chr(tag))
        else:
            raise _out_of_place(tag)

    def _stream_abort(self, abort: StreamAbort) -> None:
        if abort.subxid != abort.xid:
            self._aborted.setdefault(abort.xid, set()).add(abort.subxid)
            return
        self._aborted.pop(abort.xid, None)
        if abort.xid in self._spills:
            self._spills.pop(abort.xid).close()

    def _stream_commit(self, commit: StreamCommit) -> Iterator[Batch]:
        begin, ordinal = Begin(commit.commit_lsn, commit.committed_at, commit.xid), 0
        aborted = self._aborted.pop(commit.xid, set())
        with closing(self._spills.pop(commit.xid, self._new_spill(commit.xid))) as spill:
            for block, is_last in spill.blocks():
                end = commit.end_lsn if is_last else None
                batch = self._batch(_surviving(block, aborted), end, begin, ordinal, streamed=True)
                ordinal += batch.changes
                yield batch

    def _new_spill(self, xid: int) -> Spill:
        return Spill(xid, self._spill_directory, self._batch_bytes)

    def _seal(self, count: int) -> Batch:
        """A batch of the first `count` messages: ended transactions, or, when none has ended, a piece of the open one."""
        end = _end_of(self._last) if self._whole else None
        block = Block(*lay_out(self._messages[:count]))
        batch = self._batch(block, end, self._continued, self._first_ordinal, streamed=False)
        del self._messages[:count]
        self._size, self._whole = sum(map(len, self._messages)), 0
        if end is None:
            self._continued = expect(Begin, self._open)
            self._first_ordinal += batch.changes
        else:
            self._continued, self._first_ordinal = None, 0
        return batch

    def _batch(self, block: Block, end: Lsn | None, begin: Begin | None, ordinal: int, *, streamed: bool) -> Batch:
        tags, xid_bytes = tags_of(*block), XID_BYTES if streamed else 0
        changes = int(changes_per_message(*block, tags, xid_bytes).sum())
        batch = Batch(*block, self._relations, changes, end, begin, ordinal, streamed)
        sent = relations_in(*block, tags, xid_bytes)
        if sent:
            self._relations = MappingProxyType({**self._relations, **sent})
        return batch


def _end_of(message: memoryview) -> Lsn:
    """The position behind a transaction, or behind a logical message of none, which the server gives as its own."""
    match decode(message):
        case Commit(end_lsn=end):
            return end
        case Message(lsn=lsn):
            return lsn
        case other:
            raise DecodeError("it does not end a transaction", message_type=type(other).__name__)


def _out_of_place(tag: int) -> DecodeError:
    return DecodeError("it has no place here in the stream", message_type=chr(tag))


def _surviving(block: Block, aborted: set[int]) -> Block:
    """The block without what aborted subtransactions wrote."""
    if not aborted or len(block.bounds) == 1:
        return block
    views = [memoryview(block.data)[start:end] for start, end in pairwise(block.bounds)]
    return Block(*lay_out([view for view in views if decode_subtransaction(view) not in aborted]))
