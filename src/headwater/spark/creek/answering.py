"""Who is being answered, and what is owed to readers of snapshots that broke off: all of it in one event loop.

Schemas are looked up by threads of a small pool. A snapshot has a thread of its own; what that has to tell comes back into
the loop, where the reply is given: with the topic once the header is stored, with the reason if there is none.
"""

import asyncio
import logging
import random
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from types import MappingProxyType
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError

from headwater.brokers.nats.connection import connect
from headwater.creek.framing import packets
from headwater.creek.messages import SchemaMessage, SnapshotRequest
from headwater.creek.names import Generation, Kind
from headwater.creek.requests import ERROR, ERROR_HEADER, RequestRefused, RequestServer, reason_of
from headwater.errors import BrokerError, HeadwaterError
from headwater.postgres.backoff import Backoff
from headwater.spark.creek.lookup import SchemaLookup
from headwater.spark.creek.snapshot import OPEN_PATIENCE, Desk, SnapshotRun
from headwater.spark.creek.unfinished import find_unfinished

_log = logging.getLogger(__name__)

# Each holds a transaction open on the source, and a part of the driver's memory.
MOST_SNAPSHOTS: Final = 8
# The client of Creek's first generation waits one second for the topic and no longer, that of the second as long as it is
# told to. Where looking for misfits takes longer than this, the topic is told when the table is seen, before the header.
_REPLY_SECONDS: Final = MappingProxyType({Generation.ONE: 0.8, Generation.TWO: 5.0})
_THREADS: Final = 4
_LOOKUP_SECONDS: Final = 10.0
# How long the end waits for snapshots to break off, and for their readers to be told.
_END_SECONDS: Final = 10.0
# Between tries to tell them, while the broker is away.
_AGAIN_SECONDS: Final = 1.0
_MOST_OWED: Final = 1000
# A reading task has two minutes to read something, and a writer half a minute to store it.
SILENT_SECONDS: Final = 160.0
_ORPHANED: Final = "its producer ended before it was complete; ask for another"
_STOPPING: Final = "the producer is stopping; ask again when it runs"


@dataclass(eq=False, slots=True)
class _Asked:
    """A snapshot that was asked for, and the reply to that."""

    reply: Future[str]
    began: float
    topic: str | None = None
    run: SnapshotRun | None = None
    patience: asyncio.TimerHandle | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Answering:
    """Answers for one producer, on one connection after the other; all but `stop` within its own loop."""

    def __init__(self, desk: Desk, facts: dict[str, str], is_listening: Event) -> None:
        self._desk, self._facts, self._is_listening = desk, facts, is_listening
        self._reply_seconds = _REPLY_SECONDS[desk.names.generation]
        self._stopping = asyncio.Event()
        # Whether there is a topic whose readers do not know yet that nothing follows, and the opposite.
        self._owing, self._paid = asyncio.Event(), asyncio.Event()
        self._asked: set[_Asked] = set()
        self._owed = desk.counts.broken(f"{desk.access.describe()} {desk.names.stream_subject(Kind.SNAPSHOT)}")
        self._lookup = SchemaLookup(desk.url)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="requests")
        (self._owing if self._owed else self._paid).set()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Answer until stopped; then end what is being read, and tell its readers."""
        failures = 0
        closing_orphans = asyncio.create_task(self._close_orphans())
        try:
            while not self._stopping.is_set():
                closed = asyncio.Event()
                try:
                    client = await connect(self._desk.access, **self._callbacks(closed))
                except BrokerError as exc:
                    failures += 1
                    wait = Backoff().after(failures, random.random()).total_seconds()
                    _log.warning("requests are not answered: %s; trying again in %.1f s", exc, wait, extra=self._facts)
                    await _any_of(self._stopping, seconds=wait)
                else:
                    failures = 0
                    await self._serve(client, closed)
        finally:
            closing_orphans.cancel()
            await self._end_snapshots()
            self._lookup.close()
            self._pool.shutdown(wait=False)

    def _callbacks(self, closed: asyncio.Event) -> dict[str, object]:
        """It connects and subscribes again by itself; it closes where trying is of no use, as when we are refused."""

        async def on_closed() -> None:
            closed.set()

        async def on_disconnected() -> None:
            self._is_listening.clear()

        async def on_reconnected() -> None:
            self._is_listening.set()
            _log.info("requests are answered again", extra=self._facts)

        async def on_error(error: Exception) -> None:
            _log.debug("trouble with NATS", exc_info=error, extra=self._facts)

        return {
            "closed_cb": on_closed,
            "disconnected_cb": on_disconnected,
            "reconnected_cb": on_reconnected,
            "error_cb": on_error,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": _AGAIN_SECONDS,
        }

    async def find_schema(self, fingerprint: str) -> SchemaMessage | None:
        looking = asyncio.get_running_loop().run_in_executor(self._pool, self._lookup.find, fingerprint)
        try:
            return await asyncio.wait_for(looking, _LOOKUP_SECONDS)
        except (HeadwaterError, TimeoutError) as exc:
            _log.warning("schema %s could not be looked up: %s", fingerprint, reason_of(exc), extra=self._facts)
            return None

    async def take_snapshot(self, request: SnapshotRequest) -> str:
        if self._stopping.is_set():
            raise RequestRefused(_STOPPING)
        if len(self._asked) >= MOST_SNAPSHOTS:
            raise RequestRefused(f"the producer is busy: {len(self._asked)} snapshots are being taken; ask again later")
        loop = asyncio.get_running_loop()
        asked = _Asked(loop.create_future(), loop.time())
        asked.run = run = SnapshotRun(
            self._desk,
            request,
            on_open=lambda topic: _call(loop, lambda: self._opened(asked, topic)),
            on_stored=lambda: _call(loop, lambda: _reply(asked)),
            on_end=lambda reason: _call(loop, lambda: self._ended(asked, run, reason)),
        )
        self._asked.add(asked)
        run.start()
        asked.patience = loop.call_later(OPEN_PATIENCE.total_seconds(), self._pool.submit, run.stop_waiting)
        return await asked.reply

    def _opened(self, asked: _Asked, topic: str) -> None:
        asked.topic = topic
        asyncio.get_running_loop().call_at(asked.began + self._reply_seconds, _reply, asked)

    def _ended(self, asked: _Asked, run: SnapshotRun, reason: str | None) -> None:
        self._asked.discard(asked)
        asked.ended.set()
        if asked.patience is not None:
            asked.patience.cancel()
        if asked.topic is not None:
            self._desk.counts.add_end(run.name, is_complete=reason is None)
        if reason is None:
            _reply(asked)
        elif not asked.reply.done():
            asked.reply.set_exception(RequestRefused(f"there is no snapshot of {run.name}: {reason}"))
        elif asked.topic is not None:
            _log.warning("snapshot of %s broke off in %s: %s", run.name, asked.topic, reason, extra=self._facts)
            self._owe(asked.topic, reason)

    def _owe(self, topic: str, reason: str) -> None:
        self._owed[topic] = reason
        if len(self._owed) > _MOST_OWED:
            del self._owed[next(iter(self._owed))]
        self._owing.set()
        self._paid.clear()

    async def _serve(self, client: Client, closed: asyncio.Event) -> None:
        """Answer on a connection until it is closed for good, or all ends."""
        server = RequestServer(client, self._desk.names, self)
        paying = asyncio.create_task(self._pay(client))
        try:
            await server.start()
            self._is_listening.set()
            await _any_of(closed, self._stopping)
        except NatsError as exc:
            _log.warning("requests are not answered: %s; connecting again", reason_of(exc), extra=self._facts)
        finally:
            self._is_listening.clear()
            await server.stop()
            if self._stopping.is_set():
                await self._end_snapshots()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._paid.wait(), _END_SECONDS)
            paying.cancel()
            await asyncio.gather(paying, return_exceptions=True)
            await client.close()

    async def _pay(self, client: Client) -> None:
        """Tell the readers of topics that nothing follows, as soon as the broker takes it."""
        while True:
            await self._owing.wait()
            for topic, reason in list(self._owed.items()):
                (framed,) = packets(ERROR, len(ERROR) + 1)
                headers = {ERROR_HEADER: reason, "Nats-Msg-Id": f"{topic}-error-seq-0"}
                try:
                    await client.jetstream(timeout=5).publish(topic, framed, headers=headers)
                except (NatsError, OSError) as exc:
                    _log.debug("the end of %s could not be told yet", topic, exc_info=exc)
                    await asyncio.sleep(_AGAIN_SECONDS)
                else:
                    self._owed.pop(topic, None)
            if not self._owed:
                self._owing.clear()
                self._paid.set()

    async def _close_orphans(self) -> None:
        """Tell the readers of snapshots that nobody writes any more, as after a crash: nothing is added to them for long."""
        before: Mapping[str, int] = {}
        while True:
            found = await self._find_unfinished()
            ours = {asked.topic for asked in self._asked}
            for topic, sequence in found.items():
                if before.get(topic) == sequence and topic not in ours:
                    _log.info("%s has no end, and nobody writes it any more", topic, extra=self._facts)
                    self._owe(topic, _ORPHANED)
            before = found
            await asyncio.sleep(SILENT_SECONDS)

    async def _find_unfinished(self) -> Mapping[str, int]:
        find = partial(find_unfinished, self._desk.access, self._desk.names)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, find)
        except BrokerError as exc:
            _log.debug("snapshots in the stream cannot be looked at", exc_info=exc, extra=self._facts)
            return {}

    async def _end_snapshots(self) -> None:
        asked = list(self._asked)
        for one in asked:
            if one.run is not None:
                self._pool.submit(one.run.stop, _STOPPING)
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await asyncio.gather(*(one.ended.wait() for one in asked))


def _reply(asked: _Asked) -> None:
    """Tell the topic, if nothing was told yet."""
    if asked.topic is not None and not asked.reply.done():
        asked.reply.set_result(asked.topic)


def _call(loop: AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Have something done in the loop, from another thread; nobody is there any more when it has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


async def _any_of(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of them is set, or for so long."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
