"""How a producer gathers messages: who waits, who goes together, and what each is told."""

import asyncio
from datetime import timedelta

import pytest

from headwater.errors import SettingsError, TopicError
from headwater.topics import ProducerSettings
from headwater.topics.encoded import Encoded
from headwater.topics.gather import MUCH_BYTES, Gathering, settle
from headwater.topics.places import Places


def messages(count=1, size=10, key=None):
    return Encoded.of([(bytes(size), key, b"", size)] * count)


async def put(waiting, count, *, key=None):
    """So many, each half of what is much."""
    for _ in range(count):
        await waiting.put(messages(1, MUCH_BYTES // 2, key))


async def begun(*takings):
    """Tasks for these, each of which waits."""
    tasks = [asyncio.create_task(taking) for taking in takings]
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    return tasks


def gathering(**settings):
    return Gathering(ProducerSettings(**settings))


async def test_all_that_waits_is_taken_at_once_up_to_the_bytes_of_a_batch():
    waiting = gathering(batch_bytes=25)
    for _ in range(4):
        await waiting.put(messages())
    await waiting.put(messages(1, 100))
    assert [len(await waiting.take()) for _ in range(3)] == [2, 2, 1]


async def test_one_who_takes_waits_for_the_first_message():
    waiting = gathering()
    taking = asyncio.create_task(waiting.take())
    await asyncio.sleep(0)
    assert not taking.done()
    await waiting.put(messages())
    assert len(await taking) == 1


async def test_those_who_linger_take_what_comes_meanwhile_and_no_longer_than_until_the_batch_is_full():
    waiting = gathering(linger=timedelta(hours=1), batch_bytes=25)
    taking = asyncio.create_task(waiting.take())
    for _ in range(2):
        await waiting.put(messages())
        await asyncio.sleep(0)
        assert not taking.done()
    await waiting.put(messages())
    assert len(await taking) == 2


async def test_lingering_ends_with_its_time_and_with_the_close():
    waiting = gathering(linger=timedelta(milliseconds=1))
    await waiting.put(messages())
    assert len(await waiting.take()) == 1
    waiting = gathering(linger=timedelta(hours=1))
    await waiting.put(messages())
    taking = asyncio.create_task(waiting.take())
    await asyncio.sleep(0)
    waiting.close()
    assert len(await taking) == 1


@pytest.mark.parametrize("limit", [{"waiting_messages": 2}, {"waiting_bytes": 20}])
async def test_who_has_no_room_waits_until_some_is_taken(limit):
    waiting = gathering(**limit)
    for _ in range(2):
        await waiting.put(messages())
    blocked = asyncio.create_task(waiting.put(messages()))
    await asyncio.sleep(0)
    assert not blocked.done()
    assert len(await waiting.take()) == 2
    await blocked
    assert len(await waiting.take()) == 1


async def test_what_waits_for_room_is_taken_also_after_the_close():
    waiting = gathering(waiting_messages=1)
    await waiting.put(messages())
    blocked = asyncio.create_task(waiting.put(messages()))
    await asyncio.sleep(0)
    waiting.close()
    with pytest.raises(TopicError, match="the producer is closed"):
        await waiting.put(messages())
    assert [len(await waiting.take()) for _ in range(3)] == [1, 1, 0]
    await blocked


async def test_all_who_wait_are_told_when_it_fails():
    waiting = gathering(waiting_messages=1)
    placed = await waiting.put(messages())
    blocked = asyncio.create_task(waiting.put(messages()))
    await asyncio.sleep(0)
    waiting.fail(TopicError("lost"))
    for told in (placed, blocked):
        with pytest.raises(TopicError, match="lost"):
            await told


async def test_one_who_was_cancelled_is_not_sent():
    waiting = gathering()
    cancelled, kept = await waiting.put(messages()), await waiting.put(messages())
    cancelled.cancel()
    (sending,) = await waiting.take()
    assert sending.placed is kept


async def test_while_one_is_at_work_another_helps_when_there_is_much():
    waiting = gathering()
    (helping,) = await begun(waiting.help())
    await put(waiting, 1)
    assert len(await waiting.take()) == 1
    await put(waiting, 1)
    await asyncio.sleep(0)
    assert not helping.done()
    await put(waiting, 2)
    assert len(await helping) == 3


async def test_two_who_have_nothing_to_do_share_what_comes():
    waiting = gathering()
    taking, helping = await begun(waiting.take(), waiting.help())
    await put(waiting, 8)
    assert (len(await taking), len(await helping)) == (4, 4)


async def test_what_has_a_key_is_left_to_one_and_keeps_its_order():
    waiting = gathering()
    taking, helping = await begun(waiting.take(), waiting.help())
    for key in (b"a", b"b", b"c"):
        await put(waiting, 1, key=key)
        await put(waiting, 4)
    taken, helped = await taking, await helping
    assert [key for one in taken if not one.is_free for key in one.messages.keys] == [b"a", b"b", b"c"]
    assert all(one.is_free for one in helped)
    assert (len(taken), len(helped)) == (9, 6)


async def test_those_who_help_end_with_the_close_and_leave_nothing_behind():
    waiting = gathering()
    (helping,) = await begun(waiting.help())
    await put(waiting, 1)
    waiting.close()
    assert await helping == []
    assert [len(await waiting.take()) for _ in range(2)] == [1, 0]


async def test_each_sender_is_told_its_own_places():
    waiting = gathering()
    futures = [await waiting.put(messages(count)) for count in (2, 1, 3)]
    batch = await waiting.take()
    futures[1].cancel()
    settle(batch, Places([0] * 6, range(6)))
    assert [place.offset for place in await futures[0]] == [0, 1]
    assert [place.offset for place in await futures[2]] == [3, 4, 5]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("batch_bytes", 0, "batch_bytes of the producer is 0; give 1 or more"),
        ("batch_bytes", True, "batch_bytes of the producer is True; give a whole number"),
        ("linger", 5, "linger of the producer is 5; give a timedelta"),
        ("linger", timedelta(seconds=-1), "linger of the producer is -1 s; give 0 s or more"),
        ("give_up_after", timedelta(0), "give_up_after of the producer is 0 s; give a time that is more than 0 s"),
        ("maintain_every", timedelta(0), "maintain_every of the producer is 0 s; give a time"),
        ("rings", "yes", "rings of the producer is 'yes'; give True or False"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(name, value, said):
    with pytest.raises(SettingsError, match=said):
        ProducerSettings(**{name: value})
