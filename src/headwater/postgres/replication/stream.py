"""The replication connection and its stream, on psycopg's `pgconn`: sockets and waiting, nothing else.

One thread owns a stream: it reads messages and sends status updates. Any other thread may call `wake` to end its waiting.
"""

import logging
import os
import select
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Event, Lock
from typing import Any, NamedTuple, Self

import psycopg
from psycopg import pq, sql

from headwater.errors import ConnectionLost, SlotActive, SlotInvalidated, SlotMissing, SourceError
from headwater.model import Lineage, Lsn, TimelineSwitch
from headwater.postgres.connect import complete, describe, translated
from headwater.postgres.replication import protocol
from headwater.postgres.statements import load

_SQL = load("headwater.postgres", "sql/replication.sql")
# What makes values read the same everywhere, statement by statement.
SESSION = tuple(line for line in _SQL["set_session"].text.split(";") if line.strip())
_log = logging.getLogger(__name__)

# How long a server may take over a command that needs no work.
_ANSWER_SECONDS = 60.0
# How often a wait looks whether it is to end, and after how long a slot that cannot be made yet is worth a word.
_LOOK_SECONDS, _PATIENT_SECONDS = 0.2, 3.0
# How long the server may take to give up what nobody waits for any more.
_CANCEL_SECONDS = 2.0
# The walsender makes a system call per message. Leaving it alone for this long while it is busy lets it fill the socket
# without waking us each time: about 1.5 times the rate of reading at once, for a third of the processor time.
_BREATH_SECONDS = 0.0003
# Fewer messages than this in one go mean that the server was caught in mid stride.
_SHORT_READ = 64


@dataclass(frozen=True, slots=True)
class SystemIdentity:
    """The answer to IDENTIFY_SYSTEM: which server this is, and where its WAL ends."""

    system_identifier: str
    timeline: int
    wal_end: Lsn
    database: str


class ReplicationConnection:
    """A connection that takes replication commands; it belongs to one database.

    Waiting for an answer ends when `stopping` is set, and in the main thread by a signal whose handler raises.
    """

    def __init__(self, url: str, stopping: Event | None = None) -> None:
        self._url, self._stopping = complete(url, replication="database"), stopping or Event()
        with translated(self._url):
            self._connection = psycopg.connect(self._url, autocommit=True)
        try:
            self._run(_SQL["set_session"].text)
        except BaseException:
            self.close()
            raise

    @property
    def server_version(self) -> int:
        return self._connection.info.server_version

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def command(self, command: str | sql.Composable) -> list[tuple[str | None, ...]]:
        """Run a replication command, or plain SQL without parameters, and return its rows as text.

        Creating a slot takes until all transactions that are running have ended, so there is no limit to the waiting.
        """
        text = command if isinstance(command, str) else command.as_string(self._connection)
        try:
            return _rows(self._run(text, limit_seconds=None))
        except BaseException:
            self._cancel()
            raise

    def identify(self) -> SystemIdentity:
        system_identifier, timeline, wal_end, database = _rows(self._run("IDENTIFY_SYSTEM"))[0]
        return SystemIdentity(str(system_identifier), int(timeline or 0), Lsn.parse(wal_end or ""), str(database))

    def lineage(self, slot: str) -> Lineage:
        """The history that this server's positions belong to, as seen through `slot`."""
        system = self.identify()
        switches = self._timeline_history(system.timeline)
        return Lineage(system.system_identifier, system.timeline, switches, system.database, slot)

    def start(self, slot: str, start: Lsn, options: Mapping[str, str]) -> "ReplicationStream":
        """Begin streaming from `slot`, after all that committed before `start` or before the slot's confirmed position."""
        setting = _rows(self._run(_SQL["read_sender_timeout"].text))[0][0]
        self._run(protocol.start_replication(slot, start, options).as_string(self._connection), slot=slot)
        _log.debug("streaming from %s", start, extra={"slot": slot, "server": describe(self._url)})
        return ReplicationStream(self._connection, describe(self._url), timedelta(milliseconds=int(setting or 0)))

    def _timeline_history(self, timeline: int) -> tuple[TimelineSwitch, ...]:
        # The first timeline has no ancestor, and the server no file about it.
        if timeline == 1:
            return ()
        content = _rows(self._run(f"TIMELINE_HISTORY {timeline}"))[0][1]
        return protocol.parse_timeline_history(content or "")

    def _cancel(self) -> None:
        """Have the server give up, too: it would make the slot when its time has come, though nobody waits any more."""
        pgconn = self._connection.pgconn
        if pgconn.transaction_status != pq.TransactionStatus.ACTIVE:
            return
        poll = select.poll()
        poll.register(pgconn.socket, select.POLLIN)
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=_CANCEL_SECONDS)
            # It is ready for another command when the slot is gone.
            while pgconn.transaction_status == pq.TransactionStatus.ACTIVE and poll.poll(_CANCEL_SECONDS * 1000):
                pgconn.consume_input()
                while not pgconn.is_busy() and pgconn.get_result() is not None:
                    pass

    def _run(self, text: str, *, slot: str = "", limit_seconds: float | None = _ANSWER_SECONDS) -> pq.abc.PGresult:
        with translated(self._url):
            result = self._exchange(text, limit_seconds)
        if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_BOTH):
            return result
        raise _refusal(result, slot, describe(self._url))

    def _exchange(self, text: str, limit_seconds: float | None) -> pq.abc.PGresult:
        """Send a command and wait for its last result, looking up now and then: PQexec would listen to nobody."""
        pgconn, started, result = self._connection.pgconn, time.monotonic(), None
        pgconn.send_query(text.encode())
        while True:
            while pgconn.is_busy():
                self._wait(pgconn.socket, text, time.monotonic() - started, limit_seconds)
                pgconn.consume_input()
            found = pgconn.get_result()
            if found is None and result is not None:
                return result
            if found is None:
                raise ConnectionLost(f"PostgreSQL at {describe(self._url)} gave no answer to {text.split()[0]}")
            result = found
            if result.status == pq.ExecStatus.COPY_BOTH:
                return result

    def _wait(self, socket: int, text: str, waited: float, limit_seconds: float | None) -> None:
        poll = select.poll()
        poll.register(socket, select.POLLIN)
        if poll.poll(_LOOK_SECONDS * 1000):
            return
        verb = text.split()[0]
        if self._stopping.is_set():
            raise ConnectionLost(f"{verb} was given up: capture is stopping")
        if limit_seconds is not None and waited > limit_seconds:
            raise ConnectionLost(f"PostgreSQL at {describe(self._url)} has not answered {verb} for {limit_seconds:.0f} s")
        if limit_seconds is None and waited < _PATIENT_SECONDS <= waited + _LOOK_SECONDS:
            _log.warning(
                "%s waits until all transactions that are running now have ended; pg_stat_activity shows them", verb
            )


class Received(NamedTuple):
    """What one read brought: plugin messages, and the keepalive, if any, that the server sent after them."""

    messages: list[memoryview]
    keepalive: protocol.Keepalive | None


class ReplicationStream:
    """A running stream of plugin messages from a slot. It owns its connection."""

    def __init__(self, connection: psycopg.Connection[Any], server: str, sender_timeout: timedelta) -> None:
        self._connection, self._pgconn, self._server = connection, connection.pgconn, server
        self.sender_timeout = sender_timeout
        self._breathe = False
        self._closing, self._is_closed = Lock(), False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._pgconn.socket, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)

    def read(self, timeout_seconds: float, max_bytes: int) -> Received:
        """The messages that are there, waiting for the first at most `timeout_seconds`; may be empty."""
        try:
            received = self._buffered(max_bytes)
            if received.messages or received.keepalive:
                return received
            if self._breathe:
                time.sleep(_BREATH_SECONDS)
            self.wait(timeout_seconds)
            received = self._available(max_bytes)
        except psycopg.OperationalError as exc:
            raise self._lost(str(exc)) from exc
        self._breathe = 0 < len(received.messages) < _SHORT_READ
        return received

    def wait(self, timeout_seconds: float, *, for_input: bool = True) -> None:
        """Wait until the server sends something (unless told not to look), somebody calls `wake`, or time is up."""
        self._poll.modify(self._pgconn.socket, select.POLLIN if for_input else 0)
        for descriptor, _ in self._poll.poll(max(0.0, timeout_seconds) * 1000):
            if descriptor == self._wake:
                os.eventfd_read(self._wake)
            elif not for_input:
                raise self._lost("the server hung up")

    def wake(self) -> None:
        """End the waiting of the thread that owns the stream; safe from any thread."""
        with self._closing:
            if not self._is_closed:
                os.eventfd_write(self._wake, 1)

    def send_status(self, confirmed: Lsn, received: Lsn, *, ask_reply: bool = False) -> None:
        """Tell the server that all before `confirmed` is durable, and that we are alive; it may be asked whether it is."""
        try:
            self._pgconn.put_copy_data(protocol.status_update(confirmed, received, datetime.now(UTC), ask_reply=ask_reply))
            self._pgconn.flush()
        except psycopg.OperationalError as exc:
            raise self._lost(str(exc)) from exc

    def finish(self, limit_seconds: float) -> None:
        """End the stream in order, and wait until the server has done so too: then it has read the last status.

        A socket that is closed while something unread is in it takes back what was sent. A server in the middle of a large
        transaction does not listen; hence the limit.
        """
        deadline = time.monotonic() + limit_seconds
        try:
            self._pgconn.put_copy_end()
            self._pgconn.flush()
            while (left := deadline - time.monotonic()) > 0:
                length, _ = self._pgconn.get_copy_data(1)
                if length < 0:
                    return
                if length == 0:
                    self.wait(left)
                    self._pgconn.consume_input()
        except psycopg.OperationalError as exc:
            raise self._lost(str(exc)) from exc

    def close(self) -> None:
        """Close the socket at once: a walsender that is blocked on it would keep the slot active."""
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                self._connection.close()
                os.close(self._wake)

    def _available(self, max_bytes: int) -> Received:
        """What the socket has.

        Under TLS libpq takes at most one record at a time, and the server makes one of each message, hence the loop. It may
        take only the first half of a large one and leave the other where poll does not see it, hence twice.
        """
        messages: list[memoryview] = []
        while True:
            self._pgconn.consume_input()
            self._pgconn.consume_input()
            received = self._buffered(max_bytes)
            messages += received.messages
            max_bytes -= sum(map(len, received.messages))
            if received.keepalive or not received.messages or max_bytes <= 0:
                return Received(messages, received.keepalive)

    def _buffered(self, max_bytes: int) -> Received:
        """What libpq holds already, up to the next keepalive."""
        get, messages, size = self._pgconn.get_copy_data, [], 0
        while size < max_bytes:
            length, data = get(1)
            if length > 0 and data[0] == protocol.XLOG_DATA:
                messages.append(data[protocol.XLOG_HEADER_BYTES :])
                size += length
            elif length > 0:
                return Received(messages, protocol.parse_keepalive(data))
            elif length == 0:
                break
            else:
                raise self._ended()
        return Received(messages, None)

    def _ended(self) -> SourceError:
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return _refusal(result, "", self._server)
        return self._lost("the server ended it")

    def _lost(self, reason: str) -> ConnectionLost:
        lines = [line.strip() for line in reason.splitlines() if line.strip()]
        return ConnectionLost(f"the replication stream from {self._server} broke: {(lines or ['connection closed'])[0]}")


def _rows(result: pq.abc.PGresult) -> list[tuple[str | None, ...]]:
    fields = range(result.nfields)
    return [tuple(_text(result.get_value(row, field)) for field in fields) for row in range(result.ntuples)]


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _refusal(result: pq.abc.PGresult, slot: str, server: str) -> SourceError:
    """Our error for a replication command that the server refused."""
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    said = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"the server gave no reason").decode()
    detail = (result.error_field(pq.DiagnosticField.MESSAGE_DETAIL) or b"").decode()
    match state:
        case "55006":
            return SlotActive(slot, said)
        case "42704" if "publication" in said:
            return SourceError(
                f"PostgreSQL at {server} says that {said} where the slot stands: it was made, or made anew, after the slot; "
                "drop the slot, and make it again after the publication",
                sqlstate=state,
            )
        case "42704" if slot:
            return SlotMissing(slot)
        case "55000" if slot and "invalidated" in detail:
            return SlotInvalidated(slot, detail.rstrip("."))
        case "57P01" | "57P02" | "57P03" | "08006" | "08003" | "":
            return ConnectionLost(f"PostgreSQL at {server} ended the replication stream: {said}", sqlstate=state)
        case _:
            place = f" from slot {slot!r}" if slot else ""
            return SourceError(
                f"PostgreSQL at {server} refused replication{place}: {said}; `headwater check` looks for the reason",
                sqlstate=state,
            )
