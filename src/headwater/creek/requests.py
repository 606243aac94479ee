"""Requests over NATS: schemas by fingerprint and snapshots of tables, as Creek's clients ask for them, and the answers.

What is here reads requests and sends answers; `Producer` is whoever knows schemas and takes snapshots. Bodies are not in
packets. Several producers hear every request of generation 1: who cannot know whether another one could answer keeps silent,
and only the producer of the database that a request names says why there is no snapshot.
"""

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from headwater.creek.messages import SchemaMessage, SnapshotRequest
from headwater.creek.names import Names

_log = logging.getLogger(__name__)

ERROR_HEADER: Final = "Headwater-Error"
# The last message of a snapshot that could not be completed; the header says why.
ERROR: Final = b"ERROR"

# Eight bytes in base64 with the alphabet for URLs; some leave the padding out.
_FINGERPRINT: Final = re.compile(rb"\s*([A-Za-z0-9_-]{11})=?\s*")
# More than any client has open; whatever comes beyond is left to the client's own time limit.
_MOST_AT_A_TIME: Final = 1000
_LONGEST_REASON: Final = 500


class RequestRefused(Exception):
    """There is no snapshot, and the client is told why: a sentence, which by its blanks can be no subject."""


class Producer(Protocol):
    """Who answers. Both are called many times at once, and neither may block the loop."""

    async def find_schema(self, fingerprint: str) -> SchemaMessage | None:
        """The schema with a fingerprint, None if it is not known here."""

    async def take_snapshot(self, request: SnapshotRequest) -> str:
        """Begin a snapshot and return its topic; raises RequestRefused."""


def parse_fingerprint(body: bytes) -> str | None:
    """The fingerprint that a schema request asks for, in full base64; None if it is none."""
    match = _FINGERPRINT.fullmatch(body)
    return None if match is None else f"{match[1].decode()}="


def parse_snapshot_request(body: bytes, database: str) -> SnapshotRequest | None:
    """The request, if it is one for this database; None for those of others, and for what cannot be read as either.

    Raises RequestRefused for one that is ours but names no table.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(asked, dict) or asked.get("database") != database:
        return None
    namespace, table = asked.get("namespace"), asked.get("table")
    if not (isinstance(namespace, str) and isinstance(table, str) and namespace and table):
        raise RequestRefused('the request names no table; send {"database": ..., "namespace": ..., "table": ...}')
    return SnapshotRequest(database, namespace, table)


def reason_of(error: BaseException | str) -> str:
    """What went wrong on one line, short enough for a header."""
    return " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__


class RequestServer:
    """Hears the requests of one producer's subjects on a connection, and has each answered by a task of its own."""

    def __init__(self, client: Client, names: Names, producer: Producer) -> None:
        self._client, self._names, self._producer = client, names, producer
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Subscribe; the server knows of it on return."""
        for subject in self._names.schema_requests:
            await self._subscribe(subject, self._answer_schema)
        for subject in self._names.snapshot_requests:
            await self._subscribe(subject, self._answer_snapshot)
        # A flush overtakes what is yet to be written: the first has that written, and the second is answered after it.
        for _ in range(2):
            await self._client.flush()

    async def stop(self) -> None:
        """Hear no more; requests that are not answered yet stay so."""
        for subscription in self._subscriptions:
            try:
                await subscription.unsubscribe()
            except NatsError as exc:
                _log.debug("not unsubscribed from %s", subscription.subject, exc_info=exc)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _subscribe(self, subject: str, answer: Callable[[Msg], Coroutine[Any, Any, None]]) -> None:
        async def hear(message: Msg) -> None:
            # A subscription hands out one message after the other: whoever waited here would hold up all others.
            self._begin(message, answer)

        self._subscriptions.append(await self._client.subscribe(subject, cb=hear))

    def _begin(self, message: Msg, answer: Callable[[Msg], Coroutine[Any, Any, None]]) -> None:
        if not message.reply:
            _log.debug("request on %s ignored: it names no subject to reply to", message.subject)
        elif len(self._tasks) >= _MOST_AT_A_TIME:
            _log.warning("request on %s ignored: %d others are being answered", message.subject, len(self._tasks))
        else:
            task = asyncio.create_task(self._guarded(message, answer(message)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _guarded(self, message: Msg, answering: Awaitable[None]) -> None:
        try:
            await answering
        except Exception:  # noqa: BLE001 - it is logged
            # A request that fails is that client's trouble alone, which waits for its own time limit.
            _log.warning("request on %s could not be answered", message.subject, exc_info=True)

    async def _answer_schema(self, message: Msg) -> None:
        fingerprint = parse_fingerprint(message.data)
        if fingerprint is None:
            _log.debug("request on %s ignored: %r is no fingerprint", message.subject, message.data[:40])
            return
        schema = await self._producer.find_schema(fingerprint)
        if schema is None:
            _log.debug("request on %s left to others: schema %s is not known here", message.subject, fingerprint)
            return
        await self._client.publish(message.reply, schema.to_json())

    async def _answer_snapshot(self, message: Msg) -> None:
        try:
            request = parse_snapshot_request(message.data, self._names.database)
            if request is None:
                _log.debug("request on %s left to others: it does not name %s", message.subject, self._names.database)
                return
            topic = await self._producer.take_snapshot(request)
        except RequestRefused as exc:
            _log.info("request on %s refused: %s", message.subject, exc)
            reason = reason_of(exc)
            await self._client.publish(message.reply, reason.encode(), headers={ERROR_HEADER: reason})
            return
        await self._client.publish(message.reply, topic.encode())
