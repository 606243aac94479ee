"""Reading a topic as a member of a group: batches for as long as they are asked for, and the next one read ahead."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from datetime import timedelta
from inspect import isawaitable
from types import TracebackType
from typing import Final, Self, cast

from headwater import failpoints
from headwater.errors import ConnectionLost, HeadwaterError, LeaseLost, SettingsError, TopicError
from headwater.model.settings import require_settings
from headwater.postgres.backoff import Backoff
from headwater.postgres.session import BACKOFF
from headwater.topics.batch import Batch
from headwater.topics.ear import Ear
from headwater.topics.group import open_group
from headwater.topics.line import Line
from headwater.topics.member import Member
from headwater.topics.owned import Owned
from headwater.topics.reader import Found, Reader
from headwater.topics.shared import Shared
from headwater.topics.subscribe_settings import SubscriberSettings
from headwater.topics.topic import find
from headwater.topics.wake import Wake
from headwater.topics.window import Part

_log = logging.getLogger(__name__)

# To give up what it has; what is not given up by then is others' when the lease ends.
_LEAVE_SECONDS: Final = 5.0
# After a handler has failed, longer each time.
_FAILED: Final = Backoff(first=timedelta(milliseconds=100), longest=timedelta(seconds=30))


class _NotAsync(Exception):
    """What a handler returned cannot be awaited."""


class Subscriber:
    """A member of a group; use it in one event loop.

    `async for batch in subscriber` gives batches for ever. Within `async with` it may be left and taken up again; without,
    it is closed when the loop is left. Lost connections are made again; `listen_url` is for those whose `url` leads to a
    pooler in transaction mode. Instead of a URL, several subscribers may be given one Line, and share its connections.
    """

    def __init__(
        self,
        url: str | Line,
        topic: str,
        group: str,
        settings: SubscriberSettings | None = None,
        listen_url: str | None = None,
    ) -> None:
        self._topic, self._group, self._settings = topic, group, settings or SubscriberSettings()
        require_settings(self._settings, SubscriberSettings)
        if isinstance(url, Line) and listen_url is not None:
            raise SettingsError("a line has a listen_url of its own; give it to the Line")
        self._url, self._listen_url = url, listen_url
        self._line = url if isinstance(url, Line) else Line(url, listen_url)
        self._wake = Wake(self._settings, self._concerns)
        self._reader: Reader | None = None
        self._ear: Ear | None = None
        # The loop over its batches that has opened it, if it was one.
        self._loop: object = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ahead: asyncio.Task[Found] | None = None

    async def __aenter__(self) -> Self:
        if self._reader is not None:
            raise TopicError("the subscriber is open already; make another one for another member of the group")
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Batch]:
        loop = object()
        if self._reader is None:
            await self.__aenter__()
            self._loop = loop
        elif self._loop is not None:
            # One was left before, and is closed when it is collected: this one goes on with what it has.
            self._loop = loop
        try:
            while self._reader is not None and (batch := await self._next(self._reader)) is not None:
                yield batch
        finally:
            if self._loop is loop:
                await self.close()

    async def run(self, handler: Callable[[Batch], Awaitable[object]]) -> None:
        """Give batches to a handler, for ever, and commit each one that it has dealt with.

        One for which it raises comes again after a while, and what fails again and again is a dead letter; with at-most-once
        it is only said.
        """
        if not callable(handler):
            raise TopicError(f"the handler is a {type(handler).__name__}; give a function, `async def handler(batch)`")
        failures = 0
        # Closed when this ends, and not when it is collected: others may close the line next.
        async with aclosing(cast("AsyncGenerator[Batch]", aiter(self))) as batches:
            async for batch in batches:
                try:
                    if not isawaitable(handling := handler(batch)):
                        raise _NotAsync
                    await handling
                    await batch.commit()
                    failures = 0
                except LeaseLost as exc:
                    _log.warning("a batch was not committed: %s", exc)
                except _NotAsync:
                    raise TopicError(
                        "the handler is not async, so that nobody can wait for it; write `async def handler(batch)`, and "
                        "have what blocks done by asyncio.to_thread"
                    ) from None
                except Exception as exc:  # noqa: BLE001 - whatever it is, others have their turn
                    failures += 1
                    _log.warning("a batch of topic %r failed in group %r", self._topic, self._group, exc_info=exc)
                    await self._failed(batch, f"{type(exc).__name__}: {exc}")
                    await asyncio.sleep(_FAILED.after(failures, random.random()).total_seconds())

    async def close(self) -> None:
        """Give everything up for others, at once; what was not committed stays so."""
        reader, self._reader = self._reader, None
        # It may be opened again meanwhile.
        line, ear, self._ear, self._loop = self._line, self._ear, None, None
        tasks = [*self._tasks, *([self._ahead] if self._ahead is not None else [])]
        self._tasks, self._ahead = [], None
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
            if ear is not None:
                await ear.remove(self._wake)
            if reader is not None:
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await reader.leave()
        except (HeadwaterError, TimeoutError) as exc:
            _log.warning("a member could not leave its group, and is gone when its lease ends: %s", exc)
        finally:
            if line is not self._url:
                await line.close()

    async def _open(self) -> None:
        if isinstance(self._url, str):
            # One that was closed may be opened again.
            self._line = Line(self._url, self._listen_url)
        async with self._line.opening() as connection:
            topic = await find(connection, self._topic)
            group = await open_group(connection, topic, self._group, self._settings.mode, self._settings.start)
        member = Member(self._line, topic, group, self._settings.lease)
        kind = Owned if self._settings.mode == "partition" else Shared
        await member.join()
        self._reader = kind(self._line, topic, group, member, self._wake, self._settings)
        await self._reader.open()
        self._tasks.append(asyncio.create_task(member.run(), name=f"member of {self._group}"))
        if self._settings.listens:
            self._ear = self._line.ear(topic)
            self._ear.add(self._wake)
        if self._settings.maintain_every is not None:
            self._line.look_after(topic, self._settings.maintain_every)

    def _concerns(self, partitions: Sequence[int]) -> bool:
        return self._reader is not None and self._reader.concerns(partitions)

    async def _next(self, reader: Reader) -> Batch | None:
        failures = 0
        while self._reader is reader:
            try:
                return await self._batch(reader)
            except LeaseLost:
                continue
            except ConnectionLost as exc:
                failures += 1
                wait = BACKOFF.after(failures, random.random()).total_seconds()
                _log.warning("topic %r cannot be read, again in %.1f s: %s", self._topic, wait, exc)
                await asyncio.sleep(wait)
        return None

    async def _batch(self, reader: Reader) -> Batch | None:
        while self._reader is reader:
            found = await self._polled(reader)
            if self._reader is not reader:
                break
            parts = await self._given(reader)
            if parts:
                if found is not Found.MORE:
                    self._ahead = asyncio.create_task(self._read_ahead(reader))
                failpoints.hit("topics.delivered")
                return Batch(parts, reader, is_committed=self._settings.is_at_most_once)
            match found:
                case Found.NOTHING | Found.COMING:
                    await self._wake.wait()
                case Found.SOME:
                    await self._wake.pause()
                case Found.MORE:
                    pass
        return None

    async def _polled(self, reader: Reader) -> Found:
        """What was read ahead, or is read now."""
        if self._ahead is None:
            return await self._poll(reader)
        try:
            found = await self._ahead
        except asyncio.CancelledError:
            # By close, unless it was the caller who was cancelled.
            if self._reader is reader or cast("asyncio.Task[object]", asyncio.current_task()).cancelling():
                raise
            return Found.NOTHING
        finally:
            self._ahead = None
        return found

    async def _given(self, reader: Reader) -> Sequence[Part]:
        """What goes out; at most once means that it is committed before."""
        parts = await reader.take()
        if parts and self._settings.is_at_most_once:
            try:
                await reader.commit(parts)
            except BaseException:
                reader.refused()
                raise
        return parts

    async def _poll(self, reader: Reader) -> Found:
        found = await reader.poll()
        self._wake.end(has_found=found in (Found.SOME, Found.MORE), is_coming=found is Found.COMING)
        return found

    async def _read_ahead(self, reader: Reader) -> Found:
        await self._wake.wait()
        return await self._poll(reader)

    async def _failed(self, batch: Batch, reason: str) -> None:
        if self._reader is None or self._settings.is_at_most_once:
            return
        # What it has read is after what comes again.
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            with suppress(HeadwaterError):
                await ahead
        with suppress(ConnectionLost, LeaseLost):
            await self._reader.fail(batch.parts, reason)
