"""One connection with one channel in confirm mode, opened by pika in the running event loop."""

import asyncio
import logging
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Protocol

from pika import ConnectionParameters, PlainCredentials, SSLOptions
from pika.adapters.asyncio_connection import AsyncioConnection
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionOpenAborted
from pika.spec import Basic

from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.rabbitmq.refusal import ended, no_answer, not_opened
from headwater.errors import BrokerError

# How long an orderly goodbye may take.
_CLOSE_SECONDS = 5.0
_PRECONDITION_FAILED = 406


class Listener(Protocol):
    """Who is told what happens on a session."""

    def on_confirm(self, tag: int, *, is_multiple: bool, is_stored: bool) -> None: ...

    def on_return(self, message_id: str, routing_key: str) -> None: ...

    def on_change(self) -> None:
        """The session ended, or may send again."""


class _Connection(AsyncioConnection):  # type: ignore[misc]  # pika ships no types
    """pika's connection, which takes frames that are built already, and can be dropped without a goodbye."""

    def emit(self, frames: memoryview) -> None:
        """Send them in one piece: pika itself makes a system call for each frame."""
        self._output_marshaled_frames([frames])

    @property
    def waiting_bytes(self) -> int:
        return 0 if self._transport is None else int(self._transport.get_write_buffer_size())

    def drop(self) -> None:
        """A broker that is blocked, or gone, would never answer a goodbye."""
        if not self.is_closed and (self._transport is not None or not self._opened):
            self._terminate_stream(ConnectionOpenAborted("dropped"))

    def _on_connection_workflow_done(self, conn_or_exc: Any) -> None:
        # Of a connection that was dropped before it was open, pika reports the class of an error, and stumbles over it.
        super()._on_connection_workflow_done(conn_or_exc() if isinstance(conn_or_exc, type) else conn_or_exc)


class Session:
    """Publishes on one channel; what became of them is told to the `listener`. `ended` says why it is of no more use."""

    _connection: _Connection

    def __init__(self, access: RabbitmqAccess) -> None:
        self._access = access
        self._loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._channel: Any = None
        self.listener: Listener | None = None
        self.ended: BaseException | None = None
        # Why the broker reads nothing from us for now, in its own words.
        self.blocked: str | None = None
        # That of the next publish.
        self.next_tag = 1

    @classmethod
    async def open(cls, access: RabbitmqAccess, seconds: float) -> "Session":
        """A session on which messages can be published; raises `BrokerUnavailable` or `BrokerError`."""
        _silence()
        session = cls(access)
        session._connection = _Connection(
            _parameters(access, seconds),
            on_open_callback=session._on_open,
            on_open_error_callback=session._on_open_error,
            on_close_callback=session._on_close,
            custom_ioloop=session._loop,
        )
        try:
            async with asyncio.timeout(seconds):
                await session._opened
        except TimeoutError as error:
            session.drop()
            raise no_answer(access) from error
        except BaseException:
            session.drop()
            raise
        return session

    @property
    def channel_number(self) -> int:
        return int(self._channel.channel_number)

    @property
    def frame_max(self) -> int:
        """What both sides have agreed on."""
        return int(self._connection.params.frame_max)

    @property
    def waiting_bytes(self) -> int:
        """How much has not gone out."""
        return self._connection.waiting_bytes

    def send(self, frames: memoryview, count: int) -> None:
        """Publish; the tags of these messages count from `next_tag`."""
        self.next_tag += count
        self._connection.emit(frames)

    async def declare(self, queue: str, seconds: float) -> str | None:
        """Make a durable quorum queue, unless there is any of that name; the broker's reason when it does not."""
        done: asyncio.Future[BaseException | None] = self._loop.create_future()
        # One of its own: whatever the broker does not like, it closes the channel.
        channel = self._connection.channel(
            on_open_callback=lambda opened: opened.queue_declare(
                queue, durable=True, arguments={"x-queue-type": "quorum"}, callback=lambda _: _settle(done, None)
            )
        )
        channel.add_on_close_callback(lambda _, reason: _settle(done, reason))
        try:
            async with asyncio.timeout(seconds):
                reason = await done
        except TimeoutError as error:
            with suppress(AMQPError):
                channel.close()
            raise no_answer(self._access) from error
        if reason is None:
            channel.close()
            return None
        if not isinstance(reason, ChannelClosedByBroker):
            raise ended(reason, self._access) from reason
        # It is there, and not as we would have made it.
        return None if reason.reply_code == _PRECONDITION_FAILED else str(reason.reply_text)

    async def close(self) -> None:
        """Say goodbye, or go without when the broker does not answer."""
        if self.ended is None:
            with suppress(AMQPError):
                self._connection.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await self._gone.wait()
        self.drop()

    def drop(self) -> None:
        self.listener = None
        self._connection.drop()

    def _on_open(self, connection: _Connection) -> None:
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        self._channel = connection.channel(on_open_callback=self._on_channel_open)
        self._channel.add_on_close_callback(lambda _, reason: self._end(reason))

    def _on_channel_open(self, channel: Any) -> None:
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=lambda _: _settle(self._opened, None))

    def _on_open_error(self, _: _Connection, error: BaseException) -> None:
        self.ended = error
        self._gone.set()
        _fail(self._opened, not_opened(error, self._access), error)

    def _on_close(self, _: _Connection, error: BaseException) -> None:
        self._end(error)
        self._gone.set()

    def _end(self, error: BaseException) -> None:
        # The first reason is the cause, and those that follow are of its making.
        if self.ended is None:
            self.ended = error
            _fail(self._opened, ended(error, self._access), error)
            self._tell()

    def _on_blocked(self, _: _Connection, frame: Any) -> None:
        self.blocked = str(frame.method.reason)

    def _on_unblocked(self, _: _Connection, __: Any) -> None:
        self.blocked = None
        self._tell()

    def _on_confirm(self, frame: Any) -> None:
        if self.listener is not None:
            method = frame.method
            is_stored = isinstance(method, Basic.Ack)
            self.listener.on_confirm(method.delivery_tag, is_multiple=method.multiple, is_stored=is_stored)

    def _on_return(self, _: Any, method: Any, properties: Any, __: bytes) -> None:
        if self.listener is not None:
            self.listener.on_return(properties.message_id, method.routing_key)

    def _tell(self) -> None:
        if self.listener is not None:
            self.listener.on_change()


def _parameters(access: RabbitmqAccess, seconds: float) -> Any:
    server = access.server
    return ConnectionParameters(
        host=server.host,
        port=server.port,
        virtual_host=server.virtual_host,
        credentials=PlainCredentials(server.user, server.password),
        ssl_options=SSLOptions(access.tls_context(), server.host) if server.is_tls else None,
        heartbeat=round(access.heartbeat.total_seconds()),
        socket_timeout=seconds,
        stack_timeout=seconds,
        client_properties={"connection_name": access.name, "product": "headwater", "version": version("headwater")},
    )


def _settle(future: "asyncio.Future[Any]", value: object) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: "asyncio.Future[Any]", error: BrokerError, cause: BaseException) -> None:
    if not future.done():
        error.__cause__ = cause
        future.set_exception(error)


def _silence() -> None:
    """pika logs each lost connection as an error with a traceback. We try again, and raise what remains."""
    logger = logging.getLogger("pika")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)
