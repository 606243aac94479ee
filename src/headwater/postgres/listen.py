"""LISTEN that lasts: a stream of notifications which outlives its connections.

A notification that is sent while nobody listens is lost, so notifications only say when to look, never what is there.
After every connect the stream first yields `Listening`: whoever reads it looks through their tables once, then on every
notification. The server must be reached directly: a pooler in transaction mode accepts LISTEN and delivers nothing.
"""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeAlias

import psycopg
from psycopg import sql

from headwater.errors import ConnectionLost, HeadwaterError, SettingsError, SourceError
from headwater.postgres.backoff import Backoff
from headwater.postgres.connect import AsyncConnection, connect, describe, is_passing, translate
from headwater.postgres.statements import execute, load

SQL: Final = load("headwater.postgres", "sql/listen.sql")
# NAMEDATALEN - 1; a longer name would be cut by LISTEN and refused by NOTIFY.
_MAX_CHANNEL_BYTES = 63

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Listening:
    """From here on nothing is missed, until the next one of these; what came before may have been."""

    backend_pid: int


@dataclass(frozen=True, slots=True)
class Notification:
    """What somebody sent with NOTIFY; `pid` is the backend that did."""

    channel: str
    payload: str
    pid: int


Heard: TypeAlias = Listening | Notification


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSettings:
    """How to listen: after `probe` of silence the line is tried, and given up if no answer comes within `answer`."""

    url: str = field(repr=False)
    channels: Sequence[str]
    application_name: str = "headwater listen"
    probe: timedelta = timedelta(seconds=30)
    answer: timedelta = timedelta(seconds=10)
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        for channel in self.channels:
            if not 0 < len(channel.encode()) <= _MAX_CHANNEL_BYTES:
                raise SettingsError(f"channel name {channel!r} must have 1 to {_MAX_CHANNEL_BYTES} bytes")
        if not self.channels:
            raise SettingsError("name at least one channel to listen to")


async def listen(settings: ListenSettings) -> AsyncGenerator[Heard]:
    """Yield `Listening` after each connect and notifications after it, for ever; close it, or cancel the task, to end.

    A first connect that cannot succeed (wrong password, no such database, a standby) raises. Once it listened, nothing but
    cancellation ends it: it logs what went wrong and connects again, waiting longer after each failure.
    """
    failures, has_listened = 0, False
    while True:
        try:
            async with _subscribed(settings) as connection:
                failures, has_listened = 0, True
                _log.debug("listening", extra={"server": describe(settings.url), "channels": list(settings.channels)})
                yield Listening(connection.info.backend_pid)
                async for notification in _notifications(connection, settings):
                    yield notification
        except HeadwaterError as exc:
            if not (has_listened or exc.retryable):
                raise
            failures += 1
            wait = settings.backoff.after(failures, random.random()).total_seconds()
            _log.warning("listening stopped, again in %.1f s: %s", wait, exc)
            await asyncio.sleep(wait)


@asynccontextmanager
async def _subscribed(settings: ListenSettings) -> AsyncIterator[AsyncConnection]:
    """A connection that listens; what psycopg raises on it becomes ours."""
    connection = await connect(settings.url, application_name=settings.application_name)
    try:
        for channel in settings.channels:
            await execute(connection, SQL["listen"].compose(channel=sql.Identifier(channel)))
        yield connection
    except psycopg.Error as exc:
        if connection.closed or is_passing(exc):
            raise translate(exc, settings.url) from exc
        reason = exc.diag.message_primary or type(exc).__name__
        raise SourceError(
            f"PostgreSQL at {describe(settings.url)} does not let us listen: {reason}; connect to the primary, as a role "
            "that may"
        ) from exc
    finally:
        # The server forgets a listener when its socket closes; waiting for an answer would only delay a cancelled task.
        await connection.close()


async def _notifications(connection: AsyncConnection, settings: ListenSettings) -> AsyncIterator[Notification]:
    while True:
        async for notify in connection.notifies(timeout=settings.probe.total_seconds()):
            yield Notification(notify.channel, notify.payload, notify.pid)
        try:
            async with asyncio.timeout(settings.answer.total_seconds()):
                await execute(connection, SQL["probe"].bind(int))
        except TimeoutError as exc:
            raise ConnectionLost(f"PostgreSQL at {describe(settings.url)} does not answer; check the network") from exc
