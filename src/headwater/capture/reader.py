"""Capture: a thread that follows a slot, and the consumer's side of it.

The thread reads, assembles, and reports to the server what the consumer has confirmed. Nothing that the consumer does, or
does not do, keeps it from reporting, so a slow sink never costs the connection. Nothing is confirmed that was not: the slot
moves past a transaction only after `confirm`, and past what the server wrote meanwhile only when nothing is in flight.
"""

import logging
import random
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from threading import Condition, Event, Thread
from typing import Self

from psycopg import sql

from headwater import failpoints
from headwater.capture.assemble import Assembler
from headwater.capture.buffer import Buffer
from headwater.capture.emitted import EmittedRows
from headwater.capture.heartbeat import Heartbeat
from headwater.capture.settings import CaptureSettings
from headwater.capture.source import require_publications
from headwater.errors import ConnectionLost, HeadwaterError, PositionError, SlotActive, SlotLost, SourceError
from headwater.model import Lineage, Lsn
from headwater.postgres.backoff import Backoff
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.protocol import Keepalive
from headwater.postgres.replication.slot import Slot, create_slot, find_slot, require_usable
from headwater.postgres.replication.stream import ReplicationConnection, ReplicationStream

_log = logging.getLogger(__name__)

# Enough to keep the assembler busy, little enough that a full buffer is noticed soon.
_READ_BYTES = 256 * 1024
# While the stream never pauses a waiting consumer gets a batch this often: few enough to be worth decoding.
_FLUSH_SECONDS = 0.02
# After so long without a word from the server, the connection is taken for dead; where it has a wal_sender_timeout, that.
_SILENCE_SECONDS = 60.0
# How long an orderly stop waits for the server to have read the last report.
_FINISH_SECONDS = 1.0
# Half of the least wal_sender_timeout that makes sense; status updates come more often than that.
_ASKED_EARLY_SECONDS = 2.0
# A status update must reach the server well before it gives us up.
_SENDER_TIMEOUT_SHARE = 1 / 3


@dataclass(frozen=True, slots=True)
class _IdlePoint:
    """The server had sent all that committed before `wal_end` once transactions up to `after` were sent."""

    wal_end: Lsn
    after: Lsn


class Capture:
    """Follows one slot: iterate over it for batches, and confirm each once it is durable.

    A lost connection is opened again for ever, with backoff; a transaction of which only a part had come then comes again
    from its start. Any other trouble is raised to the consumer after it has taken what was read before.
    """

    def __init__(self, settings: CaptureSettings) -> None:
        self._settings = settings
        self._stream: ReplicationStream | None = None
        self._buffer = Buffer(settings.buffer_bytes, self._wake)
        self._thread = Thread(target=self._run, name=f"capture {settings.slot}", daemon=True)
        self._heartbeat = Heartbeat(settings, self._arrived, self._on_trouble)
        self._stopping = Event()
        self._report_wanted = Event()
        self._reported = Condition()
        self._reports, self._reported_position = 0, Lsn(0)
        self._idle: _IdlePoint | None = None
        self._next_status = self._last_status = 0.0
        self._heard = 0.0
        self._trouble: SourceError | None = None
        self._lineage: Lineage | None = None
        self._slot_position = Lsn(0)

    @property
    def lineage(self) -> Lineage:
        """The history that the positions belong to; known once started."""
        if self._lineage is None:
            raise SourceError(f"capture of slot {self._settings.slot!r} has not started")
        return self._lineage

    @property
    def received(self) -> Lsn:
        """The end of the last transaction that was read whole."""
        return self._buffer.put_end

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.take()) is not None:
            yield batch

    def start(self) -> None:
        """Check the slot, connect, and begin to read; raises at once if that cannot be."""
        self._stream = self._open_patiently()
        self._thread.start()
        self._heartbeat.start()

    def take(self, timeout_seconds: float | None = None) -> Batch | None:
        """The next batch; None if none came in time, or capture was stopped."""
        return self._buffer.take(timeout_seconds)

    def confirm(self, position: Lsn) -> None:
        """All that ended at or before `position` is durable; the server may forget it. Takes effect with the next report.

        A position beyond what was taken is refused: the server would forget what nobody has seen.
        """
        limit = max(self._buffer.taken_end, self._settings.start or Lsn(0), self._slot_position)
        if position > limit:
            raise PositionError(f"{position} cannot be confirmed: only what ended at or before {limit} was taken")
        self._buffer.confirm(position)

    def report(self, timeout_seconds: float = 10) -> bool:
        """Report what is confirmed to the server now; returns whether that was done in time."""
        with self._reported:
            before, wanted = self._reports, self._buffer.confirmed
            self._report_wanted.set()
            self._wake()
            # A report that was under way already may have left out what was confirmed last.
            return self._reported.wait_for(
                lambda: self._reports > before and self._reported_position >= wanted, timeout_seconds
            )

    def stop(self) -> None:
        """Stop reading and close the socket. What was not confirmed will come again."""
        self._stopping.set()
        self._heartbeat.stop()
        self._wake()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._follow()
            self._end_in_order()
        except Exception as exc:  # noqa: BLE001 - whatever ends the thread must reach the consumer
            self._buffer.fail(exc)
        finally:
            if self._stream is not None:
                self._stream.close()
            self._buffer.close()

    def _follow(self) -> None:
        """Read until told to stop; on a connection that breaks, open another."""
        failures = 0
        while not self._stopping.is_set():
            try:
                if self._stream is None:
                    self._stream = self._open()
                failures = 0
                self._pump(self._stream)
            except HeadwaterError as exc:
                if self._stopping.is_set():
                    return
                if not exc.retryable or self._settings.temporary:
                    raise
                failures += 1
                wait = Backoff().after(failures, random.random()).total_seconds()
                _log.warning("%s; connecting again in %.1f s", exc, wait, extra={"slot": self._settings.slot})
                self._hang_up()
                self._stopping.wait(wait)

    def _hang_up(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._idle = None, None
        self._trouble = None

    def _pump(self, stream: ReplicationStream) -> None:
        flushed = self._heard = time.monotonic()
        prefix = self._settings.emitted
        emitted = None if prefix is None else EmittedRows(prefix)
        with closing(Assembler(self._settings.batch_bytes, self._settings.spill_directory)) as assembler:
            while not self._stopping.is_set():
                owes = assembler.has_whole and self._buffer.is_hungry
                received = stream.read(0 if owes else self._seconds_to_status(), _READ_BYTES)
                messages = received.messages if emitted is None else emitted.of(received.messages)
                self._put(stream, assembler.feed(messages))
                # A consumer that waits gets what there is once the stream pauses, or soon if it does not.
                now, paused = time.monotonic(), not received.messages
                if received.keepalive or (self._buffer.is_hungry and (paused or now - flushed > _FLUSH_SECONDS)):
                    self._put(stream, assembler.flush())
                    flushed = now
                if self._stopping.is_set():
                    # What came may not have been put: the keepalive behind it must not count.
                    return
                if received.keepalive:
                    self._on_keepalive(received.keepalive)
                if received.keepalive or received.messages:
                    self._heard = time.monotonic()
                self._report(stream)

    def _put(self, stream: ReplicationStream, batches: Iterator[Batch]) -> None:
        """Hand batches on as the buffer has room for them, and none any more when told to stop."""
        for batch in batches:
            while self._buffer.is_full and not self._stopping.is_set():
                stream.wait(self._seconds_to_status(), for_input=False)
                # Not to listen is not to hear: the silence is ours.
                self._heard = time.monotonic()
                self._report(stream)
            if self._stopping.is_set():
                return
            self._buffer.put(batch)

    def _on_keepalive(self, keepalive: Keepalive) -> None:
        self._idle = _IdlePoint(keepalive.wal_end, self._buffer.put_end)
        if keepalive.reply_requested:
            self._report_wanted.set()
            if not self._settings.confirm_idle and time.monotonic() - self._last_status < _ASKED_EARLY_SECONDS:
                # It asks before our silence could trouble it: it shuts down, and waits for all to be confirmed.
                raise ConnectionLost("the server is shutting down, and waits for what is not confirmed yet")

    def _report(self, stream: ReplicationStream) -> None:
        """Tell the server what is confirmed, if it is time to; and notice when it is no longer there to be told."""
        if self._trouble is not None:
            raise self._trouble
        now = time.monotonic()
        silence, timeout = now - self._heard, stream.sender_timeout.total_seconds()
        if silence > (timeout or _SILENCE_SECONDS):
            raise ConnectionLost(f"the server has not been heard for {silence:.0f} s")
        if now < self._next_status and not self._report_wanted.is_set():
            return
        self._report_wanted.clear()
        if self._settings.confirm_idle and self._idle is not None and self._buffer.confirmed >= self._idle.after:
            self._buffer.confirm(self._idle.wal_end)
        confirmed = self._buffer.confirmed
        failpoints.hit("slot.confirm")
        stream.send_status(confirmed, self.received, ask_reply=silence > (timeout or _SILENCE_SECONDS) / 2)
        interval, self._last_status = self._settings.status_interval.total_seconds(), now
        self._next_status = now + (min(interval, timeout * _SENDER_TIMEOUT_SHARE) if timeout else interval)
        with self._reported:
            self._reports, self._reported_position = self._reports + 1, confirmed
            self._reported.notify_all()

    def _end_in_order(self) -> None:
        """What was confirmed since the last report should not come again after an orderly stop."""
        if self._stream is not None:
            with suppress(ConnectionLost):
                self._report_wanted.set()
                self._report(self._stream)
                self._stream.finish(_FINISH_SECONDS)

    def _seconds_to_status(self) -> float:
        return 0 if self._report_wanted.is_set() else self._next_status - time.monotonic()

    def _open_patiently(self) -> ReplicationStream:
        """Open the stream for the first time, waiting for a slot that is still active."""
        failures, deadline = 0, time.monotonic() + self._settings.slot_patience.total_seconds()
        while True:
            try:
                return self._open()
            except SlotActive as exc:
                left = deadline - time.monotonic()
                if left <= 0 or self._stopping.is_set():
                    raise
                failures += 1
                _log.info("%s; waiting for it", exc, extra={"slot": self._settings.slot})
                self._stopping.wait(min(left, Backoff().after(failures, random.random()).total_seconds()))

    def _open(self) -> ReplicationStream:
        connection = ReplicationConnection(self._settings.url, self._stopping)
        try:
            self._check_lineage(connection.lineage(self._settings.slot))
            self._check_source()
            if self._settings.temporary:
                create_slot(connection, self._settings.slot, temporary=True)
            start = max(self._settings.start or Lsn(0), self._buffer.put_end)
            return connection.start(self._settings.slot, start, self._options())
        except BaseException:
            connection.close()
            raise

    def _check_source(self) -> None:
        """Refuse what the server would refuse late, or would pass over in silence."""
        with translated(self._settings.url), closing(connect_sync(self._settings.url)) as connection:
            if not self._settings.temporary:
                found = find_slot(connection, self._settings.slot)
                self._check_slot(require_usable(found, self._settings.slot, connection.info.dbname))
            require_publications(connection, self._settings.publications)

    def _check_slot(self, slot: Slot) -> None:
        """Nobody but us may move the slot while we follow it: what it was moved past would be missing, unseen."""
        position, ours = slot.confirmed_flush_lsn or Lsn(0), max(self._slot_position, self._buffer.confirmed)
        if self._slot_position and position > ours:
            raise SlotLost(
                f"slot {slot.name!r} was moved from {ours} to {position}, or made anew, while it was not read: what was "
                "written in between is gone from it; find out who did it, and start anew"
            )
        self._slot_position = position

    def _check_lineage(self, lineage: Lineage) -> None:
        """Go on only where the history that we have read goes on, or changes would be skipped unseen."""
        known, read = self._lineage, self._buffer.put_end
        if known is not None and not lineage.continues(known, read):
            raise SlotLost(
                f"the server behind slot {self._settings.slot!r} does not hold what was captured before {read} (system "
                f"{lineage.system_identifier}, timeline {lineage.timeline}): another server, or a standby that lagged when "
                "it was promoted; point the URL back, or start anew from a new slot and a full copy"
            )
        switch = lineage.end_of(known.timeline) if known is not None else None
        if switch is not None:
            # Positions beyond it that we had only heard of belong to a history that has ended.
            self._buffer.unconfirm(switch)
            self._slot_position = min(self._slot_position, switch)
        self._lineage = lineage

    def _options(self) -> dict[str, str]:
        names = ",".join(sql.Identifier(name).as_string() for name in self._settings.publications)
        # Protocol 2 is what streaming needs; later ones add two-phase and parallel apply, which capture has no use for.
        streaming = "on" if self._settings.streaming else "off"
        return {"proto_version": "2", "publication_names": names, "streaming": streaming, "messages": "true"}

    def _on_trouble(self, error: SourceError) -> None:
        """The heartbeat has learnt what the stream does not tell."""
        self._trouble = error
        self._wake()

    def _arrived(self) -> Lsn:
        """How far the stream has come, for the heartbeat."""
        return max(self._buffer.put_end, self._buffer.confirmed)

    def _wake(self) -> None:
        if (stream := self._stream) is not None:
            stream.wake()
