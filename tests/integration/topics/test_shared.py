"""Shared mode: any number of readers of a group claim disjoint ranges of one partition at once."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from uuid import uuid4

import pytest

from headwater import topics
from headwater.errors import LeaseLost
from headwater.postgres.connect import connect
from headwater.postgres.statements import fetch, fetch_sync
from headwater.topics import Message, group_statements
from headwater.topics.window import window
from tests.support.topics.subscribers import numbers, quick, reading, until
from tests.support.waiting import writes_nothing


@pytest.fixture
def single(connection):
    """A topic with one partition."""
    return topics.create_sync(connection, "single")


def append(connection, topic, count, *, begin=0):
    topics.append_sync(connection, topic, [Message(n) for n in range(begin, begin + count)])
    topics.number_sync(connection, topic)


def shared(**changes):
    return quick(mode="shared", **changes)


async def test_readers_of_one_partition_have_disjoint_ranges_at_once(topics_url, connection, single):
    append(connection, single, 100)
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(reading(topics_url, "single", "billing", shared(max_messages=10)))
            for _ in range(5)
        ]
        batches = await asyncio.gather(*(member.next() for member in members))
        assert sorted(len(batch) for batch in batches) == [10] * 5
        assert len({number for batch in batches for number in numbers(batch.messages)}) == 50
        await asyncio.gather(*(batch.commit() for batch in batches))


async def test_all_of_it_is_read_once_by_many(topics_url, connection, single):
    append(connection, single, 1000)
    received: list[int] = []
    finished = asyncio.Event()

    async def read(member):
        while True:
            batch = await member.next()
            await batch.commit()
            received.extend(numbers(batch.messages))
            if len(received) >= 1000:
                finished.set()

    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(reading(topics_url, "single", "billing", shared(max_messages=7)))
            for _ in range(4)
        ]
        tasks = [asyncio.create_task(read(member)) for member in members]
        await finished.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(received) == list(range(1000))
    assert connection.execute("select count(*) from headwater.topic_claim").fetchone() == (0,)
    assert topics.read_lag_sync(connection, "single", "billing")[0].lag == 0


async def test_what_one_who_is_gone_had_is_claimed_by_exactly_one(topics_url, connection, single):
    append(connection, single, 10)
    lease = timedelta(seconds=1)
    async with reading(topics_url, "single", "billing", shared(lease=lease, max_messages=10)) as gone:
        lost = await gone.next()
        await gone.vanish()
    async with AsyncExitStack() as stack:
        heirs = [
            await stack.enter_async_context(reading(topics_url, "single", "billing", shared(lease=lease))) for _ in range(4)
        ]
        waiting = [asyncio.create_task(heir.next()) for heir in heirs]
        done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (batch,) = (task.result() for task in done)
        assert numbers(batch.messages) == list(range(10))
        assert batch.parts[0].epoch > lost.parts[0].epoch
        await batch.commit()
        done, others = await asyncio.wait(others, timeout=0.2)
        assert not done
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def test_a_commit_of_a_claim_that_is_anothers_is_refused(topics_url, connection, single):
    append(connection, single, 10)
    async with reading(topics_url, "single", "billing", shared(max_messages=10)) as stalled:
        batch = await stalled.next()
        connection.execute("update headwater.topic_member set lease_until = now() - interval '1 s'")
        async with reading(topics_url, "single", "billing", shared(max_messages=10)) as heir:
            again = await heir.next()
            with pytest.raises(LeaseLost):
                await batch.commit()
            assert topics.read_lag_sync(connection, "single", "billing")[0].lag == 10
            await again.commit()
            assert topics.read_lag_sync(connection, "single", "billing")[0].lag == 0


async def test_close_leaves_claims_to_others_at_once(topics_url, connection, single):
    append(connection, single, 10)
    async with reading(topics_url, "single", "billing", shared(lease=timedelta(hours=1), max_messages=5)) as first:
        await first.next()
    async with reading(topics_url, "single", "billing", shared()) as second:
        assert sorted(numbers(await second.collect(10))) == list(range(10))


async def test_a_claim_whose_answer_was_lost_is_found_by_its_member(topics_url, connection, single):
    append(connection, single, 10)
    async with reading(topics_url, "single", "billing", shared(max_messages=10)) as member:
        # As a statement does that was run by the server, and whose answer never came.
        async with await connect(topics_url) as other:
            claims = await fetch(other, claiming(connection, "billing", member.member, most=10))
        assert len(claims) == 1
        assert numbers(await member.collect(10)) == list(range(10))


async def test_a_member_that_works_for_longer_than_its_lease_keeps_its_claim(topics_url, connection, single):
    append(connection, single, 10)
    lease = timedelta(seconds=5)
    settings = shared(lease=lease, max_messages=10)
    is_renewed = "select 1 from headwater.topic_member where member = %s and lease_until > %s"
    async with reading(topics_url, "single", "billing", settings) as busy:
        batch = await busy.next()
        ((first,),) = connection.execute("select lease_until from headwater.topic_member").fetchall()
        async with reading(topics_url, "single", "billing", settings) as other:
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


WAITING = "select query from pg_stat_activity where application_name = 'headwater subscriber' and wait_event_type = 'Lock'"


async def test_a_member_does_not_wait_for_a_transaction_that_commits_its_claim(topics_url, connection, single):
    append(connection, single, 10)
    async with (
        reading(topics_url, "single", "billing", shared(max_messages=5)) as member,
        await connect(topics_url) as own,
    ):
        batch = await member.next()
        async with own.transaction():
            await batch.commit(own)
            assert numbers((await member.next()).messages) == [5, 6, 7, 8, 9]
            assert await member.has_nothing()
            assert connection.execute(WAITING).fetchall() == []
        assert await member.has_nothing()


async def test_a_claim_whose_transaction_is_rolled_back_is_claimed_again(topics_url, connection, single):
    append(connection, single, 5)
    async with reading(topics_url, "single", "billing", shared()) as member, await connect(topics_url) as own:
        batch = await member.next()
        with pytest.raises(ZeroDivisionError):
            async with own.transaction():
                await batch.commit(own)
                raise ZeroDivisionError
        assert numbers(await member.collect(5)) == list(range(5))


async def test_nobody_waits_for_a_claim_that_one_who_is_gone_still_commits(topics_url, connection, single):
    append(connection, single, 10)
    async with (
        reading(topics_url, "single", "billing", shared(max_messages=5)) as stalled,
        await connect(topics_url) as own,
    ):
        batch = await stalled.next()
        async with own.transaction():
            await batch.commit(own)
            await stalled.vanish()
            connection.execute("delete from headwater.topic_member")
            async with reading(topics_url, "single", "billing", shared(max_messages=5)) as heir:
                assert numbers(await heir.collect(5)) == [5, 6, 7, 8, 9]
                assert await heir.has_nothing()
                assert connection.execute(WAITING).fetchall() == []
    assert topics.read_lag_sync(connection, "single", "billing")[0].lag == 0


async def test_polls_of_an_idle_shared_group_write_nothing(topics_url, connection, single):
    append(connection, single, 10)
    async with reading(topics_url, "single", "billing", shared()) as member:
        await member.collect(10)
        assert await member.has_nothing()
        assert await writes_nothing(connection, member.has_nothing)


def claiming(connection, group, member, *, most, most_bytes=1 << 20):
    found = topics.find_group_sync(connection, "single", group)
    topic = topics.find_sync(connection, "single")
    return group_statements.claim(
        topic.id,
        found.id,
        member,
        [],
        most=most,
        most_bytes=most_bytes,
        max_attempts=5,
        begin_at=0,
    )


@pytest.mark.parametrize(("available", "most"), [(0, 100), (1, 100), (50, 100), (99, 100), (100, 100), (101, 100), (1, 1)])
async def test_a_claim_has_the_window_of_the_arithmetic(topics_url, connection, single, available, most):
    async with reading(topics_url, "single", "billing", shared(start="latest")):
        pass
    append(connection, single, 1000)
    topics.seek_sync(connection, "single", "billing", "latest")
    if available:
        append(connection, single, available, begin=1000)
    claims = fetch_sync(connection, claiming(connection, "billing", uuid4(), most=most))
    expected = window(1000, 1000 + available - 1, most)
    assert [range(claim.first_offset, claim.last_offset + 1) for claim in claims] == ([expected] if expected else [])


async def test_a_claim_has_no_more_frames_than_fit(topics_url, connection, single):
    async with reading(topics_url, "single", "billing", shared(start="latest")):
        pass
    for _ in range(5):
        append(connection, single, 10)
    (claim,) = fetch_sync(connection, claiming(connection, "billing", uuid4(), most=100, most_bytes=100))
    assert 1 <= (claim.last_offset + 1) // 10 < 5
