"""Messages that nobody can deal with: found, put aside, listed and sent again."""

import asyncio
from datetime import timedelta

import pytest

from headwater import topics
from headwater.errors import LeaseLost, TopicError
from headwater.postgres.backoff import Backoff
from headwater.topics import Message, Subscriber, line, subscribe
from tests.support.servers.tcp_proxy import Proxy
from tests.support.topics.subscribers import numbers, quick, reading, until

MODES = pytest.mark.parametrize("mode", ["partition", "shared"])


@pytest.fixture
def single(connection):
    """A topic with one partition and twenty messages."""
    topic = topics.create_sync(connection, "single")
    topics.append_sync(connection, topic, [Message(n, key="k", headers={"h": str(n)}) for n in range(20)])
    return topic


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch):
    monkeypatch.setattr(subscribe, "_FAILED", Backoff(timedelta(milliseconds=1), timedelta(milliseconds=1)))


def dead(connection):
    return {letter.message_offset: letter for letter in topics.list_dead_sync(connection, "single", "billing")}


async def read_until_poisoned(url, connection, settings):
    """What was given out until a member met the number 7, and ended for that, or until all is dealt with."""
    given: list[int] = []
    async with reading(url, "single", "billing", settings) as member:
        while await is_given_more(member, connection, given):
            if 7 in given:
                break
    return given


async def is_given_more(member, connection, given):
    """Whether something was given out, and committed if it is not poisoned, before all was dealt with."""
    asking = asyncio.create_task(member.next())
    await until(lambda: asking.done() or topics.read_lag_sync(connection, "single", "billing")[0].lag == 0)
    if not asking.done():
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return False
    batch = asking.result()
    given += numbers(batch.messages)
    if 7 not in numbers(batch.messages):
        await batch.commit()
    return True


@MODES
async def test_what_ends_its_readers_again_and_again_is_put_aside(topics_url, connection, single, mode):
    settings = quick(mode=mode, max_attempts=3, max_messages=10, lease=timedelta(seconds=30))
    runs = [await read_until_poisoned(topics_url, connection, settings) for _ in range(6)]
    # Three times together with others, once alone, and never again.
    assert [7 in run for run in runs] == [True, True, True, True, False, False]
    assert set(dead(connection)) == {7}
    assert topics.read_lag_sync(connection, "single", "billing")[0].lag == 0
    # Nobody else was blamed, and all were dealt with.
    assert {number for run in runs for number in run} == set(range(20))


@MODES
async def test_what_a_handler_cannot_deal_with_is_put_aside_and_the_others_go_on(topics_url, connection, single, mode):
    done: list[int] = []
    finished = asyncio.Event()

    async def handle(batch):
        if 7 in numbers(batch.messages) or 13 in numbers(batch.messages):
            raise ValueError(f"cannot read {numbers(batch.messages)[0]}")
        done.extend(numbers(batch.messages))
        if set(done) == set(range(20)) - {7, 13}:
            finished.set()

    settings = quick(mode=mode, max_attempts=3, max_messages=10)
    async with Subscriber(topics_url, "single", "billing", settings) as subscriber:
        running = asyncio.create_task(subscriber.run(handle))
        await asyncio.wait_for(finished.wait(), 15)
        await until(lambda: len(dead(connection)) == 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert sorted(done) == sorted(set(range(20)) - {7, 13})
    assert {offset: letter.reason for offset, letter in dead(connection).items()} == {
        7: "ValueError: cannot read 7",
        13: "ValueError: cannot read 13",
    }


async def test_a_handler_that_fails_once_gets_the_batch_again(topics_url, connection, single):
    calls: list[list[int]] = []
    finished = asyncio.Event()

    async def handle(batch):
        calls.append(numbers(batch.messages))
        if len(calls) == 1:
            raise ValueError("not now")
        finished.set()

    async with Subscriber(topics_url, "single", "billing", quick()) as subscriber:
        running = asyncio.create_task(subscriber.run(handle))
        await asyncio.wait_for(finished.wait(), 15)
        await until(lambda: topics.read_lag_sync(connection, "single", "billing")[0].lag == 0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert calls == [list(range(20)), list(range(20))]
    assert dead(connection) == {}


@MODES
async def test_a_message_is_put_aside_on_request(topics_url, connection, single, mode):
    async with reading(topics_url, "single", "billing", quick(mode=mode)) as member:
        batch = await member.next()
        await batch.dead(batch.messages[7], "no customer\0of that name")
        await batch.commit()
    (letter,) = topics.list_dead_sync(connection, "single", "billing")
    assert (letter.message_offset, letter.key, letter.payload, letter.headers) == (7, "k", b"7", {"h": "7"})
    assert letter.reason == "no customerof that name"
    assert topics.read_lag_sync(connection, "single", "billing")[0].lag == 0


@MODES
async def test_one_who_was_overtaken_puts_nothing_aside(topics_url, connection, single, mode):
    async with reading(topics_url, "single", "billing", quick(mode=mode)) as member:
        batch = await member.next()
        topics.seek_sync(connection, "single", "billing", "earliest")
        with pytest.raises(LeaseLost):
            await batch.dead(batch.messages[7], "mine")
    assert dead(connection) == {}


async def test_one_whose_claim_was_split_by_another_puts_nothing_aside(topics_url, connection, single):
    settings = quick(mode="shared", max_attempts=1)
    async with reading(topics_url, "single", "billing", settings) as stalled:
        batch = await stalled.next()
        connection.execute("update headwater.topic_member set lease_until = now() - interval '1 s'")
        async with reading(topics_url, "single", "billing", settings) as heir:
            assert numbers((await heir.next()).messages) == [0]
            for message in batch.messages:
                with pytest.raises(LeaseLost):
                    await batch.dead(message, "mine")
    assert dead(connection) == {}


async def test_nothing_is_put_aside_that_was_not_given_out_since_the_database_was_away(
    topics_url, connection, single, monkeypatch, caplog
):
    monkeypatch.setattr(line, "_ANSWER_WITHIN", timedelta(milliseconds=300))
    async with reading(topics_url, "single", "billing"):
        connection.execute("update headwater.topic_cursor set suspect_until = 19")
    with Proxy(topics_url) as proxy:
        async with reading(proxy.url, "single", "billing") as member:
            proxy.swallow = b"set suspect_until"
            first = asyncio.create_task(member.next())
            await until(lambda: "cannot be read" in caplog.text)
            proxy.swallow = None
            # Those that are made from now on work.
            proxy.freeze()
            assert numbers((await first).messages) == [0]
    assert dead(connection) == {}


async def test_a_message_that_goes_out_alone_is_not_to_blame_for_one_before_it_that_is_not_committed(
    topics_url, connection, single
):
    async with reading(topics_url, "single", "billing"):
        connection.execute("update headwater.topic_cursor set suspect_until = 19")
    async with reading(topics_url, "single", "billing") as member:
        assert [numbers((await member.next()).messages) for _ in range(3)] == [[0], [1], [2]]
    assert dead(connection) == {}


async def test_a_message_of_another_batch_is_refused(topics_url, single):
    async with reading(topics_url, "single", "billing", quick(max_messages=10)) as member:
        first, second = await member.next(), await member.next()
        with pytest.raises(TopicError, match="message 10 of partition 0 is not of this batch"):
            await first.dead(second.messages[0], "wrong")


async def test_dead_letters_are_appended_again_on_request(topics_url, connection, single):
    async with reading(topics_url, "single", "billing") as member:
        batch = await member.next()
        for place in (3, 7, 9):
            await batch.dead(batch.messages[place], "not yet")
        await batch.commit()
        assert topics.replay_dead_sync(connection, "single", "billing", offset=7) == 1
        assert topics.replay_dead_sync(connection, "single", "billing") == 2
        assert topics.replay_dead_sync(connection, "single", "billing") == 0
        again = await member.collect(3)
    assert numbers(again) == [7, 3, 9]
    assert again[0].headers == {"h": "7", "headwater-replay": "billing/0/7"}
    assert again[0].key == "k"


async def test_members_that_were_killed_while_nothing_was_there_blame_nobody(topics_url, connection):
    topic = topics.create_sync(connection, "single")
    settings = quick(max_attempts=2, lease=timedelta(milliseconds=100))
    for _ in range(4):
        async with reading(topics_url, "single", "billing", settings) as member:
            await member.has_nothing(0.3)
            await member.vanish()
    topics.append_sync(connection, topic, [Message(n) for n in range(10)])
    async with reading(topics_url, "single", "billing", quick(max_attempts=2)) as member:
        assert numbers(await member.collect(10)) == list(range(10))
    assert dead(connection) == {}
