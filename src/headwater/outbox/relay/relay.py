"""The relay inside of an application: events of committed transactions go to the broker without a query of the database.

Four tasks, each of which may fail and is started again: the publisher sends what was just committed, the retry task what was
not taken or was found in the table, the reviver finds it there, and the saver writes down what became of all of it. Beside
them the age of what waits is measured, and partitions are looked after.
"""

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, closing
from datetime import timedelta
from typing import Any, Self
from weakref import WeakKeyDictionary

import psycopg

from headwater.brokers.registry import BrokerAccess, broker_from_url, open_broker
from headwater.errors import OutboxError
from headwater.outbox.checkpoint import require_outbox
from headwater.outbox.event import EncodedEvent, Event, encode_events
from headwater.outbox.relay.confirming import with_timeout
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.database import Database
from headwater.outbox.relay.entry import LeasedEvent, microseconds
from headwater.outbox.relay.identity import Databases
from headwater.outbox.relay.leftover import Leftover
from headwater.outbox.relay.maintenance import Maintenance
from headwater.outbox.relay.ordered import RunningOrdered
from headwater.outbox.relay.running import Running
from headwater.outbox.relay.settings import LEASE_MARGIN, RelaySettings
from headwater.outbox.relay.transaction import (
    Lease,
    RelayTransaction,
    RelayTransactionSync,
    open_transaction,
    open_transaction_sync,
)
from headwater.outbox.rights import granted
from headwater.outbox.served import begin_serving
from headwater.outbox.statements import identify_database
from headwater.outbox.transaction import require_async, require_sync
from headwater.postgres.connect import complete, connect, connect_sync, describe, translated
from headwater.postgres.statements import fetch
from headwater.traces import trace_headers

_log = logging.getLogger(__name__)


class OutboxRelay:
    """Relays the events of `headwater.outbox_message` in the database of `url` to a broker.

    It is started and stopped in one event loop; transactions may use it from any thread. Before the start and after the stop
    their events are written all the same, and sent by a relay that finds them in the table; so are those of a child of
    `fork`, which may start its copy as one of its own. `instance` is a name for people: each start adds to it what makes
    it the only one.
    """

    def __init__(
        self,
        url: str,
        broker: str | BrokerAccess,
        settings: RelaySettings | None = None,
        *,
        instance: str | None = None,
    ) -> None:
        self._url = complete(url)
        self.settings = settings or RelaySettings()
        access = broker_from_url(broker) if isinstance(broker, str) else broker
        self._access = with_timeout(access, self.settings.confirm_timeout)
        self._label = instance
        self.instance = self._named()
        self.counts = Counts()
        self._running: Running | RunningOrdered | None = None
        # The process that it runs in: a child of a fork has a copy that nothing comes of.
        self._process = os.getpid()
        self._is_starting = False
        self._ended: asyncio.Event | None = None
        self._stopping: asyncio.Task[Leftover] | None = None
        self._failure: BaseException | None = None
        # Whether somebody knows of it.
        self._is_told = False
        self._open: dict[object, RelayTransaction] = {}
        self._open_sync: dict[object, RelayTransactionSync] = {}
        self.databases: Databases = WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"OutboxRelay({self.instance!r})"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Raises RelayFailed if it could not go on, unless `wait` has told so or the block ends with an error of its own."""
        await self.stop()
        if kind is None and not self._is_told:
            await self.wait()

    @property
    def is_running(self) -> bool:
        return (running := self._here) is not None and running.is_taking

    @property
    def max_bytes(self) -> int:
        return self.settings.max_bytes

    @property
    def fills(self) -> dict[str, int]:
        """How many events wait in each queue."""
        running = self._here
        return {"intake": 0, "retry": 0, "save": 0} if running is None else running.fills

    def serves(self, database: str) -> bool:
        """Whether it runs, and for this database, as `identify_database` names it."""
        return (running := self._here) is not None and running.database.identity == database

    async def start(self) -> None:
        """Begin to relay; the broker need not be there yet.

        Raises OutboxError if a pipeline delivers the same table, and BrokerError if the broker does not let us in.
        """
        if self._here is not None or (self._is_starting and self._process == os.getpid()):
            raise OutboxError("the relay is running already; stop it first")
        self._running, self._process, self._is_starting = None, os.getpid(), True
        try:
            await self._start()
        finally:
            self._is_starting = False

    async def _start(self) -> None:
        brokers = [open_broker(self._access) for _ in range(2)]
        self.instance = self._named()
        kind = RunningOrdered if self.settings.order_by_key else Running
        running = kind(self._url, brokers, self.instance, self.settings, self.counts)
        try:
            with granted(describe(self._url).split("@")[0], "--grant-relay"), translated(self._url):
                await asyncio.to_thread(self._check_schema)
                await running.meet_broker()
                await self._begin_serving(running.database)
        except BaseException:
            await running.close()
            raise
        self._failure, self._is_told, self._stopping, self._ended = None, False, None, asyncio.Event()
        self._running = running
        running.start()
        running.supervisor.start("maintenance", Maintenance(self._url, self.settings).run)
        self._guard = asyncio.create_task(self._watch(running), name="outbox relay")

    async def _begin_serving(self, database: Database) -> None:
        connection = await connect(self._url)
        async with connection:
            (database.identity,) = await fetch(connection, identify_database())
            serving = await begin_serving(connection, self.settings.lane_count, skip_existing=self.settings.skip_existing)
        self.counts.is_database_up = True
        if serving.skipped:
            _log.info("%d events that were there before the first relay are not delivered", serving.skipped)

    async def stop(self, deadline: timedelta | None = None) -> Leftover:
        """Take nothing more, and finish what there is within a time; says what was left over."""
        running = self._here
        if running is None:
            return Leftover()
        if self._stopping is None:
            seconds = (deadline or self.settings.stop_within).total_seconds()
            self._stopping = asyncio.create_task(running.stop(seconds), name="outbox relay stops")
        leftover = await asyncio.shield(self._stopping)
        await self._guard
        return leftover

    async def wait(self) -> None:
        """Return when the relay has stopped; raise RelayFailed if it did so because it could not go on."""
        if self._ended is not None:
            await self._ended.wait()
        if self._failure is not None:
            self._is_told = True
            raise self._failure

    def transaction(self, connection: psycopg.AsyncConnection[Any]) -> AbstractAsyncContextManager[RelayTransaction]:
        """A transaction of the application; what is published in it is sent once it has committed.

        Inside of another one on the same connection it is a savepoint. A connection with a transaction open that is not the
        relay's is refused with OutboxError, and so is one to another database than the relay's.
        """
        require_async(connection, "transaction")
        return open_transaction(connection, self, self._open)

    def transaction_sync(self, connection: psycopg.Connection[Any]) -> AbstractContextManager[RelayTransactionSync]:
        """`transaction` for a connection that is not async."""
        require_sync(connection, "transaction")
        return open_transaction_sync(connection, self, self._open_sync)

    def prepare(self, events: Sequence[Event | EncodedEvent]) -> list[LeasedEvent]:
        """Events checked, encoded and leased, for those who write the rows by themselves; raises OutboxError.

        It does no I/O, and any thread may call it. The lease runs from now on: write them soon before the commit, and to the
        relay's own database.
        """
        trace, lease = trace_headers(), self.lease(len(events))
        made = iter(encode_events([one for one in events if isinstance(one, Event)], trace, self.settings.max_bytes))
        encoded = [one if isinstance(one, EncodedEvent) else next(made) for one in events]
        return [LeasedEvent(event, lease.instance, lease.seconds, lease.deadline) for event in encoded]

    def hand_over(self, events: Sequence[LeasedEvent]) -> None:
        """Events whose transaction has committed; never waits and never raises, and any thread may call it."""
        is_lacking = False
        for one in events:
            if one.locked_by is None or one.created_at is None:
                is_lacking = True
            else:
                lease = Lease(one.locked_by, one.lease_seconds, one.deadline)
                self.take([one.event], [microseconds(one.created_at)], lease)
        if is_lacking:
            self.wake()

    def wake(self) -> None:
        """Have the table searched at once: something was committed there that nobody holds."""
        if (running := self._here) is not None:
            running.wake()

    def lease(self, events: int) -> Lease:
        """What so many rows that are written now say of who sends them: this instance, if it has room for them."""
        running, lease = self._here, self.settings.lease
        if running is None or not running.has_room(events):
            return Lease(None, None, 0.0)
        return Lease(self.instance, lease.total_seconds(), time.monotonic() + (lease - LEASE_MARGIN).total_seconds())

    def take(self, events: Sequence[EncodedEvent], created_us: Sequence[int], lease: Lease) -> None:
        """Events that are committed, with the lease that their rows have."""
        running = self._here
        if running is None:
            return
        if lease.instance is None:
            running.wake()
        else:
            running.take(events, created_us, lease.deadline)

    @property
    def _here(self) -> Running | RunningOrdered | None:
        """What runs, if it does so in this process."""
        return self._running if self._process == os.getpid() else None

    def _named(self) -> str:
        """Of one start in one process: two that shared a name would share their leases, also such as were forked."""
        return f"{self._label or f'{socket.gethostname()}-{os.getpid()}'}-{secrets.token_hex(4)}"

    def _check_schema(self) -> None:
        with closing(connect_sync(self._url)) as connection:
            require_outbox(connection)

    async def _watch(self, running: Running | RunningOrdered) -> None:
        """Clean up when the relay ends, by itself or because it was told to."""
        try:
            await running.supervisor.wait()
        except Exception as exc:  # noqa: BLE001 - it is raised by `wait`
            self._failure = exc
            if self._stopping is None:
                self._stopping = asyncio.create_task(running.stop(self.settings.stop_within.total_seconds()))
            await self._stopping
        self._running = None
        assert self._ended is not None
        self._ended.set()
