"""What capture has read and its consumer not yet taken: batches with a bound in bytes, and the confirmed position.

One thread puts, one takes and confirms; each wakes the other.
"""

from collections import deque
from collections.abc import Callable
from threading import Condition

from headwater.model import Lsn
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.messages import Begin
from headwater.postgres.replication.pgoutput import expect


class Buffer:
    """The meeting place of the capture thread and its consumer."""

    def __init__(self, max_bytes: int, wake_reader: Callable[[], None]) -> None:
        self._max_bytes, self._wake_reader = max_bytes, wake_reader
        self._changed = Condition()
        self._batches: deque[Batch] = deque()
        self._bytes = 0
        self._failure: Exception | None = None
        self._closed = False
        self._put_end = Lsn(0)
        self._taken_end = Lsn(0)
        self._confirmed = Lsn(0)

    @property
    def is_full(self) -> bool:
        return self._bytes >= self._max_bytes

    @property
    def is_hungry(self) -> bool:
        """Whether the consumer has nothing left to take."""
        return not self._batches

    @property
    def put_end(self) -> Lsn:
        """The end of the last transaction that was put in whole."""
        return self._put_end

    @property
    def taken_end(self) -> Lsn:
        """How far the consumer may confirm: the end of what it has taken whole, or the commit of what it has in part."""
        return self._taken_end

    @property
    def confirmed(self) -> Lsn:
        return self._confirmed

    def put(self, batch: Batch) -> None:
        with self._changed:
            self._batches.append(batch)
            self._bytes += len(batch.data)
            self._put_end = batch.end or self._put_end
            self._changed.notify_all()

    def take(self, timeout_seconds: float | None) -> Batch | None:
        """The next batch; None when none came in time or the buffer was closed. Raises what stopped the capture."""
        with self._changed:
            self._changed.wait_for(lambda: self._batches or self._failure or self._closed, timeout_seconds)
            if self._batches:
                batch = self._batches.popleft()
                was_full = self.is_full
                self._bytes -= len(batch.data)
                self._taken_end = max(self._taken_end, _end_or_commit(batch))
                if was_full or not self._batches:
                    self._wake_reader()
                return batch
            if self._failure:
                raise self._failure
            return None

    def confirm(self, position: Lsn) -> None:
        with self._changed:
            self._confirmed = max(self._confirmed, position)

    def unconfirm(self, limit: Lsn) -> None:
        """Take back what was confirmed beyond `limit`, because the server does not have it any more."""
        with self._changed:
            self._confirmed = min(self._confirmed, limit)

    def fail(self, failure: Exception) -> None:
        """Let the consumer know, after it has taken what is there, that nothing more will come, and why."""
        with self._changed:
            self._failure = failure
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _end_or_commit(batch: Batch) -> Lsn:
    if batch.end is not None:
        return batch.end
    # A piece of one transaction: it begins with its Begin, unless an earlier piece did.
    return batch.begin.commit_lsn if batch.begin else expect(Begin, batch.message(0)).commit_lsn
