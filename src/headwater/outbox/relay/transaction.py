"""Transactions of the application whose events are handed to the relay after the commit.

Events are checked and encoded when they are published, and written just before the commit: their lease begins when it is
needed, and what a savepoint takes back is not written at all. Where somebody else makes savepoints they are written at once,
so that the server takes them back. One event is written in one round trip with the commit, as two statements of one message;
psycopg's pipeline mode would do that too, at twice the cost in this process's time.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

import psycopg
from psycopg.abc import Params, QueryNoTemplate
from psycopg.pq import PipelineStatus, TransactionStatus

from headwater.errors import OutboxError
from headwater.outbox import statements
from headwater.outbox.event import EncodedEvent, Event
from headwater.outbox.publish import chunks, prepare_events
from headwater.outbox.relay.pending import Pending
from headwater.outbox.relay.tracing import publish_span
from headwater.outbox.transaction import AnyConnection
from headwater.postgres.statements import Statement, execute, execute_sync, fetch, fetch_sync

AnyConnectionT = TypeVar("AnyConnectionT", bound=AnyConnection)

# How long a request that is cancelled at its commit waits for it: a commit takes milliseconds, unless it waits for a lock.
_COMMIT_GRACE: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Lease:
    """What a row says of who sends it, and by the monotonic clock until when; nobody, without an instance."""

    instance: str | None
    seconds: float | None
    deadline: float


class Taker(Protocol):
    """What a transaction needs of its relay."""

    @property
    def max_bytes(self) -> int: ...

    def lease(self, events: int) -> Lease:
        """For so many rows that are written now."""

    def take(self, events: Sequence[EncodedEvent], created_us: Sequence[int], lease: Lease) -> None:
        """Events that were committed."""

    def wake(self) -> None:
        """Something was committed that nobody has a lease of."""


@dataclass(frozen=True, slots=True)
class Written:
    """Events that are rows by now, when they were written, and who sends them."""

    events: Sequence[EncodedEvent]
    created_us: Sequence[int]
    lease: Lease


class _Open(Generic[AnyConnectionT]):
    """A transaction that is open, on either kind of connection."""

    def __init__(self, connection: AnyConnectionT, taker: Taker) -> None:
        self.connection = connection
        self._taker, self._pending = taker, Pending()
        self._outer_depth = depth_of(connection) - 1
        self._wrote_early = False

    @property
    def is_open(self) -> bool:
        return self._pending.depth > 0

    def _prepared(self, events: Sequence[Event]) -> list[EncodedEvent]:
        """Events as they are written, or OutboxError; the transaction stays as it was."""
        if not self.is_open:
            raise OutboxError("the transaction has ended, and nothing can be published in it any more; publish inside of it")
        self._require_same()
        with publish_span(events):
            return prepare_events(self.connection, events, self._taker.max_bytes)

    def _require_same(self) -> None:
        """Raise OutboxError if the block's transaction is over; what is open now, if anything, is another."""
        if not self._is_in_pipeline and self.connection.info.transaction_status == TransactionStatus.IDLE:
            raise OutboxError(
                "a statement has ended the transaction inside of its block, so its events belong to none and are not "
                "published; leave the end to the block, and raise psycopg.Rollback to roll back"
            )

    def _is_for_server(self) -> bool:
        """Whether a savepoint was made that is not ours, or may have been, so that nobody tells us what becomes of it."""
        is_foreign = depth_of(self.connection) != self._outer_depth + self._pending.depth
        # In a pipeline we learn of statements only when their results have come.
        return is_foreign or self._is_in_pipeline

    @property
    def _is_in_pipeline(self) -> bool:
        return self.connection.pgconn.pipeline_status != PipelineStatus.OFF

    def _early(self, events: Sequence[EncodedEvent]) -> list[Statement[object]]:
        """Write at once, for whoever finds it: then the server takes back what a savepoint takes back."""
        self._wrote_early = True
        return [statements.insert_messages(chunk) for chunk in chunks(events)]

    def _may_commit(self, events: Sequence[EncodedEvent]) -> bool:
        """Whether the insert and the commit can go in one message: arrays would have to be written out, and a pipeline takes
        one statement at a time."""
        return len(events) == 1 and not self._is_in_pipeline

    def _taken(self) -> list[EncodedEvent]:
        """What is to be written at the end, or OutboxError if it is not this transaction's end."""
        if events := self._pending.take():
            self._require_same()
        return events

    def _inserts(self, events: Sequence[EncodedEvent], lease: Lease) -> list[Statement[int]]:
        if len(events) == 1:
            return [statements.insert_leased(events[0], lease.instance, lease.seconds)]
        return [statements.insert_leased_many(chunk, lease.instance, lease.seconds) for chunk in chunks(events)]

    def hand_over(self, written: Written) -> None:
        """After the commit."""
        if written.events:
            self._taker.take(written.events, written.created_us, written.lease)
        if self._wrote_early:
            self._taker.wake()

    def close(self) -> None:
        self._pending.close()


class RelayTransaction(_Open[psycopg.AsyncConnection[Any]]):
    """A transaction on an async connection; what is published in it is sent after it has committed."""

    async def execute(self, query: QueryNoTemplate, params: Params | None = None) -> psycopg.AsyncCursor[Any]:
        """As the connection's own."""
        return await self.connection.execute(query, params)

    async def publish(  # noqa: PLR0913 - the parts of an event, and by name what most events do without
        self,
        topic: str,
        type: str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: UUID | None = None,
    ) -> UUID:
        """Publish an event if the transaction commits; returns its id. What cannot be written raises OutboxError."""
        (id_,) = await self.publish_many([Event(topic, type, payload, key, headers, id)])
        return id_

    async def publish_many(self, events: Sequence[Event]) -> list[UUID]:
        ready = self._prepared(events)
        if self._is_for_server():
            for statement in self._early(ready):
                await execute(self.connection, statement)
        else:
            self._pending.add(ready)
        return [event.id for event in ready]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["RelayTransaction"]:
        """A savepoint: what is published in a block that fails is not published."""
        async with self.connection.transaction():
            self._pending.enter()
            try:
                yield self
            except BaseException:
                self._pending.leave(keeps=False)
                raise
            self._pending.leave(keeps=True)

    async def write(self, block: psycopg.AsyncTransaction) -> Written:
        """Write the events, at the end of the transaction, which may have committed then."""
        events = self._taken()
        lease = self._taker.lease(len(events))
        created_us: list[int] = []
        if self._may_commit(events):
            statement = statements.insert_leased_and_commit(events[0], lease.instance, lease.seconds)
            async with psycopg.AsyncClientCursor(self.connection, row_factory=statement.row_factory) as cursor:
                created_us = await (await cursor.execute(statement.query, statement.parameters)).fetchall()
            note_commit(block)
            return Written(events, created_us, lease)
        for statement in self._inserts(events, lease):
            created_us += await fetch(self.connection, statement)
        return Written(events, created_us, lease)


class RelayTransactionSync(_Open[psycopg.Connection[Any]]):
    """`RelayTransaction` for a connection that is not async."""

    def execute(self, query: QueryNoTemplate, params: Params | None = None) -> psycopg.Cursor[Any]:
        """As the connection's own."""
        return self.connection.execute(query, params)

    def publish(  # noqa: PLR0913 - as above
        self,
        topic: str,
        type: str,
        payload: object,
        *,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
        id: UUID | None = None,
    ) -> UUID:
        """Publish an event if the transaction commits; returns its id. What cannot be written raises OutboxError."""
        (id_,) = self.publish_many([Event(topic, type, payload, key, headers, id)])
        return id_

    def publish_many(self, events: Sequence[Event]) -> list[UUID]:
        ready = self._prepared(events)
        if self._is_for_server():
            for statement in self._early(ready):
                execute_sync(self.connection, statement)
        else:
            self._pending.add(ready)
        return [event.id for event in ready]

    @contextmanager
    def transaction(self) -> Iterator["RelayTransactionSync"]:
        """A savepoint: what is published in a block that fails is not published."""
        with self.connection.transaction():
            self._pending.enter()
            try:
                yield self
            except BaseException:
                self._pending.leave(keeps=False)
                raise
            self._pending.leave(keeps=True)

    def write(self, block: psycopg.Transaction) -> Written:
        """Write the events, at the end of the transaction, which may have committed then."""
        events = self._taken()
        lease = self._taker.lease(len(events))
        created_us: list[int] = []
        if self._may_commit(events):
            statement = statements.insert_leased_and_commit(events[0], lease.instance, lease.seconds)
            with psycopg.ClientCursor(self.connection, row_factory=statement.row_factory) as cursor:
                created_us = cursor.execute(statement.query, statement.parameters).fetchall()
            note_commit(block)
            return Written(events, created_us, lease)
        for statement in self._inserts(events, lease):
            created_us += fetch_sync(self.connection, statement)
        return Written(events, created_us, lease)


@asynccontextmanager
async def open_transaction(
    connection: psycopg.AsyncConnection[Any], taker: Taker, open_ones: dict[object, RelayTransaction]
) -> AsyncIterator[RelayTransaction]:
    """A transaction on a connection that has none open; inside of another one of ours it is a savepoint of that."""
    if (outer := open_ones.get(connection)) is not None:
        async with outer.transaction():
            yield outer
        return
    refuse_foreign(connection)
    async with AsyncExitStack() as block:
        inner = await block.enter_async_context(connection.transaction())
        opened = open_ones[connection] = RelayTransaction(connection, taker)
        try:
            yield opened
            await _in_whole(_end(opened, inner, block.pop_all()))
        finally:
            opened.close()
            del open_ones[connection]


async def _end(opened: RelayTransaction, inner: psycopg.AsyncTransaction, block: AsyncExitStack) -> None:
    async with block:
        written = await opened.write(inner)
    opened.hand_over(written)


async def _in_whole(work: Coroutine[Any, Any, None]) -> None:
    """Do something to its end although the caller is cancelled meanwhile, who hears of that afterwards.

    Else a commit may be done of which nobody knows, and its events would wait until their lease ends. One that takes long is
    cancelled after all.
    """
    task = asyncio.create_task(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        try:
            await asyncio.wait([task], timeout=_COMMIT_GRACE.total_seconds())
        finally:
            task.cancel()
            await asyncio.wait([task])
            # The caller was cancelled, which says enough; asyncio would complain of an error that nobody has asked for.
            if not task.cancelled():
                task.exception()
        raise
    task.result()


@contextmanager
def open_transaction_sync(
    connection: psycopg.Connection[Any], taker: Taker, open_ones: dict[object, RelayTransactionSync]
) -> Iterator[RelayTransactionSync]:
    """`open_transaction` for a connection that is not async."""
    if (outer := open_ones.get(connection)) is not None:
        with outer.transaction():
            yield outer
        return
    refuse_foreign(connection)
    written: Written | None = None
    with connection.transaction() as block:
        opened = open_ones[connection] = RelayTransactionSync(connection, taker)
        try:
            yield opened
            written = opened.write(block)
        finally:
            opened.close()
            del open_ones[connection]
    # Not there when psycopg's `Rollback` was raised, and the block has ended without an error.
    if written is not None:
        opened.hand_over(written)


def refuse_foreign(connection: AnyConnection) -> None:
    """Raise OutboxError if a transaction is open that somebody else commits, so that we would not know when."""
    if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        raise OutboxError(
            "the connection has a transaction open that is not the relay's, so the relay would not learn of its commit; end "
            "it first, or write the events with outbox.publish, which the relay finds a moment after the commit"
        )


def note_commit(block: psycopg.AsyncTransaction | psycopg.Transaction) -> None:
    """Tell psycopg that the transaction has committed, so that the end of the block sends no commit.

    psycopg has no public name for it. Should another release not listen, the server gets a commit without a transaction, and
    answers with a warning.
    """
    block._outer_transaction = False


def depth_of(connection: AnyConnection) -> int:
    """How many blocks of psycopg are open on a connection; psycopg has no public name for it."""
    return connection._num_transactions
