"""Groups as operators see them: where they begin, how far they are, moving and holding them."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from psycopg import sql

from headwater import topics
from headwater.errors import LeaseLost, PositionExpired, TopicError
from headwater.topics import Message
from headwater.topics.owned import Owned
from tests.support.topics.subscribers import numbers, quick, reading, until


@pytest.fixture
def single(connection):
    """A topic with one partition and ten messages, each in a frame of its own."""
    topic = topics.create_sync(connection, "single")
    for n in range(10):
        topics.append_sync(connection, topic, [Message(n)])
        topics.number_sync(connection, topic)
    return topic


def log_of(topic, statement):
    return sql.SQL(statement).format(sql.Identifier("headwater", f"topic_log_{topic.id}"))


def trim(connection, topic, first_offset):
    """As retention does it, to an offset of its own choice."""
    connection.execute(log_of(topic, "delete from {} where last_offset < %s"), [first_offset])
    connection.execute("update headwater.topic_partition set first_offset = %s", [first_offset])


def time_of(connection, topic, offset):
    (at,) = connection.execute(log_of(topic, "select created_at from {} where last_offset = %s"), [offset]).fetchone()
    return at


async def test_a_group_begins_with_the_oldest_message(topics_url, single):
    async with reading(topics_url, "single", "billing") as member:
        assert numbers(await member.collect(10)) == list(range(10))


async def test_a_group_may_begin_at_the_end(topics_url, connection, single):
    # What was committed before, and has no offset yet, is before the end.
    topics.append_sync(connection, single, [Message(10)])
    async with reading(topics_url, "single", "billing", quick(start="latest")) as member:
        assert await member.has_nothing()
        topics.append_sync(connection, single, [Message(11)])
        assert numbers(await member.collect(1)) == [11]


async def test_a_group_may_begin_at_an_offset(topics_url, single):
    async with reading(topics_url, "single", "billing", quick(start=7)) as member:
        assert numbers(await member.collect(3)) == [7, 8, 9]


@pytest.mark.parametrize("offset", [0, 4, 9])
async def test_a_group_may_begin_at_a_time(topics_url, connection, single, offset):
    start = time_of(connection, single, offset)
    async with reading(topics_url, "single", "billing", quick(start=start)) as member:
        assert numbers(await member.collect(10 - offset)) == list(range(offset, 10))


async def test_a_time_between_frames_of_many_messages_is_found(connection, topics_url):
    topic = topics.create_sync(connection, "wide", partitions=3)
    for begin in range(0, 1000, 50):
        topics.append_sync(connection, topic, [Message(n, key=str(n)) for n in range(begin, begin + 50)])
        topics.number_sync(connection, topic)
    (at,) = connection.execute(
        log_of(topic, "select min(created_at) + interval '1 us' from {} where last_offset > 150")
    ).fetchone()
    expected = dict(
        connection.execute(
            log_of(
                topic, "select partition, min(last_offset - count + 1) from {} where created_at >= %s group by partition"
            ),
            [at],
        ).fetchall()
    )
    async with reading(topics_url, "wide", "billing"):
        pass
    assert topics.seek_sync(connection, "wide", "billing", at) == expected


async def test_a_group_goes_on_where_it_is_whatever_start_says(topics_url, single):
    async with reading(topics_url, "single", "billing") as member:
        await member.collect(10)
    async with reading(topics_url, "single", "billing", quick(start=3)) as member:
        assert await member.has_nothing()


async def test_a_group_cannot_begin_at_what_was_removed(topics_url, connection, single):
    trim(connection, single, 5)
    with pytest.raises(PositionExpired) as caught:
        async with reading(topics_url, "single", "billing", quick(start=3)):
            pass
    assert (caught.value.wanted, caught.value.oldest) == (3, 5)


async def test_a_group_that_was_too_slow_is_told_what_is_left(topics_url, connection, single):
    async with reading(topics_url, "single", "billing", quick(max_messages=2)) as member:
        await (await member.next()).commit()
    trim(connection, single, 5)
    with pytest.raises(PositionExpired, match="partition 0 of topic 'single' has no message 2 any more, the oldest is 5"):
        async with reading(topics_url, "single", "billing") as member:
            await member.next()


@pytest.mark.parametrize("mode", ["partition", "shared"])
async def test_messages_that_are_removed_under_a_reader_are_noticed(topics_url, connection, single, mode):
    async with reading(topics_url, "single", "billing", quick(mode=mode, max_messages=2)) as member:
        await member.collect(10)
        topics.append_sync(connection, single, [Message(n) for n in range(10, 12)])
        topics.pause_sync(connection, "single", "billing")
        assert await member.has_nothing()
        topics.number_sync(connection, single)
        topics.append_sync(connection, single, [Message(n) for n in range(12, 14)])
        topics.number_sync(connection, single)
        trim(connection, single, 12)
        topics.resume_sync(connection, "single", "billing")
        with pytest.raises(PositionExpired) as caught:
            await member.next()
        assert (caught.value.wanted, caught.value.oldest) == (10, 12)


@pytest.mark.parametrize("mode", ["partition", "shared"])
async def test_a_group_may_go_on_from_the_oldest_that_is_left(topics_url, connection, single, mode):
    settings = quick(mode=mode, on_expired="earliest")
    async with reading(topics_url, "single", "billing", settings):
        pass
    trim(connection, single, 5)
    async with reading(topics_url, "single", "billing", settings) as member:
        assert numbers(await member.collect(5)) == list(range(5, 10))
    assert topics.read_lag_sync(connection, "single", "billing")[0].lag == 0


async def test_a_group_is_moved_back_and_forth_while_it_reads(topics_url, connection, single):
    async with reading(topics_url, "single", "billing", quick(max_messages=4)) as member:
        batch = await member.next()
        assert topics.seek_sync(connection, "single", "billing", 8) == {0: 8}
        with pytest.raises(LeaseLost):
            await batch.commit()
        assert numbers(await member.collect(2)) == [8, 9]
        assert topics.seek_sync(connection, "single", "billing", "earliest") == {0: 0}
        assert numbers(await member.collect(4)) == [0, 1, 2, 3]
        assert topics.seek_sync(connection, "single", "billing", "latest") == {0: 10}
        # It was read with the commit of the one before.
        batch = await member.next()
        with pytest.raises(LeaseLost):
            await batch.commit()
        assert await member.has_nothing()
        assert topics.seek_sync(connection, "single", "billing", time_of(connection, single, 9)) == {0: 9}
        assert numbers(await member.collect(1)) == [9]


async def test_a_shared_group_is_moved_with_its_claims(topics_url, connection, single):
    async with reading(topics_url, "single", "billing", quick(mode="shared", max_messages=4)) as member:
        batch = await member.next()
        topics.seek_sync(connection, "single", "billing", "earliest")
        with pytest.raises(LeaseLost):
            await batch.commit()
        # What was claimed ahead of the seek may come first; then all of it, from the beginning.
        received: list[int] = []
        while received[-10:] != list(range(10)):
            received += numbers(await member.collect(1, commits=False))


async def test_one_partition_is_moved_alone(topics_url, connection, orders):
    topics.append_sync(connection, orders, [Message(n, key=str(n)) for n in range(20)])
    async with reading(topics_url, "orders", "billing") as member:
        await member.collect(20)
    assert topics.seek_sync(connection, "orders", "billing", 1, partition=1) == {1: 1}
    assert [lag.next_offset for lag in topics.read_lag_sync(connection, "orders", "billing")][1] == 1
    assert topics.read_lag_sync(connection, "orders", "billing")[0].lag == 0


async def test_a_seek_to_where_nothing_is_is_refused(topics_url, connection, single):
    async with reading(topics_url, "single", "billing"):
        pass
    with pytest.raises(TopicError, match="offset 11 of topic 'single' is not there yet; the next is 10"):
        topics.seek_sync(connection, "single", "billing", 11)
    with pytest.raises(TopicError, match="has 1 partitions, and no partition 1"):
        topics.seek_sync(connection, "single", "billing", "earliest", partition=1)
    with pytest.raises(TopicError, match="is no place in a topic"):
        topics.seek_sync(connection, "single", "billing", "yesterday")  # type: ignore[arg-type]  # no place, which is refused
    trim(connection, single, 5)
    with pytest.raises(PositionExpired, match="the oldest is 5"):
        topics.seek_sync(connection, "single", "billing", 4)


async def test_a_paused_group_gets_nothing_until_it_is_resumed(topics_url, connection):
    topic = topics.create_sync(connection, "single")
    # In one frame, which is read at once.
    topics.append_sync(connection, topic, [Message(n) for n in range(10)])
    async with reading(topics_url, "single", "billing", quick(max_messages=3)) as member:
        batch, reader = await member.next(), member.reader
        assert isinstance(reader, Owned)
        # The next batches are in memory; those wait too.
        assert len(reader._holdings[0].buffer) == 7
        topics.pause_sync(connection, "single", "billing")
        coming = asyncio.create_task(member.next())
        await until(lambda: reader._is_paused)
        await asyncio.wait([coming], timeout=0.1)
        assert not coming.done()
        assert topics.find_group_sync(connection, "single", "billing").is_paused
        # What was given out can be committed.
        await batch.commit()
        topics.resume_sync(connection, "single", "billing")
        assert numbers((await coming).messages) == [3, 4, 5]


async def test_the_lag_says_how_far_a_group_is(topics_url, connection, single):
    async with reading(topics_url, "single", "billing", quick(max_messages=4)) as member:
        await (await member.next()).commit()
        (lag,) = topics.read_lag_sync(connection, "single", "billing")
        assert (lag.next_offset, lag.tip, lag.lag, lag.claimed) == (4, 10, 6, 0)
        assert lag.oldest_age is not None and lag.oldest_age > timedelta(0)
        assert lag.member == member.member
        (group,) = topics.list_groups_sync(connection, "single")
        assert (group.topic, group.name, group.mode, group.members) == ("single", "billing", "partition", 1)
    assert topics.list_groups_sync(connection)[0].members == 0


async def test_what_is_claimed_is_part_of_the_lag(topics_url, connection, single):
    async with reading(topics_url, "single", "billing", quick(mode="shared", max_messages=4)) as member:
        batch = await member.next()
        (lag,) = topics.read_lag_sync(connection, "single", "billing")
        assert lag.lag == 10
        await batch.commit()
        (lag,) = topics.read_lag_sync(connection, "single", "billing")
        assert lag.lag == 6


async def test_a_group_that_is_dropped_begins_anew(topics_url, connection, single):
    async with reading(topics_url, "single", "billing") as member:
        await member.collect(10)
    topics.drop_group_sync(connection, "single", "billing")
    assert topics.list_groups_sync(connection, "single") == []
    async with reading(topics_url, "single", "billing") as member:
        assert numbers(await member.collect(10)) == list(range(10))


def test_an_unknown_group_is_told_with_where_to_look(connection, single):
    with pytest.raises(TopicError, match="has no group 'nobody'; run `headwater topics groups single`"):
        topics.seek_sync(connection, "single", "nobody", datetime.now(UTC))
    with pytest.raises(TopicError, match="there is no topic 'nothing'"):
        topics.pause_sync(connection, "nothing", "nobody")
