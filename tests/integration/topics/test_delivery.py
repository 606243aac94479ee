"""What may come twice, what may be missed, and what has its effect exactly once."""

import asyncio
import signal
import subprocess
import sys
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest

from headwater import topics
from headwater.embedded import EmbeddedPostgres
from headwater.errors import LeaseLost, TopicError
from headwater.postgres.connect import connect, connect_sync
from headwater.topics import Message, Subscriber
from headwater.topics.owned import Owned
from tests.support.servers.embedded import postgres_settings
from tests.support.servers.tcp_proxy import Proxy
from tests.support.topics.subscribers import numbers, owners, quick, reading, running, until

# A member that says what it was given, batch by batch, and commits all but the last; then it waits to be killed.
MEMBER = """
import asyncio, sys
from datetime import timedelta
from headwater.topics import Subscriber, SubscriberSettings

async def main(url, mode, delivery):
    settings = SubscriberSettings(mode=mode, delivery=delivery, max_messages=10, lease=timedelta(seconds=1))
    async with Subscriber(url, "orders", "billing", settings) as subscriber:
        given = 0
        async for batch in subscriber:
            given += 1
            print(*(message.json() for message in batch.messages), flush=True)
            if given == 3:
                await asyncio.Event().wait()
            await batch.commit()

asyncio.run(main(*sys.argv[1:]))
"""

MODES = pytest.mark.parametrize("mode", ["partition", "shared"])


def append(connection, topic, count):
    topics.append_sync(connection, topic, [Message(n, key=str(n)) for n in range(count)])


def killed_in_its_third_batch(url, mode, delivery):
    """What a member was given before it was killed with SIGKILL."""
    with subprocess.Popen([sys.executable, "-c", MEMBER, url, mode, delivery], stdout=subprocess.PIPE, text=True) as member:
        assert member.stdout is not None
        given = [[int(number) for number in member.stdout.readline().split()] for _ in range(3)]
        member.send_signal(signal.SIGKILL)
    return given


@MODES
async def test_at_least_once_gives_out_again_what_a_killed_member_had(topics_url, connection, orders, mode):
    append(connection, orders, 100)
    given = await asyncio.to_thread(killed_in_its_third_batch, topics_url, mode, "at-least-once")
    settings = quick(mode=mode, lease=timedelta(seconds=1))
    async with reading(topics_url, "orders", "billing", settings) as heir:
        received = numbers(await heir.collect(100 - len(given[0] + given[1])))
    assert sorted(given[0] + given[1] + received) == list(range(100))
    assert set(given[2]) <= set(received)


@MODES
async def test_at_most_once_never_repeats_what_a_killed_member_had(topics_url, connection, orders, mode):
    append(connection, orders, 100)
    batches = await asyncio.to_thread(killed_in_its_third_batch, topics_url, mode, "at-most-once")
    given = [number for batch in batches for number in batch]
    settings = quick(mode=mode, delivery="at-most-once", lease=timedelta(seconds=1))
    async with reading(topics_url, "orders", "billing", settings) as heir:
        # In shared mode, what was claimed ahead and not given out comes too, when its member is known to be gone.
        received = numbers(await heir.collect(100 - len(given)))
        # A claim that its member had not settled would be free now, and given out before what is appended next.
        await until(lambda: connection.execute("select count(*) from headwater.topic_member").fetchone() == (1,))
        topics.append_sync(connection, orders, [Message(100, key="100")])
        received += numbers(await heir.collect(1))
    assert sorted(given + received) == list(range(101))


async def test_at_most_once_never_repeats_what_it_gave_out_before_the_server_was_killed():
    # What was only to be written to the WAL, and was not, is gone with the server.
    with EmbeddedPostgres(postgres_settings(18, wal_writer_delay="10s")) as server:
        with closing(connect_sync(server.url)) as connection:
            topics.prepare_topics(connection)
            append(connection, topics.create_sync(connection, "orders"), 20)
        settings = quick(delivery="at-most-once", max_messages=10, lease=timedelta(seconds=1))
        async with reading(server.url, "orders", "billing", settings) as member:
            given = numbers((await member.next()).messages)
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
        async with reading(server.url, "orders", "billing", settings) as heir:
            received = numbers(await heir.collect(10))
    assert not set(given) & set(received)
    assert sorted(given + received) == list(range(20))


async def test_at_most_once_gives_out_nothing_that_is_somebody_elses(topics_url, connection, orders):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing", quick(delivery="at-most-once", max_messages=2)) as member:
        first = await member.next()
        assert isinstance(member.reader, Owned)
        holdings = member.reader._holdings.values()
        # The next batch is in its memory.
        await until(lambda: any(len(holding.buffer) for holding in holdings))
        connection.execute(
            "update headwater.topic_cursor set epoch = epoch + 1, next_offset = 1000, member = gen_random_uuid()"
        )
        assert await member.has_nothing()
        assert len(first) == 2


async def test_effects_in_the_transaction_of_the_commit_are_there_once(topics_url, connection, orders):
    connection.execute("create table effect (n integer primary key)")
    append(connection, orders, 20)
    async with reading(topics_url, "orders", "billing", quick(max_messages=5)) as member, await connect(topics_url) as own:
        for _ in range(4):
            batch = await member.next()
            async with own.transaction():
                for n in numbers(batch.messages):
                    await own.execute("insert into effect values (%s)", [n])
                await batch.commit(own)
    assert connection.execute("select count(*) from effect").fetchone() == (20,)
    assert [lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")] == [0, 0]


async def test_a_transaction_that_is_rolled_back_commits_nothing_and_its_batch_comes_again(topics_url, connection, orders):
    connection.execute("create table effect (n integer primary key)")
    append(connection, orders, 20)
    rolled_back = 0
    async with reading(topics_url, "orders", "billing", quick(max_messages=5)) as member, await connect(topics_url) as own:
        while connection.execute("select count(*) from effect").fetchone() != (20,):
            batch = await member.next()
            try:
                async with own.transaction():
                    for n in numbers(batch.messages):
                        await own.execute("insert into effect values (%s)", [n])
                    await batch.commit(own)
                    if rolled_back == 0:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                rolled_back += 1
        assert rolled_back == 1
    assert [lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")] == [0, 0]


async def test_no_later_commit_passes_over_a_batch_whose_transaction_is_rolled_back(topics_url, connection, orders):
    append(connection, orders, 20)
    async with reading(topics_url, "orders", "billing", quick(max_messages=5)) as member, await connect(topics_url) as own:
        lost = await member.next()
        with pytest.raises(ZeroDivisionError):
            async with own.transaction():
                await lost.commit(own)
                raise ZeroDivisionError
        assert sorted(numbers(await member.collect(20))) == list(range(20))


async def test_batches_of_one_transaction_come_one_after_the_other(topics_url, connection, orders):
    append(connection, orders, 20)
    async with reading(topics_url, "orders", "billing", quick(max_messages=5)) as member, await connect(topics_url) as own:
        received: list[int] = []
        async with own.transaction():
            for _ in range(4):
                batch = await member.next()
                received += numbers(batch.messages)
                await batch.commit(own)
    assert sorted(received) == list(range(20))
    assert [lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")] == [0, 0]


async def test_a_partition_changes_hands_when_the_transaction_of_its_commit_has_ended(topics_url, connection, orders):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing") as first, await connect(topics_url) as own:
        batch = await first.next()
        async with reading(topics_url, "orders", "billing") as second:
            async with own.transaction():
                await batch.commit(own)
                assert await first.has_nothing()
                assert set(owners(connection).values()) == {first.member}
            assert await first.has_nothing()
            assert set(owners(connection).values()) == {first.member, second.member}
        # It was no attempt either that what it had was not known to be committed.
        await first.subscriber.close()
    assert connection.execute("select sum(attempts) from headwater.topic_cursor").fetchone() == (0,)


@MODES
async def test_a_handler_whose_transaction_is_rolled_back_gets_the_batch_again(topics_url, connection, orders, mode):
    connection.execute("create table effect (n integer primary key)")
    append(connection, orders, 10)
    calls: list[list[int]] = []
    own = await connect(topics_url)

    async def handle(batch):
        calls.append(numbers(batch.messages))
        async with own.transaction():
            for n in numbers(batch.messages):
                await own.execute("insert into effect values (%s)", [n])
            await batch.commit(own)
            if len(calls) == 1:
                raise ZeroDivisionError

    async with own, Subscriber(topics_url, "orders", "billing", quick(mode=mode, max_messages=5)) as subscriber:
        async with running(subscriber, handle):
            await until(lambda: connection.execute("select count(*) from effect").fetchone() == (10,))
            await until(lambda: sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 0)
    assert calls.count(calls[0]) == 2
    assert sorted(n for call in calls[1:] for n in call) == list(range(10))


@MODES
async def test_a_batch_that_fails_while_the_database_is_away_comes_again(topics_url, connection, orders, mode, caplog):
    append(connection, orders, 6)
    calls: list[list[int]] = []
    done: list[int] = []
    with Proxy(topics_url) as proxy:

        async def handle(batch):
            calls.append(numbers(batch.messages))
            if len(calls) == 1:
                proxy.refuse = True
                proxy.cut()
                raise OSError("the database went away")
            done.extend(numbers(batch.messages))

        async with Subscriber(proxy.url, "orders", "billing", quick(mode=mode, max_messages=2)) as subscriber:
            async with running(subscriber, handle):
                await until(lambda: "cannot be read" in caplog.text)
                proxy.refuse = False
                await until(lambda: sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 0)
    assert sorted(done) == list(range(6))


async def test_an_effect_of_one_who_was_overtaken_is_rolled_back(topics_url, connection, orders):
    connection.execute("create table effect (n integer)")
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing") as stalled, await connect(topics_url) as own:
        batch = await stalled.next()
        topics.seek_sync(connection, "orders", "billing", "earliest")
        with pytest.raises(LeaseLost):
            async with own.transaction():
                await own.execute("insert into effect values (1)")
                await batch.commit(own)
        assert connection.execute("select count(*) from effect").fetchone() == (0,)
        # Also for one who goes on as if nothing had happened.
        await own.execute("begin")
        await own.execute("insert into effect values (1)")
        with pytest.raises(LeaseLost):
            await batch.commit(own)
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            await own.execute("insert into effect values (2)")
        await own.execute("commit")
        assert connection.execute("select count(*) from effect").fetchone() == (0,)


async def test_a_batch_is_committed_on_a_connection_that_is_not_async(topics_url, connection, orders, application):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing") as member:
        batch = await member.next()
        batch.commit_sync(application)
        assert sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 10
        application.commit()
        assert sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 0


async def test_a_connection_without_a_transaction_is_refused(topics_url, connection, orders):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing") as member:
        batch = await member.next()
        async with await connect(topics_url) as own:
            with pytest.raises(TopicError, match="open one with `connection"):
                await batch.commit(own)
        with connect_sync(topics_url) as own, pytest.raises(TopicError, match="open one with"):
            batch.commit_sync(own)
        assert sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 10


async def test_in_shared_mode_effects_are_there_once_too(topics_url, connection, orders):
    connection.execute("create table effect (n integer primary key)")
    append(connection, orders, 20)
    async with reading(topics_url, "orders", "billing", quick(mode="shared", max_messages=5)) as member:
        async with await connect(topics_url) as own:
            while connection.execute("select count(*) from effect").fetchone() != (20,):
                batch = await member.next()
                async with own.transaction():
                    for n in numbers(batch.messages):
                        await own.execute("insert into effect values (%s)", [n])
                    await batch.commit(own)
    assert sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 0


async def test_commits_of_batches_may_come_in_any_order(topics_url, connection, orders):
    append(connection, orders, 20)
    async with reading(topics_url, "orders", "billing", quick(max_messages=5)) as member:
        batches = [await member.next() for _ in range(4)]
        for batch in reversed(batches):
            await batch.commit()
    assert sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 0
