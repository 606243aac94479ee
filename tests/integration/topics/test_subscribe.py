"""Reading a topic as members of a group, each partition by one of them."""

import asyncio
import time
from contextlib import AsyncExitStack, closing
from datetime import timedelta
from itertools import pairwise
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest

from headwater import topics
from headwater.errors import LeaseLost, TopicError
from headwater.postgres.connect import connect, connect_sync
from headwater.postgres.statements import execute_sync
from headwater.topics import Message, Producer, Subscriber, group_statements
from headwater.topics.owned import Owned
from tests.support.servers.tcp_proxy import Proxy
from tests.support.topics.subscribers import Reading, number_of, numbers, owners, quick, reading, until
from tests.support.topics.topic_log import payload_of, place_of
from tests.support.waiting import writes_nothing

LISTENERS = "select 1 from pg_stat_activity where application_name = 'headwater bell' and query ilike '%listen%'"


def append(connection, topic, count, *, begin=0):
    """Numbers, spread over the partitions by their keys."""
    topics.append_sync(connection, topic, [Message(n, key=str(n)) for n in range(begin, begin + count)])


async def spread(*members):
    """Have each take part in what is decided, as it does when it asks for batches."""
    await asyncio.gather(*(member.has_nothing() for member in members))


def counts(connection, *members):
    held = list(owners(connection).values())
    return sorted(held.count(member.member) for member in members)


async def come_to(wanted, connection, *members):
    """Whether members share the partitions like that, soon."""
    for _ in range(20):
        await spread(*members)
        if counts(connection, *members) == wanted:
            return True
    return False


async def test_a_subscriber_gets_what_was_appended_in_order(topics_url, connection, orders):
    messages = [Message({"n": n}, key=f"k{n % 7}", headers={"n": str(n)}) for n in range(100)]
    topics.append_sync(connection, orders, messages)

    async for batch in Subscriber(topics_url, "orders", "billing", quick()):
        await batch.commit()
        break

    assert len(batch) == 100
    places = [(message.partition, message.offset) for message in batch.messages]
    assert places == sorted(places)
    values: list[Any] = [message.json() for message in batch.messages]
    assert sorted(value["n"] for value in values) == list(range(100))
    assert [message.headers for message in batch.messages] == [{"n": str(value["n"])} for value in values]
    assert [lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")] == [0, 0]


async def test_while_there_is_more_a_commit_brings_the_next_messages_with_it(topics_url, connection, monkeypatch):
    single = topics.create_sync(connection, "single", partitions=1)
    for n in range(5):
        append(connection, single, 1, begin=n)
    async with reading(topics_url, "single", "billing", quick(max_messages=1)) as member:
        batch = await member.next()
        line = member.subscriber._line
        asked = Mock(wraps=line.fetch)
        monkeypatch.setattr(line, "fetch", asked)
        for n in range(3):
            assert numbers(batch.messages) == [n]
            await batch.commit()
            assert [lag.next_offset for lag in topics.read_lag_sync(connection, "single", "billing")] == [n + 1]
            batch = await member.next()
        assert asked.call_count == 3


async def test_what_came_with_a_commit_is_forgotten_when_partitions_change_hands(topics_url, connection):
    single = topics.create_sync(connection, "single", partitions=1)
    for n in range(10):
        append(connection, single, 1, begin=n)
    async with reading(topics_url, "single", "billing", quick(max_messages=1)) as member:
        batch = await member.next()
        await batch.commit()
        reader = member.reader
        assert isinstance(reader, Owned) and reader._carried
        topics.seek_sync(connection, "single", "billing", 0)
        await reader._refresh()
        # From where the group stands now, and not as if what is before had been removed.
        assert numbers(await member.collect(10)) == list(range(10))


async def test_a_batch_has_no_more_messages_than_wanted_and_none_is_missing(topics_url, connection, orders):
    append(connection, orders, 100)
    async with reading(topics_url, "orders", "billing", quick(max_messages=7)) as member:
        batches = [await member.next() for _ in range(15)]
        assert all(len(batch) <= 7 for batch in batches)
        assert sorted(numbers(message for batch in batches for message in batch.messages)) == list(range(100))
        await batches[-1].commit()


async def test_large_messages_come_a_few_at_a_time(topics_url, connection):
    topic = topics.create_sync(connection, "large", max_bytes=1 << 20)
    for n in range(6):
        topics.append_sync(connection, topic, [Message(bytes([n]) * 300_000)])
    async with reading(topics_url, "large", "billing", quick(max_bytes=500_000)) as member:
        sizes: list[int] = []
        got: list[int] = []
        while len(got) < 6:
            batch = await member.next()
            got += [payload_of(message)[0] for message in batch.messages]
            sizes.append(len(batch))
    assert got == list(range(6))
    assert sizes == [2, 2, 2]


async def test_what_is_appended_later_comes_without_waiting_for_a_poll(topics_url, connection, orders):
    settings = quick(poll_least=timedelta(seconds=600), poll_longest=timedelta(seconds=600))
    async with Subscriber(topics_url, "orders", "billing", settings) as subscriber:
        # Only the bell can wake it within the time of a test.
        subscriber._wake._least = 0.001
        member = Reading(subscriber)
        waiting = asyncio.create_task(member.next())
        await until(lambda: connection.execute(LISTENERS).fetchone())
        await asyncio.sleep(0)
        append(connection, orders, 1)
        assert numbers((await waiting).messages) == [0]


NUMBERING = (
    "select 1 from pg_stat_activity where application_name = 'headwater subscriber' and query like '%topic_number_1%'"
)


@pytest.mark.parametrize("mode", ["partition", "shared"])
async def test_what_another_one_numbers_is_looked_for_soon(topics_url, connection, orders, application, mode):
    settings = quick(mode=mode, poll_longest=timedelta(seconds=600))
    async with reading(topics_url, "orders", "billing", settings) as member:
        waiting = asyncio.create_task(member.next())
        await until(lambda: connection.execute(LISTENERS).fetchone())
        append(connection, orders, 1)
        await (await waiting).commit()
        waiting = asyncio.create_task(member.next())
        application.execute("select pg_advisory_xact_lock(headwater.topic_lock_key(%s, 65535))", [orders.id])
        append(connection, orders, 1, begin=1)
        await until(lambda: connection.execute(NUMBERING).fetchone())
        topics.number_sync(application, orders)
        application.commit()
        assert numbers((await asyncio.wait_for(waiting, 15)).messages) == [1]


async def test_without_listening_messages_come_by_polling(topics_url, connection, orders):
    async with reading(topics_url, "orders", "billing", quick(listens=False)) as member:
        assert await member.has_nothing()
        append(connection, orders, 3)
        assert sorted(numbers(await member.collect(3))) == [0, 1, 2]


async def test_what_a_producer_sends_is_received(topics_url, orders):
    async with reading(topics_url, "orders", "billing") as member, Producer(topics_url, "orders") as producer:
        await producer.send(Message(1, key="a"))
        assert numbers(await member.collect(1)) == [1]


async def test_groups_read_independently_of_each_other(topics_url, connection, orders):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing") as one, reading(topics_url, "orders", "shipping") as other:
        assert sorted(numbers(await one.collect(10))) == list(range(10))
        assert sorted(numbers(await other.collect(10))) == list(range(10))


async def test_a_group_goes_on_where_it_has_committed(topics_url, connection, orders):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing") as member:
        await member.collect(10)
    append(connection, orders, 5, begin=10)
    async with reading(topics_url, "orders", "billing") as member:
        assert sorted(numbers(await member.collect(5))) == [10, 11, 12, 13, 14]


async def test_what_was_not_committed_comes_again(topics_url, connection, orders):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing") as member:
        await member.collect(10, commits=False)
    async with reading(topics_url, "orders", "billing") as member:
        assert sorted(numbers(await member.collect(10))) == list(range(10))


async def test_members_share_the_partitions_evenly(topics_url, connection):
    topics.create_sync(connection, "wide", partitions=5)
    async with (
        reading(topics_url, "wide", "billing") as first,
        reading(topics_url, "wide", "billing") as second,
        reading(topics_url, "wide", "billing") as third,
    ):
        assert await come_to([1, 2, 2], connection, first, second, third)


async def test_a_member_that_comes_takes_no_more_than_its_share(topics_url, connection):
    topics.create_sync(connection, "wide", partitions=4)
    async with reading(topics_url, "wide", "billing") as first:
        await spread(first)
        before = owners(connection)
        async with reading(topics_url, "wide", "billing") as second:
            assert await come_to([2, 2], connection, first, second)
            after = owners(connection)
            assert sum(before[partition] != after[partition] for partition in before) == 2


async def test_more_members_than_partitions_wait_until_they_are_needed(topics_url, connection, orders):
    async with AsyncExitStack() as stack:
        members = [await stack.enter_async_context(reading(topics_url, "orders", "billing")) for _ in range(3)]
        assert await come_to([0, 1, 1], connection, *members)
        idle = next(member for member in members if member.member not in owners(connection).values())
        leaving = next(member for member in members if member is not idle)
        await leaving.subscriber.close()
        await spread(idle)
        assert idle.member in owners(connection).values()


async def test_a_partition_changes_hands_only_when_what_was_given_out_is_committed(topics_url, connection, orders):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing", quick(max_messages=500)) as first:
        batch = await first.next()
        async with reading(topics_url, "orders", "billing") as second:
            assert await second.has_nothing()
            assert set(owners(connection).values()) == {first.member}
            # The batch is at its end, and not committed: nothing moves.
            assert await first.has_nothing()
            assert set(owners(connection).values()) == {first.member}
            await batch.commit()
            assert await first.has_nothing()
            assert set(owners(connection).values()) == {first.member, second.member}
            append(connection, orders, 10, begin=10)
            got = await asyncio.gather(first.collect(1), second.collect(1))
            assert sorted(numbers(got[0] + got[1])) == list(range(10, 20))


async def test_the_partitions_of_one_who_is_gone_are_taken_over_within_the_lease(topics_url, connection, orders):
    append(connection, orders, 10)
    lease = timedelta(seconds=1)
    async with reading(topics_url, "orders", "billing", quick(lease=lease)) as gone:
        batch = await gone.next()
        epochs = {part.partition: part.epoch for part in batch.parts}
        await gone.vanish()
    async with reading(topics_url, "orders", "billing", quick(lease=lease)) as heir:
        messages = await heir.collect(10, commits=False)
        assert sorted(numbers(messages)) == list(range(10))
        assert set(owners(connection).values()) == {heir.member}
        after = {lag.partition: lag.epoch for lag in topics.read_lag_sync(connection, "orders", "billing")}
        assert all(after[partition] > epoch for partition, epoch in epochs.items())


async def test_close_leaves_the_partitions_to_others_at_once(topics_url, connection, orders):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing", quick(lease=timedelta(hours=1))) as first:
        await first.collect(10, commits=False)
        await first.subscriber.close()
        assert set(owners(connection).values()) == {None}
        async with reading(topics_url, "orders", "billing") as second:
            assert sorted(numbers(await second.collect(10))) == list(range(10))


async def test_a_commit_after_a_takeover_is_refused_and_nothing_moves(topics_url, connection, orders):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing") as stalled:
        batch = await stalled.next()
        connection.execute("update headwater.topic_member set lease_until = now() - interval '1 s'")
        async with reading(topics_url, "orders", "billing") as heir:
            assert sorted(numbers(await heir.collect(10, commits=False))) == list(range(10))
            with pytest.raises(LeaseLost, match="nothing moved"):
                await batch.commit()
            assert sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 10


async def test_an_assignment_that_was_decided_for_an_older_generation_moves_no_partition(topics_url, connection, orders):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing") as member:
        batch = await member.next()
        group, generation = connection.execute("select id, generation from headwater.topic_group").fetchone()
        late = uuid4()
        stale = group_statements.assign_partitions(group, generation - 1, late, {0: late, 1: late})
        assert execute_sync(connection, stale) == 0
        assert set(owners(connection).values()) == {member.member}
        await batch.commit()
    assert sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 0


async def test_a_commit_moves_all_partitions_of_a_batch_or_none(topics_url, connection, orders):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing") as member:
        batch = await member.next()
        assert len(batch.parts) == 2
        connection.execute("update headwater.topic_cursor set epoch = epoch + 1 where partition = 1")
        with pytest.raises(LeaseLost):
            await batch.commit()
        assert sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 10
        # It goes on with what it still owns, from what is committed.
        assert sorted(numbers(await member.collect(10))) == list(range(10))
        assert sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 0


async def test_a_member_whose_lease_has_ended_comes_back(topics_url, connection, orders):
    async with reading(topics_url, "orders", "billing", quick(lease=timedelta(milliseconds=300))) as member:
        await member.has_nothing()
        connection.execute("delete from headwater.topic_member")
        connection.execute("update headwater.topic_cursor set member = null, epoch = epoch + 1")
        connection.execute("update headwater.topic_group set generation = generation + 1")
        append(connection, orders, 10)
        assert sorted(numbers(await member.collect(10))) == list(range(10))
        assert set(owners(connection).values()) == {member.member}


async def test_a_member_that_works_for_longer_than_its_lease_keeps_its_partitions(topics_url, connection, orders):
    append(connection, orders, 10)
    lease = timedelta(seconds=5)
    settings = quick(lease=lease)
    is_renewed = "select 1 from headwater.topic_member where member = %s and lease_until > %s"
    async with reading(topics_url, "orders", "billing", settings) as busy:
        batch = await busy.next()
        assert len(batch.parts) == 2
        ((first,),) = connection.execute("select lease_until from headwater.topic_member").fetchall()
        async with reading(topics_url, "orders", "billing", settings) as other:
            generations = connection.execute("select generation from headwater.topic_group").fetchall()
            taking = asyncio.create_task(other.next())
            # Half a lease after the end of the first one, so that the other member has had its chance.
            end = first + 1.5 * lease
            await until(lambda: taking.done() or connection.execute(is_renewed, [busy.member, end]).fetchone())
            assert not taking.done()
            # It was a member all the time, and did not come back in time to keep what it had.
            assert connection.execute("select generation from headwater.topic_group").fetchall() == generations
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)
        await batch.commit()


async def test_many_who_come_at_once_agree(topics_url, connection):
    topics.create_sync(connection, "wide", partitions=8)
    async with AsyncExitStack() as stack:
        members = await asyncio.gather(
            *(stack.enter_async_context(reading(topics_url, "wide", "billing")) for _ in range(6))
        )
        assert await come_to([1, 1, 1, 1, 2, 2], connection, *members)


def rises(found):
    return all(before < after for before, after in pairwise(found))


async def test_members_that_come_and_go_lose_nothing_and_keep_the_order_of_keys(topics_url, connection):
    topic = topics.create_sync(connection, "wide", partitions=4)
    seen: dict[int, int] = {}
    received: list[tuple[int, int]] = []
    total = 2000

    async def read(batches):
        with_settings = quick(max_messages=20, lease=timedelta(seconds=5))
        async with reading(topics_url, "wide", "billing", with_settings) as member:
            for _ in range(batches):
                if len(seen) == total:
                    return
                try:
                    async with asyncio.timeout(0.5):
                        batch = await member.next()
                except TimeoutError:
                    return
                for message in batch.messages:
                    number = number_of(message)
                    assert message.key is not None
                    received.append((int(message.key), number))
                    seen[number] = place_of(message).offset
                await batch.commit()

    async def members(lengths):
        for length in lengths:
            await read(length)

    for begin in range(0, total, 100):
        topics.append_sync(connection, topic, [Message(n, key=str(n % 13)) for n in range(begin, begin + 100)])
    await asyncio.gather(members([5, 20, 50]), members([11, 3, 50]), members([7, 7, 7, 50]))
    while len(seen) < total:
        await members([200])

    assert seen.keys() == set(range(total))
    # Nobody was cut off in between, so nothing came twice either.
    assert all(rises([number for one, number in received if one == key]) for key in range(13))


async def test_connections_that_are_cut_are_made_again(topics_url, connection, orders):
    with Proxy(topics_url) as proxy:
        async with reading(proxy.url, "orders", "billing") as member:
            append(connection, orders, 10)
            assert sorted(numbers(await member.collect(10))) == list(range(10))
            proxy.cut()
            append(connection, orders, 10, begin=10)
            batch = await member.next()
            proxy.cut()
            await batch.commit()
            got = batch.messages + ([] if len(batch) == 10 else await member.collect(10 - len(batch)))
            assert sorted(numbers(got)) == list(range(10, 20))
            await until(lambda: sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 0)


async def test_behind_a_pooler_prepared_statements_that_are_lost_are_done_without(topics_url, connection, orders):
    async with reading(topics_url, "orders", "billing") as member:
        assert await member.has_nothing()
        for session, _ in member.subscriber._line._kept:
            await (await session.opened()).execute("deallocate all")
        append(connection, orders, 10)
        assert sorted(numbers(await member.collect(10))) == list(range(10))


async def test_polls_of_an_idle_group_write_nothing(topics_url, connection, orders):
    append(connection, orders, 10)
    async with reading(topics_url, "orders", "billing") as one:
        await one.collect(10)
        async with reading(topics_url, "orders", "billing") as other:
            assert await come_to([1, 1], connection, one, other)
            # So that both have committed something, which they need not say again.
            append(connection, orders, 10)
            await asyncio.gather(one.collect(1), other.collect(1))
            await spread(one, other)
            assert await writes_nothing(connection, lambda: spread(one, other))


async def test_a_member_renews_by_few_updates_which_leave_no_trace_in_an_index(topics_url, connection, orders):
    updates = "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'topic_member'"
    lease = timedelta(milliseconds=600)
    began = time.monotonic()
    async with reading(topics_url, "orders", "billing", quick(lease=lease)), reading(topics_url, "orders", "billing"):
        # Statistics come from members with a delay; that there are some is waited for, and too many would be there by then.
        await until(lambda: connection.execute(updates).fetchone()[0] >= 3)
        updated, hot = connection.execute(updates).fetchone()
        assert updated <= 1 + (time.monotonic() - began) / (lease.total_seconds() / 3)
        assert hot == updated


@pytest.mark.parametrize("mode", ["partition", "shared"])
async def test_members_read_on_each_version(any_database, mode):
    with closing(connect_sync(any_database)) as connection:
        topics.prepare_topics(connection)
        topic = topics.create_sync(connection, "orders", partitions=2, compression="zstd")
        append(connection, topic, 50)
        async with reading(any_database, "orders", "billing", quick(mode=mode, max_messages=10)) as member:
            assert sorted(numbers(await member.collect(50))) == list(range(50))
            topics.seek_sync(connection, "orders", "billing", topic.created_at)
            assert sorted(numbers(await member.collect(50))) == list(range(50))
        assert sum(lag.lag for lag in topics.read_lag_sync(connection, "orders", "billing")) == 0


async def test_an_unknown_topic_is_refused(topics_url):
    with pytest.raises(TopicError, match="there is no topic 'nothing'"):
        async with Subscriber(topics_url, "nothing", "billing"):
            pass


async def test_a_group_of_a_name_that_cannot_be_is_refused(topics_url, orders):
    with pytest.raises(TopicError, match="cannot be the name of a group"):
        async with Subscriber(topics_url, "orders", "bill ing"):
            pass


async def test_a_group_keeps_its_mode(topics_url, orders):
    async with reading(topics_url, "orders", "billing"):
        pass
    with pytest.raises(TopicError, match="reads in mode 'partition'; use that"):
        async with reading(topics_url, "orders", "billing", quick(mode="shared")):
            pass


async def test_members_of_a_group_that_was_dropped_fail(topics_url, connection, orders):
    async with reading(topics_url, "orders", "billing") as member:
        topics.drop_group_sync(connection, "orders", "billing")
        with pytest.raises(TopicError, match="was dropped"):
            await member.next()


async def test_close_from_elsewhere_ends_the_loop(topics_url, orders):
    async with Subscriber(topics_url, "orders", "billing", quick()) as subscriber:
        ended = asyncio.create_task(all_of(subscriber))
        await asyncio.sleep(0)
        await subscriber.close()
        assert await ended == []


async def test_close_from_elsewhere_ends_the_loop_while_it_reads_ahead(topics_url, connection, orders):
    append(connection, orders, 10)
    # A poll ahead waits for longer than the test.
    settings = quick(poll_least=timedelta(seconds=600), poll_longest=timedelta(seconds=600))
    async with Subscriber(topics_url, "orders", "billing", settings) as subscriber:
        ended = asyncio.create_task(all_of(subscriber))
        await until(lambda: subscriber._ahead)
        await subscriber.close()
        assert sum(map(len, await ended)) == 10


async def all_of(subscriber):
    return [batch async for batch in subscriber]


async def test_partitions_that_are_added_are_read(topics_url, connection, orders):
    async with reading(topics_url, "orders", "billing") as member:
        assert await member.has_nothing()
        topics.add_partitions_sync(connection, "orders", 4)
        wider = topics.find_sync(connection, "orders")
        append(connection, wider, 20)
        assert sorted(numbers(await member.collect(20))) == list(range(20))
        assert owners(connection).keys() == {0, 1, 2, 3}


async def test_a_reader_never_skips_what_commits_late(topics_url, connection, orders):
    late, early = await connect(topics_url), await connect(topics_url)
    async with late, early, reading(topics_url, "orders", "billing") as member:
        async with late.transaction():
            await topics.append(late, orders, [Message(1, key="a")])
            async with early.transaction():
                await topics.append(early, orders, [Message(2, key="a")])
            assert numbers(await member.collect(1)) == [2]
        assert numbers(await member.collect(1)) == [1]


def hang_commits(connection, table):
    """Have a transaction that inserts into a table wait in its commit, until the connection gives up a lock."""
    connection.execute(
        """
        create function wait_in_commit() returns trigger language plpgsql as $$
        begin
            perform pg_advisory_xact_lock_shared(1);
            return null;
        end
        $$
        """
    )
    # The last of the triggers of a row: they fire in the order of their names.
    connection.execute(
        f"create constraint trigger zz_wait after insert on {table} deferrable initially deferred "
        "for each row execute function wait_in_commit()"
    )
    connection.execute("select pg_advisory_lock(1)")


def waiting(connection):
    """How many wait for an advisory lock."""
    query = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'advisory'"
    return connection.execute(query).fetchone()[0]


async def test_a_reader_never_skips_what_has_drawn_its_number_and_hangs_in_its_commit(topics_url, connection, orders):
    connection.execute("create table hanging ()")
    hang_commits(connection, "hanging")
    late, early = await connect(topics_url), await connect(topics_url)

    async def append_late():
        async with late.transaction():
            await topics.append(late, orders, [Message(1, key="a")])
            # Behind the append, so that its trigger fires behind that of the append.
            await late.execute("insert into hanging default values")

    async with late, early, reading(topics_url, "orders", "billing") as member, asyncio.TaskGroup() as tasks:
        tasks.create_task(append_late())
        await until(lambda: waiting(connection) == 1)
        drawn = "select pg_sequence_last_value(pg_get_serial_sequence('headwater.topic_commit', 'ordinal')::regclass)"
        assert connection.execute(drawn).fetchone() == (1,)
        # Nobody waits for the one that hangs.
        await early.execute("set lock_timeout = '5s'")
        await topics.append(early, orders, [Message(2, key="a"), Message(3, key="a")])
        read = await member.collect(2)
        connection.execute("select pg_advisory_unlock(1)")
        read += await member.collect(1)
    assert [(message.offset, number_of(message)) for message in read] == [(0, 2), (1, 3), (2, 1)]


async def test_a_producer_waits_for_a_commit_that_hangs_and_a_reader_gets_both_in_order(topics_url, connection, orders):
    hang_commits(connection, "headwater.topic_producer")
    async with (
        Producer(topics_url, "orders") as late,
        Producer(topics_url, "orders") as early,
        reading(topics_url, "orders", "billing") as member,
        asyncio.TaskGroup() as tasks,
    ):
        first = tasks.create_task(late.send(Message(1, "a")))
        await until(lambda: waiting(connection) == 1)
        # Two, so that no unique key of the log is in the way of one that takes the offset of the first.
        second = tasks.create_task(early.send_many([Message(2, "a"), Message(3, "a")]))
        await until(lambda: waiting(connection) == 2)
        connection.execute("select pg_advisory_unlock(1)")
        assert [place.offset for place in (await first, *await second)] == [0, 1, 2]
        read = await member.collect(3)
    assert [(message.offset, number_of(message)) for message in read] == [(0, 1), (1, 2), (2, 3)]
