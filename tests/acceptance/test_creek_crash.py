"""A Creek producer under load whose driver is killed, and whose servers are: nothing lost, in order, nothing twice."""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread

import psycopg
import pytest

from headwater import creek
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import stream_info
from headwater.embedded import EmbeddedNats, EmbeddedPostgres
from headwater.errors import HeadwaterError
from headwater.model import Op
from headwater.postgres.connect import Connection, connect_sync
from tests.acceptance.producing import Producer, free_port, producing
from tests.servers import postgres_settings, start_nats
from tests.spark import java_home

LONG = os.environ.get("HEADWATER_LONG") == "1"
VICTIMS = ("driver", "nats", "source")
ROUNDS = 20 if LONG else len(VICTIMS)

TABLES = """
create table account (id int primary key, version bigint not null);
create table entry (id bigint primary key, account int, note text);
create table fence (id int primary key);
insert into account select g, 0 from generate_series(1, 50) g;
"""


class Load:
    """Small and larger transactions on two tables until told to stop; one that a server's death cut off is left at that."""

    def __init__(self, url: str) -> None:
        self._url, self._random, self._stop = url, random.Random(11), Event()
        self._thread = Thread(target=self._run)
        self._entry = 0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            try:
                with closing(connect_sync(self._url)) as connection:
                    while not self._stop.wait(0.03):
                        self._transaction(connection)
            except (psycopg.Error, HeadwaterError):
                continue

    def _transaction(self, connection: Connection) -> None:
        with connection.transaction():
            for _ in range(self._random.choice([1, 3, 20])):
                account = self._random.randint(1, 50)
                connection.execute("update account set version = version + 1 where id = %s", [account])
                self._entry += 1
                connection.execute("insert into entry values (%s, %s, repeat('x', 150))", [self._entry, account])


def _stored(nats: EmbeddedNats) -> int:
    """How many messages the stream holds; 0 while the server does not answer."""
    try:
        with closing(Link(NatsAccess(url=nats.url))) as link:
            info = stream_info(link, "CREEK_wal")
    except HeadwaterError:
        return 0
    return 0 if info is None else info.messages


def _wait_for_more(nats: EmbeddedNats, producer: Producer, more: int) -> None:
    wanted = _stored(nats) + more
    # Long enough for a whole producer to start again on a busy machine.
    producer.wait_until(lambda: _stored(nats) >= wanted, seconds=200)


def _kill(victim: str, producer: Producer, nats: EmbeddedNats, source: EmbeddedPostgres) -> None:
    match victim:
        case "driver":
            producer.kill()
        case "nats":
            nats.kill()
            nats.start()
        case "source":
            source.kill()
            source.start()


async def _messages(nats: EmbeddedNats, table: str, is_last: Callable[[creek.WalMessage], bool]) -> list[creek.WalMessage]:
    async with creek.connect(nats.url) as client, client.stream_wal("postgres", table) as stream, asyncio.timeout(120):
        found = []
        async for message in stream:
            found.append(message)
            if is_last(message):
                return found
        return found


@pytest.mark.timeout(3000 if LONG else 900)
def test_a_producer_that_is_killed_with_its_servers_loses_nothing_repeats_nothing_and_keeps_the_order(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    servers = start_nats()
    nats = next(servers)
    try:
        with EmbeddedPostgres(postgres_settings(18, fsync="on")) as source:
            with closing(connect_sync(source.url)) as connection:
                connection.execute(TABLES.encode())
            environment = {
                "PG_URI": source.url,
                "PG_PUBLICATION_NAME": "crash",
                "PG_PUBLICATION_SLOT": "crash",
                "PG_TABLES": "public.account public.entry public.fence",
                "NATS_URI": nats.url,
                "NATS_TIMEOUT": "10s",
                "PROMETHEUS_PORT": str(free_port()),
                "JAVA_HOME": str(java_home()),
            }
            with producing(tmp_path, environment) as producer:
                producer.wait_until(lambda: _has_slot(source.url))
                killed = Counter[str]()
                with Load(source.url):
                    for number in range(ROUNDS):
                        _wait_for_more(nats, producer, 500)
                        victim = VICTIMS[number % len(VICTIMS)]
                        _kill(victim, producer, nats, source)
                        killed[victim] += 1
                    _wait_for_more(nats, producer, 500)
                with closing(connect_sync(source.url)) as connection:
                    # The last entry and the last version of an account of its own end both streams.
                    connection.execute("update account set id = -id where id = 1")
                    connection.execute("insert into entry values (1000000000, 0, 'last')")
                    entries = [row[0] for row in connection.execute("select id from entry order by id").fetchall()]
                    versions = dict(connection.execute("select abs(id), version from account").fetchall())
                inserted = asyncio.run(_messages(nats, "public.entry", lambda m: (m.after or {}).get("id") == 10**9))
                updated = asyncio.run(_messages(nats, "public.account", lambda m: m.op == Op.UPDATE_KEY))
                assert producer.stop() == 0, producer.log[-3000:]
    finally:
        next(servers, None)
    arrived = Counter(message.after["id"] for message in inserted if message.after)
    lost = len(set(entries) - set(arrived))
    twice = sum(count - 1 for count in arrived.values())
    ids = Counter(message.id for message in (*inserted, *updated))
    twice += sum(count - 1 for count in ids.values())
    out_of_order = sum(
        (first.source.lsn, first.ordinal) >= (second.source.lsn, second.ordinal)
        for messages in (inserted, updated)
        for first, second in pairwise(messages)
    )
    history: dict[object, list[object]] = {}
    for message in updated:
        if message.op == Op.UPDATE and message.after:
            history.setdefault(message.after["id"], []).append(message.after["version"])
    gaps = sum(history.get(id, []) != [*range(1, last + 1)] for id, last in versions.items())
    counts = ", ".join(f"{victim} {count} times" for victim, count in killed.items())
    record_property(
        "counts",
        f"creek producer crash: killed {counts}; {len(inserted) + len(updated)} messages, lost {lost}, twice {twice}, "
        f"out of order {out_of_order}, accounts with gaps {gaps}",
    )
    assert (lost, set(arrived) - set(entries), twice, out_of_order, gaps) == (0, set(), 0, 0, 0)


def _has_slot(url: str) -> bool:
    with closing(connect_sync(url)) as connection:
        return bool(connection.execute("select 1 from pg_replication_slots where slot_name = 'crash' and active").fetchall())
