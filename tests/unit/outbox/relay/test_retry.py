"""Events that wait for another attempt, and those that are suspected to have broken a connection."""

import asyncio

import pytest

from headwater.outbox.relay.retry import RetryQueue, Suspects, sendable
from tests.support.outbox.relay_entries import entry

MIB = 1 << 20


async def test_what_is_due_is_taken_together_up_to_a_number():
    queue = RetryQueue(100, MIB, Suspects())
    queue.put([entry(str(number)) for number in range(5)])
    assert [one.id for one in await queue.take(3)] == ["0", "1", "2"]
    assert [one.id for one in await queue.take(3)] == ["3", "4"]


async def test_what_is_for_later_is_not_taken_before_its_time():
    queue, now = RetryQueue(100, MIB, Suspects()), asyncio.get_running_loop().time()
    assert queue.put_later([(now + 3600, entry("later")), (now - 1, entry("now"))]) == []
    assert [one.id for one in await queue.take(10)] == ["now"]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await queue.take(10)
    assert [one.id for one in queue.take_all()] == ["later"]


async def test_one_who_waits_is_woken_when_something_comes_due():
    queue, now = RetryQueue(100, MIB, Suspects()), asyncio.get_running_loop().time()
    queue.put_later([(now + 0.01, entry("soon"))])
    assert [one.id for one in await queue.take(10)] == ["soon"]


async def test_what_has_no_room_comes_back():
    queue, now = RetryQueue(2, MIB, Suspects()), asyncio.get_running_loop().time()
    rest = queue.put_later([(now, entry(str(number))) for number in range(4)])
    assert [one.id for one in rest] == ["2", "3"]
    assert queue.room == 0


async def test_room_is_waited_for_until_something_is_taken():
    queue = RetryQueue(2, MIB, Suspects())
    queue.put([entry("a"), entry("b")])
    waiting = asyncio.create_task(queue.wait_for_room(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    await queue.take(1)
    await waiting


async def test_what_waits_is_bounded_by_its_bytes_too():
    queue, now = RetryQueue(100, 1000, Suspects()), asyncio.get_running_loop().time()
    assert queue.room == 100
    queue.put([entry("a", payload="x" * 600)])
    assert queue.put_later([(now - 1, entry("b", payload="x" * 600)), (now, entry("c"))]) != []
    assert queue.room == 0
    waiting = asyncio.create_task(queue.wait_for_room(1))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert [one.id for one in await queue.take(1)] == ["a"]
    await waiting
    assert queue.room == 99


@pytest.mark.parametrize("way", ["take", "expire", "take all"])
async def test_whichever_way_it_is_taken_what_left_takes_no_room(way):
    queue, now = RetryQueue(100, 1000, Suspects()), asyncio.get_running_loop().time()
    for _ in range(3):
        queue.put([entry("a", payload="x" * 999)])
        assert queue.put_later([(now - 1, entry("b", payload="x" * 999))]) == []
        assert queue.room == 0
        match way:
            case "take":
                assert len(await queue.take(10)) == 2
            case "expire":
                await queue.take(1)
                assert len(queue.take_expired(1000.0)) == 1
            case _:
                assert len(queue.take_all()) == 2
        assert queue.room == 100


async def test_suspects_go_in_smaller_company_each_time_and_at_last_alone():
    suspects = Suspects()
    queue = RetryQueue(10_000, MIB, suspects)
    entries = [entry(str(number)) for number in range(1000)]
    sizes = []
    for _ in range(4):
        queue.put(entries)
        sizes.append(len(await queue.take(1000)))
        queue.take_all()
        suspects.blame(entries)
    assert sizes == [1000, 256, 16, 1]
    suspects.clear(entries)
    queue.put(entries)
    assert len(await queue.take(1000)) == 1000


async def test_suspects_hold_up_nobody_and_are_not_forgotten():
    suspects = Suspects()
    queue = RetryQueue(100, MIB, suspects)
    suspects.blame([entry("bad")] * 3)
    queue.put([entry("bad"), entry("good"), entry("better")])
    taken = [[one.id for one in await queue.take(10)] for _ in range(2)]
    assert sorted(taken) == [["bad"], ["good", "better"]]


def test_only_so_many_suspects_are_remembered():
    suspects = Suspects(most=2)
    suspects.blame([entry("a"), entry("b"), entry("c")])
    assert [suspects.level(entry(id_)) for id_ in "abc"] == [0, 1, 1]


async def test_what_is_no_longer_ours_is_taken_out():
    queue = RetryQueue(100, MIB, Suspects())
    queue.put([entry("old", deadline=5.0), entry("new", deadline=50.0)])
    assert [one.id for one in queue.take_expired(10.0)] == ["old"]
    assert [one.id for one in queue.take_all()] == ["new"]


def test_only_what_can_be_confirmed_within_its_lease_is_sent():
    early, late = entry("early", deadline=9.0), entry("late", deadline=20.0)
    assert sendable([early, late], 0.0, 10.0) == ([late], [early])
    assert sendable([late], 0.0, 10.0) == ([late], [])
