"""Transactions of the application whose events are handed to the relay after the commit.

Events are checked and encoded when they are published, and written just before the commit: their lease begins when it is
needed, and what a savepoint takes back is not written at all. Where somebody else makes savepoints they are written at once,
so that the server takes them back. One event is written in one round trip with the commit, as two statements of one message;
psycopg's pipeline mode would do that too, at twice the cost in this process's time.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar
from uuid import UUID

import psycopg
from psycopg.abc import Params, QueryNoTemplate
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import scalar_row

from headwater.errors import OutboxError
from headwater.outbox import statements
from headwater.outbox.event import EncodedEvent, Event
from headwater.outbox.publish import chunks, prepare_events
from headwater.outbox.relay.identity import Databases, database_of, database_of_sync
from headwater.outbox.relay.pending import Pending
from headwater.outbox.relay.tracing import publish_span
from headwater.outbox.rights import granted
from headwater.outbox.transaction import AnyConnection
from headwater.postgres.statements import Statement, execute, execute_sync, fetch, fetch_sync, written_out

AnyConnectionT = TypeVar("AnyConnectionT", bound=AnyConnection)


@dataclass(frozen=True, slots=True)
class Lease:
    """What a row says of who sends it, and by the monotonic clock until when; nobody, without an instance."""

    instance: str | None
    seconds: float | None
    deadline: float


_NOBODY: Final = Lease(None, None, 0.0)


class Taker(Protocol):
    """What a transaction needs of its relay."""

    @property
    def max_bytes(self) -> int: ...

    @property
    def is_running(self) -> bool: ...

    @property
    def databases(self) -> Databases:
        """Those of connections that were asked before."""

    def serves(self, database: str) -> bool:
        """Whether it sends the rows of this one."""

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
    created_us: list[int]
    lease: Lease


class _Open(Generic[AnyConnectionT]):
    """A transaction that is open, on either kind of connection."""

    def __init__(self, connection: AnyConnectionT, taker: Taker, database: str) -> None:
        self.connection, self._database = connection, database
        self._taker, self._pending = taker, Pending()
        self._outer_depth = depth_of(connection) - 1
        self._wrote_early = False
        self._written: Written | None = None

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

    def _take(self) -> Written:
        """What is to be written at the end, or OutboxError if it is not this transaction's end."""
        if events := self._pending.take():
            self._require_same()
        # Once more, for it may have been started since.
        lease = self._taker.lease(len(events)) if self._taker.serves(self._database) else _NOBODY
        self._written = Written(events, [], lease)
        return self._written

    def _inserts(self, written: Written) -> list[Statement[int]]:
        """What goes before the last statement."""
        events, lease = written.events, written.lease
        if len(events) == 1:
            return [statements.insert_leased(events[0], lease.instance, lease.seconds)] if self._is_in_pipeline else []
        return [statements.insert_leased_many(chunk, lease.instance, lease.seconds) for chunk in chunks(events)]

    def _last(self, written: Written) -> bytes | None:
        """The insert of one event with the commit, or the commit of many; None where that is left to the block: in a
        pipeline, which takes one statement at a time, and where nothing is written."""
        if self._is_in_pipeline or not written.events:
            return None
        if len(written.events) > 1:
            return b"commit"
        lease = written.lease
        statement = statements.insert_leased_and_commit(written.events[0], lease.instance, lease.seconds)
        return written_out(self.connection, statement)

    def hand_over(self) -> None:
        """Once the transaction has committed; what was handed over is not again."""
        written, self._written = self._written, None
        if written is not None and written.events:
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
            with granted(self.connection.info.user, "--grant"):
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

    async def finish(self, block: psycopg.AsyncTransaction) -> None:
        """Write the events at the end of the transaction, and commit unless that is left to the block."""
        written = self._take()
        for insert in self._inserts(written):
            written.created_us.extend(await fetch(self.connection, insert))
        if (last := self._last(written)) is None:
            return
        cursor = self.connection.cursor(row_factory=scalar_row)
        try:
            await cursor.execute(last)
        finally:
            # Also when the caller was cancelled meanwhile: then psycopg has heard what became of it before it says so.
            if cursor.pgresult is not None:
                written.created_us.extend(await cursor.fetchall() if cursor.description else [])
                note_commit(block)
                self.hand_over()


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
            with granted(self.connection.info.user, "--grant"):
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

    def finish(self, block: psycopg.Transaction) -> None:
        """Write the events at the end of the transaction, and commit unless that is left to the block."""
        written = self._take()
        for insert in self._inserts(written):
            written.created_us.extend(fetch_sync(self.connection, insert))
        if (last := self._last(written)) is None:
            return
        cursor = self.connection.cursor(row_factory=scalar_row)
        try:
            cursor.execute(last)
        finally:
            if cursor.pgresult is not None:
                written.created_us.extend(cursor.fetchall() if cursor.description else [])
                note_commit(block)
                self.hand_over()


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
    database = await database_of(connection, taker.databases)
    refuse_other(connection, taker, database)
    async with connection.transaction() as block:
        opened = open_ones[connection] = RelayTransaction(connection, taker, database)
        try:
            yield opened
            with granted(connection.info.user, "--grant-relay"):
                await opened.finish(block)
        finally:
            opened.close()
            del open_ones[connection]
    opened.hand_over()


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
    database = database_of_sync(connection, taker.databases)
    refuse_other(connection, taker, database)
    with connection.transaction() as block:
        opened = open_ones[connection] = RelayTransactionSync(connection, taker, database)
        try:
            yield opened
            with granted(connection.info.user, "--grant-relay"):
                opened.finish(block)
        finally:
            opened.close()
            del open_ones[connection]
    opened.hand_over()


def refuse_foreign(connection: AnyConnection) -> None:
    """Raise OutboxError if a transaction is open that somebody else commits, so that we would not know when."""
    if connection.info.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        raise OutboxError(
            "the connection has a transaction open that is not the relay's, so the relay would not learn of its commit; end "
            "it first, or write the events with outbox.publish, which the relay finds a moment after the commit"
        )


def refuse_other(connection: AnyConnection, taker: Taker, database: str) -> None:
    """Raise OutboxError if the relay sends the events of another database."""
    if taker.is_running and not taker.serves(database):
        raise OutboxError(
            f"the connection leads to another database, {connection.info.dbname!r}, than the one whose events the relay "
            "sends; give that database a relay of its own, or write its events with outbox.publish"
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
