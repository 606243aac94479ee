"""A database under load whose changes a Creek producer publishes, and a comparison of the stream with the database."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from threading import Event, Thread

import psycopg

from headwater import creek
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import stream_info
from headwater.creek.names import Kind, Names
from headwater.embedded import EmbeddedNats, EmbeddedPostgres, NatsSettings
from headwater.embedded.process import free_port
from headwater.errors import BrokerUnavailable, HeadwaterError
from headwater.model import Op
from headwater.postgres.connect import Connection, connect_sync
from tests.support.brokers.nats_streams import Stored, stored, whole
from tests.support.servers.embedded import postgres_settings, shared_root
from tests.support.stories.creek_producer_process import Producer
from tests.support.waiting import eventually

ACCOUNTS = 50
_LAST_ENTRY = 10**9
_NAMES = Names("CREEK", "postgres")
_TABLES = """
create table account (id int primary key, version bigint not null);
create table entry (id bigint primary key, account int, note text);
insert into account select g, 0 from generate_series(1, 50) g;
"""


class Load:
    """Small and larger transactions on two tables until the end of the block; a server's death ends one of them early."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self._url, self._random, self._stop = url, chance, Event()
        self._thread = Thread(target=self._run)
        self._entry = 0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        # The waits set the pace of the load; nothing depends on them.
        while not self._stop.wait(0.05):
            try:
                with closing(connect_sync(self._url)) as connection:
                    while not self._stop.wait(0.1):
                        self._transaction(connection)
            except (psycopg.Error, HeadwaterError):
                continue

    def _transaction(self, connection: Connection) -> None:
        with connection.transaction():
            for _ in range(self._random.choice([1, 3, 20])):
                account = self._random.randint(1, ACCOUNTS)
                connection.execute("update account set version = version + 1 where id = %s", [account])
                self._entry += 1
                connection.execute("insert into entry values (%s, %s, repeat('x', 150))", [self._entry, account])


@dataclass(frozen=True)
class Stage:
    """The servers of a story, and what a producer between them is told."""

    source: EmbeddedPostgres
    nats: EmbeddedNats
    environment: Mapping[str, str]

    def stored(self) -> int:
        """How many messages the stream holds; 0 while the server does not answer."""
        try:
            with closing(Link(NatsAccess(url=self.nats.url))) as link:
                info = stream_info(link, _NAMES.stream(Kind.WAL))
        except HeadwaterError:
            return 0
        return 0 if info is None else info.messages

    def wait_for_slot(self, producer: Producer) -> None:
        """Wait until the slot is there: changes before it are nobody's."""
        query = "select 1 from pg_replication_slots where slot_name = 'crash' and confirmed_flush_lsn is not null"
        with closing(connect_sync(self.source.url)) as connection:
            producer.wait_until(lambda: connection.execute(query).fetchall())

    def wait_for_more(self, producer: Producer, more: int) -> None:
        wanted = self.stored() + more
        # Long enough for a producer that starts again on a busy machine.
        producer.wait_until(lambda: self.stored() >= wanted, seconds=200)

    def kill(self, victim: str) -> None:
        """Kill a server, and start it again."""
        server = self.nats if victim == "nats" else self.source
        server.kill()
        server.start()

    def ask_for_snapshot(self) -> str:
        """The topic of a snapshot of the accounts whose header is stored; raises SnapshotFailed.

        A producer that starts, or has lost NATS, may publish before it hears requests. NATS tells at once that nobody does.
        """

        async def ask() -> str | None:
            async with creek.connect(self.nats.url) as client, asyncio.timeout(60):
                try:
                    return (await client.snapshot("postgres", "public.account")).header.topic
                except BrokerUnavailable:
                    return None

        return eventually(lambda: asyncio.run(ask()), seconds=60)

    def read_snapshot(self, topic: str) -> set[object]:
        """The ids of a snapshot that has its end."""

        async def read() -> set[object]:
            async with creek.connect(self.nats.url) as client, asyncio.timeout(60):
                return {row["id"] async for row in await client.get_snapshot(topic)}

        return asyncio.run(read())

    def messages_of(self, topic: str) -> list[Stored]:
        return whole(stored(NatsAccess(url=self.nats.url), _NAMES.stream(Kind.SNAPSHOT), topic))


@contextmanager
def staged() -> Iterator[Stage]:
    nats = EmbeddedNats(NatsSettings(root=shared_root()))
    with nats, EmbeddedPostgres(postgres_settings(18, fsync="on")) as source:
        with closing(connect_sync(source.url)) as connection:
            connection.execute(_TABLES.encode())
        environment = {
            "PG_URI": source.url,
            "PG_PUBLICATION_NAME": "crash",
            "PG_PUBLICATION_SLOT": "crash",
            "PG_TABLES": "public.account public.entry",
            "NATS_URI": nats.url,
            "NATS_TIMEOUT": "10s",
            "PROMETHEUS_PORT": str(free_port()),
        }
        yield Stage(source, nats, environment)


@dataclass(frozen=True)
class Outcome:
    """The stream compared with the source: `gaps` counts accounts that lack a version, or have one twice or too early."""

    committed: int
    lost: int
    unknown: int
    repeated: int
    out_of_order: int
    gaps: int

    def __str__(self) -> str:
        return (
            f"{self.committed} changes, lost {self.lost}, unknown {self.unknown}, repeated {self.repeated}, "
            f"out of order {self.out_of_order}, accounts with gaps {self.gaps}"
        )

    @property
    def is_exact(self) -> bool:
        return (self.lost, self.unknown, self.repeated, self.out_of_order, self.gaps) == (0, 0, 0, 0, 0)


def compare(stage: Stage) -> Outcome:
    """Compare both, once nothing is written any more, as soon as the stream has the last change."""
    with closing(connect_sync(stage.source.url)) as connection:
        # One more change ends the stream of each table.
        connection.execute("update account set id = -id where id = 1")
        connection.execute("insert into entry values (%s, 0, 'last')", [_LAST_ENTRY])
        entries = {row[0] for row in connection.execute("select id from entry").fetchall()}
        versions = dict(connection.execute("select abs(id), version from account").fetchall())
    url = stage.nats.url
    inserted = asyncio.run(_messages(url, "public.entry", lambda one: (one.after or {}).get("id") == _LAST_ENTRY))
    updated = asyncio.run(_messages(url, "public.account", lambda one: one.op == Op.UPDATE_KEY))
    arrived = Counter(message.after["id"] for message in inserted if message.after)
    ids = Counter(message.id for message in (*inserted, *updated))
    history: dict[object, list[object]] = {}
    for message in updated:
        if message.op == Op.UPDATE and message.after:
            history.setdefault(message.after["id"], []).append(message.after["version"])
    return Outcome(
        committed=len(entries) + sum(versions.values()) + 1,
        lost=len(entries - set(arrived)),
        unknown=len(set(arrived) - entries),
        repeated=sum(count - 1 for count in (*arrived.values(), *ids.values())),
        out_of_order=sum(
            (first.source.lsn, first.ordinal) >= (second.source.lsn, second.ordinal)
            for messages in (inserted, updated)
            for first, second in pairwise(messages)
        ),
        gaps=sum(history.get(id, []) != [*range(1, last + 1)] for id, last in versions.items()),
    )


async def _messages(url: str, table: str, is_last: Callable[[creek.WalMessage], bool]) -> list[creek.WalMessage]:
    async with creek.connect(url) as client, client.stream_wal("postgres", table) as stream, asyncio.timeout(120):
        found = []
        async for message in stream:
            found.append(message)
            if is_last(message):
                break
        return found
