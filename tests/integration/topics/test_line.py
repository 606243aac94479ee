"""Subscribers that share a line: what they share, and that none of them holds up or harms another."""

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from unittest.mock import Mock

import pytest

from headwater import topics
from headwater.errors import ConnectionLost, LeaseLost, SettingsError, TopicError
from headwater.postgres.connect import connect
from headwater.postgres.statements import parse
from headwater.topics import Line, Message, Producer, Subscriber
from headwater.topics import line as lines
from headwater.topics.message import partition_of
from headwater.topics.reader import Found
from tests.support.servers.pooler import pooler
from tests.support.servers.tcp_proxy import Proxy
from tests.support.topics.subscribers import Reading, numbers, owners, quick, reading, until

SQL = parse("""
-- name: sleep
select pg_sleep(60) is null;

-- name: one
select 1;
""")
SLEEP, ONE = SQL["sleep"].bind(bool), SQL["one"].bind(int)
SLEEPING = "select 1 from pg_stat_activity where wait_event = 'PgSleep'"
WAITING = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and query like '%topic_settle_1%'"
LISTENING = "select 1 from pg_stat_activity where application_name = 'headwater bell' and query ilike '%listen%'"
CONNECTIONS = "select count(*) from pg_stat_activity where application_name = %s"
# Two keys that lead to the two partitions.
KEYS = [next(key for key in map(str, range(100)) if partition_of(key.encode(), 2) == one) for one in (0, 1)]


def count(connection, name):
    return connection.execute(CONNECTIONS, [name]).fetchone()[0]


def append(connection, topic, *payloads):
    """The same for both partitions."""
    topics.append_sync(connection, topic, [Message(payload, key=key) for payload in payloads for key in KEYS])


async def each_with_one(connection, stack, line, settings=None):
    """Two members on a line, each with one partition, in the order of these."""
    members = [await stack.enter_async_context(reading(line, "orders", "billing", settings)) for _ in range(2)]
    while sorted(map(str, owners(connection).values())) != sorted(str(member.member) for member in members):
        await asyncio.gather(*(member.has_nothing(0.02) for member in members))
    held = owners(connection)
    return sorted(members, key=lambda member: member.member != held[0])


async def test_members_on_one_line_get_what_they_would_get_alone(topics_url, connection, orders):
    async with Line(topics_url) as line, AsyncExitStack() as stack:
        first, second = await each_with_one(connection, stack, line)
        for n in range(5):
            append(connection, orders, n)
            got = await asyncio.gather(first.collect(1), second.collect(1))
            assert [numbers(one) for one in got] == [[n], [n]]
            assert [{message.partition for message in one} for one in got] == [{0}, {1}]
        assert [lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")] == [0, 0]


async def test_commits_of_several_members_are_one_statement(topics_url, connection, orders, monkeypatch):
    async with Line(topics_url) as line, AsyncExitStack() as stack:
        members = await each_with_one(connection, stack, line)
        append(connection, orders, 1)
        batches = [await member.next() for member in members]
        asked = Mock(wraps=line.fetch)
        monkeypatch.setattr(line, "fetch", asked)
        await asyncio.gather(*(batch.commit() for batch in batches))
        polls = [call.args[0].parameters for call in asked.call_args_list if call.args[0].name == "poll"]
        assert [poll["settled"] for poll in polls if poll["settled"]] == ["{0,1}"]
        assert [lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")] == [0, 0]


async def test_many_subscribers_share_a_few_connections_and_one_listener(topics_url, connection, monkeypatch):
    monkeypatch.setattr(lines, "_KEPT_SECONDS", 0.2)
    wide = topics.create_sync(connection, "wide", partitions=8)
    got: Counter[str] = Counter()

    async def read(group):
        async with Subscriber(line, "wide", group, quick()) as subscriber:
            async for batch in subscriber:
                got[group] += len(batch)
                await batch.commit()

    async with Line(topics_url) as line:
        members = [asyncio.create_task(read(group)) for group in ("billing",) * 8 + ("shipping",) * 4]
        for group, readers in (("billing", 8), ("shipping", 4)):
            await until(lambda group=group, readers=readers: len({*owners(connection, group).values(), None}) == readers + 1)
        await until(lambda: count(connection, "headwater bell") == 1)
        await until(lambda: count(connection, "headwater subscriber") <= 3)
        most = 0
        for number in range(20):
            topics.append_sync(connection, wide, [Message(number, key=str(key)) for key in range(10)])
            await asyncio.sleep(0.01)
            most = max(most, count(connection, "headwater subscriber"))
        await until(lambda: got == {"billing": 200, "shipping": 200})
        # Those of two groups and one that gives offsets are three; twelve members without a line would have had twelve.
        assert most < 12
        for member in members:
            member.cancel()
        await asyncio.gather(*members, return_exceptions=True)
    await until(lambda: count(connection, "headwater subscriber") + count(connection, "headwater bell") == 0)


async def test_what_was_staged_is_numbered_once_for_all_members(topics_url, connection, orders, monkeypatch):
    async with Line(topics_url) as line, AsyncExitStack() as stack:
        members = await each_with_one(connection, stack, line)
        asked = Mock(wraps=line.fetch)
        monkeypatch.setattr(line, "fetch", asked)
        held = await stack.enter_async_context(await connect(topics_url))
        async with held.transaction():
            # So that it takes longer than until both have seen what there is.
            await held.execute("select pg_advisory_xact_lock(headwater.topic_lock_key(%s, 0))", [orders.id])
            append(connection, orders, 1)
            waiting = [asyncio.create_task(member.next()) for member in members]
            await until(lambda: line._numbering)
            # That nobody else begins is told by time alone.
            await asyncio.sleep(0.1)
            numbering = [call for call in asked.call_args_list if call.args[0].name == "number_staged"]
        assert len(numbering) == 1
        assert [numbers((await one).messages) for one in waiting] == [[1], [1]]


async def test_a_refused_commit_is_refused_for_its_own_member_only(topics_url, connection, orders):
    async with Line(topics_url) as line, AsyncExitStack() as stack:
        first, second = await each_with_one(connection, stack, line)
        append(connection, orders, 1)
        batches = [await member.next() for member in (first, second)]
        connection.execute("update headwater.topic_cursor set epoch = epoch + 1 where partition = 0")
        refused, settled = await asyncio.gather(*(batch.commit() for batch in batches), return_exceptions=True)
        assert isinstance(refused, LeaseLost)
        assert settled is None
        assert [lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")] == [1, 0]


async def test_one_who_waits_for_a_transaction_holds_up_nobody_else(topics_url, connection, orders):
    async with Line(topics_url) as line, AsyncExitStack() as stack:
        first, second = await each_with_one(connection, stack, line, quick(max_messages=1))
        append(connection, orders, 1, 2)
        application = await stack.enter_async_context(await connect(topics_url))
        earlier, later = await first.next(), await first.next()
        async with application.transaction():
            await earlier.commit(application)
            waiting = asyncio.create_task(later.commit())
            # The other one goes on, also after the first has begun to wait.
            assert numbers(await second.collect(2)) == [1, 2]
            append(connection, orders, 3)
            assert numbers(await second.collect(1)) == [3]
            assert not waiting.done()
        await waiting
        assert [lag.next_offset for lag in topics.read_lag_sync(connection, "orders", "billing")] == [2, 3]


async def waits_for_the_bell(connection, member):
    """Its next batch, for which it has looked already, and will not look again by itself within the time of a test."""
    await until(lambda: connection.execute(LISTENING).fetchone())
    wake = member.subscriber._wake
    wake._longest = wake._wait = 600
    began = time.monotonic()
    waiting = asyncio.create_task(member.next())
    # The first look is without a bell; from when that is over it waits.
    await until(lambda: wake._began > began and wake._paused_until > wake._began and not wake._rung.is_set())
    await asyncio.sleep(2 * (wake._paused_until - wake._began))
    wake._wait = 600
    assert not waiting.done()
    return waiting


async def test_members_on_one_line_are_woken_by_one_bell(topics_url, connection, orders):
    async with Line(topics_url) as line, AsyncExitStack() as stack:
        members = await each_with_one(connection, stack, line)
        waiting = [await waits_for_the_bell(connection, member) for member in members]
        assert count(connection, "headwater bell") == 1
        producer = await stack.enter_async_context(Producer(topics_url, "orders"))
        await asyncio.gather(*(producer.send(Message(1, key=key)) for key in KEYS))
        assert [numbers((await one).messages) for one in waiting] == [[1], [1]]


async def test_one_who_leaves_takes_the_bell_from_nobody(topics_url, connection, orders):
    async with Line(topics_url) as line, reading(line, "orders", "billing") as stays:
        async with reading(line, "orders", "shipping"):
            await until(lambda: connection.execute(LISTENING).fetchone())
        waiting = await waits_for_the_bell(connection, stays)
        append(connection, orders, 1)
        assert numbers((await waiting).messages) == [1, 1]


@pytest.mark.parametrize("delivery", ["at-least-once", "at-most-once"])
async def test_a_commit_to_a_group_that_was_dropped_is_refused(topics_url, connection, orders, delivery):
    append(connection, orders, 1)
    async with reading(topics_url, "orders", "billing", quick(delivery=delivery)) as member:
        reader = member.reader
        while await reader.poll() is not Found.SOME:
            pass
        parts = await reader.take()
        assert sum(len(part.offsets) for part in parts) == 2
        topics.drop_group_sync(connection, "orders", "billing")
        with pytest.raises(LeaseLost, match="was dropped; nothing was committed"):
            await reader.commit(parts)


async def test_members_have_left_when_those_who_run_them_are_cancelled(topics_url, connection, orders):
    append(connection, orders, 1)
    begun = asyncio.Event()

    async def handle(batch):
        begun.set()
        await asyncio.Event().wait()

    async with Line(topics_url) as line:
        running = asyncio.create_task(Subscriber(line, "orders", "billing", quick()).run(handle))
        await begun.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert connection.execute("table headwater.topic_member").fetchall() == []


async def test_behind_a_pooler_members_on_a_line_do_without_prepared_statements(topics_url, connection, orders):
    with pooler(topics_url) as (url, _):
        async with (
            Line(url) as line,
            reading(line, "orders", "billing", quick(listens=False)) as one,
            reading(line, "orders", "shipping", quick(listens=False)) as other,
        ):
            for n in range(5):
                append(connection, orders, n)
                got = await asyncio.gather(one.collect(2), other.collect(2))
                assert [numbers(messages) for messages in got] == [[n, n], [n, n]]
            assert not line._prepares


async def test_a_connection_whose_statement_was_broken_off_is_not_used_again(topics_url, connection):
    async with Line(topics_url) as line:
        task = asyncio.create_task(line.fetch(SLEEP))
        await until(lambda: connection.execute(SLEEPING).fetchone())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (line._kept, line._used) == ([], set())
        assert await line.fetch(ONE) == [1]


async def test_a_commit_that_is_under_way_when_its_line_is_closed_comes_to_its_end(topics_url, connection, orders):
    append(connection, orders, 1)
    line = Line(topics_url)
    async with reading(line, "orders", "billing") as member, await connect(topics_url) as application:
        batch = await member.next()
        async with application.transaction():
            await application.execute("select from headwater.topic_cursor for update")
            committing = asyncio.create_task(batch.commit())
            await until(lambda: connection.execute(WAITING).fetchone())
            closing = asyncio.create_task(line.close())
            # That it is not broken off is told by time alone.
            await asyncio.sleep(0.1)
            assert not committing.done()
        await committing
        await closing
    assert [lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")] == [0, 0]


async def test_a_line_to_a_server_that_has_fallen_silent_is_closed_soon(topics_url, connection, orders):
    with Proxy(topics_url) as proxy:
        line = Line(proxy.url)
        asking = asyncio.create_task(line.fetch(SLEEP))
        await until(lambda: connection.execute(SLEEPING).fetchone())
        proxy.freeze()
        async with asyncio.timeout(5):
            await line.close()
            with pytest.raises(ConnectionLost):
                await asking


async def test_connections_that_were_not_used_for_long_are_not_used_again(topics_url, connection, orders, monkeypatch):
    monkeypatch.setattr(lines, "_KEPT_SECONDS", 0.05)
    async with Line(topics_url) as line:
        assert await line.fetch(ONE) == [1]
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'headwater subscriber'"
        )
        # Longer than connections are kept.
        await asyncio.sleep(0.1)
        assert await line.fetch(ONE) == [1]


async def test_a_topic_is_looked_after_once_for_all_who_read_it(topics_url, connection, orders):
    kept = topics.create_sync(connection, "kept", retention_bytes=1 << 20)
    topics.append_sync(connection, kept, [Message(bytes(900_000))])
    settings = quick(maintain_every=timedelta(milliseconds=10))
    async with Line(topics_url) as line, AsyncExitStack() as stack:
        for topic in ("kept", "kept", "kept", "orders"):
            member = await stack.enter_async_context(reading(line, topic, "billing", settings))
            await member.has_nothing()
        upkeeps = [task for task in asyncio.all_tasks() if task.get_name().startswith("upkeep of")]
        assert sorted(task.get_name() for task in upkeeps) == ["upkeep of kept", "upkeep of orders"]
        await until(
            lambda: connection.execute("select 1 from headwater.topic where name = 'kept' and segment > 0").fetchone()
        )
    assert all(task.done() for task in upkeeps)


async def test_a_line_that_is_cut_is_made_again_for_all(topics_url, connection, orders):
    with Proxy(topics_url) as proxy:
        async with Line(proxy.url) as line, AsyncExitStack() as stack:
            first, second = await each_with_one(connection, stack, line)
            append(connection, orders, 1)
            batches = [await first.next(), await second.next()]
            proxy.cut()
            await asyncio.gather(*(batch.commit() for batch in batches))
            append(connection, orders, 2)
            got = await asyncio.gather(first.collect(1), second.collect(1))
            assert [numbers(one) for one in got] == [[2], [2]]
            await until(lambda: sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 0)


async def test_a_line_serves_topics_groups_and_modes_at_once(topics_url, connection, orders):
    other = topics.create_sync(connection, "other", partitions=2)
    append(connection, orders, 1)
    append(connection, other, 2)
    async with (
        Line(topics_url) as line,
        reading(line, "orders", "billing") as one,
        reading(line, "other", "billing") as two,
        reading(line, "other", "sharing", quick(mode="shared")) as three,
    ):
        got = await asyncio.gather(one.collect(2), two.collect(2), three.collect(2))
        assert [numbers(messages) for messages in got] == [[1, 1], [2, 2], [2, 2]]


async def test_a_subscriber_leaves_a_line_open_for_others(topics_url, connection, orders):
    async with Line(topics_url) as line:
        for n in range(3):
            append(connection, orders, n)
            async with reading(line, "orders", "billing") as member:
                assert numbers(await member.collect(2)) == [n, n]


async def test_a_subscriber_that_was_closed_may_be_used_again(topics_url, connection, orders):
    subscriber = Subscriber(topics_url, "orders", "billing", quick())
    for n in range(2):
        append(connection, orders, n)
        async with subscriber:
            assert numbers(await Reading(subscriber).collect(2)) == [n, n]


async def test_a_loop_that_was_left_does_not_close_the_one_that_goes_on(topics_url, connection, orders):
    append(connection, orders, 0)
    subscriber = Subscriber(topics_url, "orders", "billing", quick())
    async for batch in subscriber:
        await batch.commit()
        break
    waiting = asyncio.create_task(Reading(subscriber).next())
    # The first one is collected, and ends, while the second one waits.
    await asyncio.sleep(0.2)
    append(connection, orders, 1)
    assert numbers((await waiting).messages) == [1, 1]
    await subscriber.close()
    assert connection.execute("table headwater.topic_member").fetchall() == []


async def test_a_subscriber_is_opened_once_at_a_time(topics_url, orders):
    async with Subscriber(topics_url, "orders", "billing", quick()) as subscriber:
        with pytest.raises(TopicError, match="is open already"):
            await subscriber.__aenter__()
        assert await Reading(subscriber).has_nothing()


@pytest.mark.parametrize("handler", [lambda batch: None, print])
async def test_a_handler_that_cannot_be_waited_for_puts_nothing_aside(topics_url, connection, orders, handler):
    append(connection, orders, 1)
    with pytest.raises(TopicError, match="write `async def handler"):
        await Subscriber(topics_url, "orders", "billing", quick()).run(handler)
    assert topics.list_dead_sync(connection, "orders", "billing") == []
    assert sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 2


async def test_what_is_no_handler_no_settings_and_no_url_is_refused_by_what_it_is(topics_url):
    with pytest.raises(TopicError, match="the handler is a int"):
        await Subscriber(topics_url, "orders", "billing").run(3)  # type: ignore[arg-type]  # no handler
    with pytest.raises(SettingsError, match="the settings are a dict; give a"):
        Producer(topics_url, "orders", {"lease": 3})  # type: ignore[arg-type]  # no settings
    with pytest.raises(SettingsError, match="the settings are a dict; give a"):
        Subscriber(topics_url, "orders", "billing", {"lease": 3})  # type: ignore[arg-type]  # no settings
    with pytest.raises(SettingsError, match="not by a Line"):
        async with Producer(Line(topics_url), "orders"):  # type: ignore[arg-type]  # no URL
            pass
    with pytest.raises(SettingsError, match="not by a NoneType"):
        async with Subscriber(None, "orders", "billing"):  # type: ignore[arg-type]  # no URL
            pass


async def test_a_batch_is_committed_by_a_connection_of_the_right_kind(topics_url, connection, async_connection, orders):
    append(connection, orders, 1)
    async with reading(topics_url, "orders", "billing") as member:
        batch = await member.next()
        with pytest.raises(TopicError, match=r"commit needs a psycopg\.AsyncConnection"):
            await batch.commit(connection)
        with pytest.raises(TopicError, match=r"commit_sync needs a psycopg\.Connection"):
            batch.commit_sync(async_connection)
        await batch.commit()


async def test_a_line_that_is_closed_too_early_says_so(topics_url, connection, orders):
    line = Line(topics_url)
    async with reading(line, "orders", "billing") as member:
        await member.has_nothing()
        await line.close()
        with pytest.raises(TopicError, match="close a line after the subscribers that use it"):
            await member.next()


async def test_a_line_has_its_own_url_to_listen_by(topics_url):
    with pytest.raises(SettingsError, match="give it to the Line"):
        Subscriber(Line(topics_url), "orders", "billing", listen_url=topics_url)


async def test_a_bell_that_cannot_be_heard_leaves_polling(topics_url, connection, orders, caplog):
    async with (
        Line(topics_url, "postgresql://nobody@127.0.0.1:1/nowhere") as line,
        reading(line, "orders", "billing") as member,
    ):
        append(connection, orders, 1)
        assert numbers(await member.collect(2)) == [1, 1]
        await until(lambda: "listening stopped" in caplog.text or "cannot be heard" in caplog.text)


async def test_a_server_that_is_not_there_is_said_at_once(orders):
    with pytest.raises(ConnectionLost, match="check that the server runs"):
        async with Subscriber("postgresql://nobody@127.0.0.1:1/nowhere", "orders", "billing"):
            pass
