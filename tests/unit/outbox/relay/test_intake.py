"""Where events wait after the commit."""

import asyncio

from headwater.outbox.relay.intake import Intake
from tests.support.outbox.relay_entries import entry

BYTES = 1 << 20


async def test_it_says_whether_there_is_room_and_never_refuses():
    intake = Intake(3, BYTES)
    assert intake.has_room(3)
    assert not intake.has_room(4)
    intake.put([entry("a"), entry("b")])
    assert intake.has_room(1)
    assert not intake.has_room(2)
    intake.put([entry("c"), entry("d")])
    assert not intake.has_room(1)
    assert [one.id for one in await intake.take(10)] == ["a", "b", "c", "d"]
    assert intake.has_room(3)


async def test_payloads_count_as_well_as_events_and_no_longer_once_they_are_taken():
    intake = Intake(100, 3)
    intake.put([entry("a"), entry("b")])
    assert not intake.has_room(1), "there are 4 bytes of payloads"
    taken = await intake.take(10)
    assert intake.has_room(1)
    intake.put_back(taken)
    assert not intake.has_room(1)
    assert len(intake.take_expired(2000.0)) == 2
    assert intake.has_room(1)
    intake.put(taken)
    intake.take_all()
    assert intake.has_room(1)


async def test_all_that_waits_is_taken_at_once_up_to_a_number():
    intake = Intake(100, BYTES)
    intake.put([entry(str(number)) for number in range(5)])
    assert [one.id for one in await intake.take(3)] == ["0", "1", "2"]
    assert [one.id for one in await intake.take(3)] == ["3", "4"]


async def test_the_reader_is_woken_by_any_thread():
    intake = Intake(100_000, BYTES)
    wanted = 4 * 500

    async def read() -> int:
        seen = 0
        while seen < wanted:
            seen += len(await intake.take(50))
        return seen

    def write() -> None:
        for number in range(500):
            intake.put([entry(str(number))])

    reader = asyncio.create_task(read())
    await asyncio.gather(*(asyncio.to_thread(write) for _ in range(4)))
    async with asyncio.timeout(10):
        assert await reader == wanted


async def test_what_could_not_be_sent_comes_back_to_the_front_also_where_there_is_no_room():
    intake = Intake(1, BYTES)
    intake.put([entry("c")])
    intake.put_back([entry("a"), entry("b")])
    assert [one.id for one in await intake.take(10)] == ["a", "b", "c"]


async def test_what_is_no_longer_ours_is_taken_out_from_the_front():
    intake = Intake(10, BYTES)
    intake.put([entry("a", deadline=1.0), entry("b", deadline=2.0), entry("c", deadline=9.0)])
    assert [one.id for one in intake.take_expired(2.0)] == ["a", "b"]
    assert [one.id for one in intake.take_all()] == ["c"]


def test_a_loop_that_has_ended_is_no_error_for_those_who_put_something_in():
    async def made() -> Intake:
        return Intake(10, BYTES)

    intake = asyncio.run(made())
    intake.put([entry()])
    assert len(intake) == 1
