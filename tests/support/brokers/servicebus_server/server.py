"""The server: a thread with an event loop, a socket on a free port, and what it has stored."""

import asyncio
import hmac
import time
from base64 import b64encode
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Thread
from typing import Self
from urllib.parse import parse_qsl, quote_plus

from tests.support.brokers.servicebus_server.connection import Connection
from tests.support.brokers.servicebus_server.faults import Accept, Fault, Reject
from tests.support.brokers.servicebus_server.message import Stored, unpacked


@dataclass(slots=True)
class Entity:
    """What is stored for one queue or topic, and when each id was first seen."""

    messages: list[Stored] = field(default_factory=list)
    seen: dict[str, float] = field(default_factory=dict)


class ServiceBusDouble:
    """Stores messages by entity, in the order in which they come; it forgets nothing when it is stopped and started again.

    The attributes may be changed at any time, and count from the next transfer, token or connection on.
    """

    def __init__(self) -> None:
        # The entities that there are; None stands for whatever is asked for.
        self.entities: set[str] | None = None
        # Entities that demand a session of each message, and the same one of all messages of a batch.
        self.session_entities: set[str] = set()
        # Messages whose id was seen in this time are settled and not stored.
        self.duplicate_window: timedelta | None = None
        # Ids of messages that no batch may hold.
        self.unwanted: set[str] = set()
        self.max_message_bytes = 256 * 1024
        # What tokens have to be signed with, and the status of the answer to one that is.
        self.key = "c2VjcmV0"
        self.token_status = 202
        # Takes connections, and says nothing on them.
        self.is_mute = False
        # What to do with the next transfers, one each, and with all after them.
        self.faults: deque[Fault] = deque()
        self.otherwise: Fault = Accept()
        # How many transfers, of one message or of a batch, and connections there have been.
        self.transfers = self.connections = 0
        self.sizes: list[int] = []
        self._entities: dict[str, Entity] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connection_string(self) -> str:
        return connection_string(self.port, self.key)

    @property
    def url(self) -> str:
        """For proxies."""
        return f"amqp://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        self._run(self._listen())

    def stop(self) -> None:
        """Close all connections, and refuse new ones."""
        self._run(self._close())

    def hang_up(self) -> None:
        """Close all connections; new ones are welcome."""
        self._run(self._close_connections())

    def plan(self, *faults: Fault) -> None:
        """Do this with the next transfers."""
        self.faults.extend(faults)

    def messages(self, entity: str) -> list[Stored]:
        return list(self._entities.get(entity, Entity()).messages)

    def has(self, entity: str) -> bool:
        return self.entities is None or entity in self.entities

    def judge_token(self, resource: str, token: str) -> int:
        """The status of a shared access signature for a resource."""
        given = dict(parse_qsl(token.removeprefix("SharedAccessSignature ")))
        text = f"{quote_plus(resource)}\n{given['se']}"
        signature = b64encode(hmac.digest(self.key.encode(), text.encode(), "sha256")).decode()
        return self.token_status if signature == given["sig"] else 401

    def next_fault(self) -> Fault:
        return self.faults.popleft() if self.faults else self.otherwise

    def store(self, entity: str, message_format: int, payload: bytes) -> Reject | None:
        """Store the messages of a transfer, all or none; why not, if none."""
        messages = list(unpacked(entity, self.transfers, message_format, payload))
        refusal = self._refusal(entity, messages, len(payload))
        if refusal is None:
            place = self._entities.setdefault(entity, Entity())
            place.messages += [message for message in messages if self._is_new(place, message)]
        return refusal

    def _refusal(self, entity: str, messages: list[Stored], size: int) -> Reject | None:
        if size > self.max_message_bytes:
            return Reject("amqp:link:message-size-exceeded", f"{size} bytes are more than {self.max_message_bytes}")
        if self.unwanted and any(message.id in self.unwanted for message in messages):
            return Reject("amqp:not-allowed", "there is a message that nobody wants")
        if entity in self.session_entities:
            sessions = {message.session for message in messages}
            if None in sessions:
                return Reject("amqp:not-allowed", "the session id was not set on a message of an entity that requires it")
            if len(sessions) > 1:
                return Reject("com.microsoft:argument-error", "the messages of a batch are of several sessions")
        return None

    def _is_new(self, place: Entity, message: Stored) -> bool:
        if self.duplicate_window is None:
            return True
        now = time.monotonic()
        is_new = now - place.seen.get(message.id, -1e9) > self.duplicate_window.total_seconds()
        if is_new:
            place.seen[message.id] = now
        return is_new

    def _run(self, work: object) -> None:
        future: Future[None] = asyncio.run_coroutine_threadsafe(work, self._loop)  # type: ignore[arg-type]  # a coroutine
        future.result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._close_connections()

    async def _close_connections(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # A client that hangs up in the middle of a frame is nothing to speak of.
            with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
                await Connection(self, reader, writer).run()
        finally:
            self._tasks.discard(task)
            writer.close()


def connection_string(port: int, key: str) -> str:
    """As the emulator of Azure has it: without TLS, and with the port."""
    return f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=Root;SharedAccessKey={key};UseDevelopmentEmulator=true;"
