"""The relay to compare with, as section 001 of the reference systems describes it, with its confirms put right.

Rows are written with the application's own, and handed over in memory after the commit, to a bounded queue that drops what
has no room. One publisher sends them one by one, mandatory; an ack leads to the list of the published, a nack to the retry
publisher, which tries twice more. Lists are saved when they have 10,000 rows, or every minute. Its revival begins after five
minutes, and its cleaner after an hour: no run lasts as long.

As it is coded upstream, the number of a message is read after the publish, when it is already that of the next one, and
`multiple` in a confirm is ignored; either can be switched on. Unlike upstream, messages are persistent and have an id, so
that both arms promise the same, and what was lost or repeated can be counted. All of it is as quick as that allows.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID, uuid4

import pika
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.spec import Basic

from benchmarks.outbox_relay import statements
from benchmarks.outbox_relay.testbed import NAME, TYPE, Place, text_of
from headwater.postgres.connect import AsyncConnection, connect
from headwater.postgres.statements import execute

RETRY_WAITS: Final = (0.0, 0.05)
_PERSISTENT = 2
_LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class ReferenceSettings:
    """The numbers of the original, and its mistakes."""

    event_places: int = 10_000
    retry_places: int = 20_000
    save_rows: int = 10_000
    save_every_seconds: float = 60.0
    is_off_by_one: bool = False
    ignores_multiple: bool = False


UPSTREAM: Final = ReferenceSettings(is_off_by_one=True, ignores_multiple=True)


@dataclass(slots=True)
class Event:
    id: UUID
    type: str
    data: str
    tries: int = 0


class Confirms:
    """Which event each number on a channel stands for."""

    def __init__(self, settings: ReferenceSettings) -> None:
        self._settings = settings
        self._next = 1
        self.waiting: dict[int, Event] = {}

    def publish(self, event: Event, send: Callable[[], None]) -> None:
        if self._settings.is_off_by_one:
            send()
            self._next += 1
            self.waiting[self._next] = event
        else:
            self.waiting[self._next] = event
            self._next += 1
            send()

    def settle(self, number: int, *, is_multiple: bool) -> list[Event]:
        """The events that a confirm is about."""
        if not is_multiple or self._settings.ignores_multiple:
            event = self.waiting.pop(number, None)
            return [] if event is None else [event]
        numbers = []
        for waiting in self.waiting:
            if waiting > number:
                break
            numbers.append(waiting)
        return [self.waiting.pop(waiting) for waiting in numbers]


class Line:
    """A channel in confirm mode; `on_settled` is told of events that were taken, or were not."""

    def __init__(self, channel: Any, exchange: str, settings: ReferenceSettings, *, is_mandatory: bool) -> None:
        self._channel, self._exchange, self._is_mandatory = channel, exchange, is_mandatory
        self._confirms = Confirms(settings)
        self._returned: set[str] = set()
        self.on_settled: Callable[[list[Event], bool], None] = lambda events, is_taken: None

    def send(self, event: Event) -> None:
        properties = pika.BasicProperties(delivery_mode=_PERSISTENT, message_id=str(event.id))
        body = event.data.encode()
        self._confirms.publish(
            event,
            lambda: self._channel.basic_publish(self._exchange, event.type, body, properties, self._is_mandatory),
        )

    def on_confirm(self, frame: Any) -> None:
        method = frame.method
        events = self._confirms.settle(method.delivery_tag, is_multiple=method.multiple)
        if self._returned:
            gone = [event for event in events if str(event.id) in self._returned]
            self.on_settled(gone, False)
            events = [event for event in events if str(event.id) not in self._returned]
        self.on_settled(events, isinstance(method, Basic.Ack))

    def on_return(self, _: Any, __: Any, properties: Any, ___: bytes) -> None:
        self._returned.add(properties.message_id)


class Reference:
    """The four services but for the reviver, in one event loop with the application."""

    def __init__(self, connection: AsyncConnection, first: Line, again: Line, settings: ReferenceSettings) -> None:
        self._connection, self._first, self._again, self._settings = connection, first, again, settings
        self._events: asyncio.Queue[Event] = asyncio.Queue(settings.event_places)
        self._retries: asyncio.Queue[Event] = asyncio.Queue(settings.retry_places)
        self._published: list[UUID] = []
        self._failed: list[UUID] = []
        self._fills, self._saving = asyncio.Event(), asyncio.Lock()
        self._began = time.monotonic()
        self.dropped = self.settled = 0
        # When the broker had its word on each event, by its id, if anybody wants to know.
        self.confirmed: dict[str, float] | None = None
        first.on_settled, again.on_settled = self._note, self._note

    async def write(self, connection: AsyncConnection, number: int, type: str = TYPE) -> str:
        event = Event(uuid4(), type, text_of(number))
        async with connection.transaction():
            await execute(connection, statements.insert_entity(number, NAME))
            await execute(connection, statements.insert_reference_event(event.id, event.type, event.data))
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            self.dropped += 1
        return str(event.id)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish())
            group.create_task(self._retry())
            group.create_task(self._save())

    @property
    def unsaved(self) -> int:
        return len(self._published) + len(self._failed)

    @property
    def seconds_to_tick(self) -> float:
        """Until the next save by time."""
        every = self._settings.save_every_seconds
        return every - (time.monotonic() - self._began) % every

    async def finish(self, events: int) -> None:
        """Not as the original: the lists are saved at the end, so that nobody waits for the next minute."""
        await self.drain(events)
        await self.flush()

    async def drain(self, events: int) -> None:
        """Wait until the broker had its word on so many events, or, as coded upstream, says nothing any more."""
        quiet = 0.0
        while self.settled < events and quiet < 2.0:
            before = self.settled
            await asyncio.sleep(_LOOK_SECONDS)
            quiet = 0.0 if self.settled != before else quiet + _LOOK_SECONDS

    async def flush(self) -> None:
        """Save what is in the lists, which are empty before it is known that it worked."""
        async with self._saving:
            published, failed = self._published, self._failed
            self._published, self._failed = [], []
            if published:
                await execute(self._connection, statements.save_reference_published(published))
            if failed:
                await execute(self._connection, statements.save_reference_failed(failed))

    async def _publish(self) -> None:
        while True:
            self._first.send(await self._events.get())

    async def _retry(self) -> None:
        while True:
            event = await self._retries.get()
            await asyncio.sleep(RETRY_WAITS[event.tries])
            event.tries += 1
            self._again.send(event)

    async def _save(self) -> None:
        while True:
            self._fills.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.seconds_to_tick):
                    await self._fills.wait()
            await self.flush()

    def _note(self, events: list[Event], is_taken: bool) -> None:
        for event in events:
            if is_taken:
                self._published.append(event.id)
            elif event.tries < len(RETRY_WAITS):
                with suppress(asyncio.QueueFull):
                    self._retries.put_nowait(event)
                continue
            else:
                self._failed.append(event.id)
            self.settled += 1
            if self.confirmed is not None:
                self.confirmed[str(event.id)] = time.monotonic()
        if self.unsaved >= self._settings.save_rows:
            self._fills.set()


@asynccontextmanager
async def referring(url: str, place: Place, settings: ReferenceSettings) -> AsyncIterator[Reference]:
    """The reference at work."""
    async with connected(place.url) as connection:
        first = await opened_line(connection, place.exchange, settings, is_mandatory=True)
        again = await opened_line(connection, place.exchange, settings, is_mandatory=False)
        database = await connect(url)
        async with database:
            reference = Reference(database, first, again, settings)
            running = asyncio.create_task(reference.run())
            try:
                yield reference
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Any]:
    """pika's connection in the running event loop."""
    loop = asyncio.get_running_loop()
    opened, closed = loop.create_future(), loop.create_future()
    connection = AsyncioConnection(
        pika.URLParameters(url),
        on_open_callback=lambda _: opened.set_result(None),
        on_open_error_callback=lambda _, error: opened.set_exception(error),
        on_close_callback=lambda *_: closed.set_result(None),
        custom_ioloop=loop,
    )
    await opened
    try:
        yield connection
    finally:
        connection.close()
        await closed


async def opened_line(connection: Any, exchange: str, settings: ReferenceSettings, *, is_mandatory: bool) -> Line:
    loop = asyncio.get_running_loop()
    opened: asyncio.Future[Any] = loop.create_future()
    connection.channel(on_open_callback=opened.set_result)
    channel = await opened
    line = Line(channel, exchange, settings, is_mandatory=is_mandatory)
    ready: asyncio.Future[Any] = loop.create_future()
    channel.add_on_return_callback(line.on_return)
    channel.confirm_delivery(line.on_confirm, callback=ready.set_result)
    await ready
    return line
