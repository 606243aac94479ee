"""What members of a group ask for together: which of it goes out in one round, and what is whose of the answer."""

import asyncio
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from headwater.errors import ConnectionLost, LeaseLost, TopicError
from headwater.topics.group_statements import Polled
from headwater.topics.rounds import Answer, Ask, Rounds
from headwater.topics.window import Part

AT = datetime(2026, 1, 1, tzinfo=UTC)
PART = Part(0, 1, range(5), [])
OTHER = Part(1, 1, range(5), [])


class Line:
    """Answers statements one by one with what it was given, and notes the parameters of each."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def fetch(self, statement):
        self.asked.append(statement.parameters)
        answer = self.answers.pop(0)
        await self.may_answer.wait()
        if isinstance(answer, BaseException):
            raise answer
        return answer


def polled(ask=None, partition=0, last_offset=0):
    return Polled(None, 7, False, False, ask, partition, last_offset, 1, 0, AT, b"")


def offsets(answer):
    return [(frame.partition, frame.last_offset) for frame in answer.frames]


def busy():
    error = ConnectionLost("a lock")
    error.__cause__ = psycopg.errors.LockNotAvailable()
    return error


async def together(rounds, *asks):
    return await asyncio.gather(*(rounds.ask(ask) for ask in asks), return_exceptions=True)


async def test_what_is_asked_at_once_goes_out_together_and_each_gets_its_own():
    line = Line([polled(0, 0, 5), polled(1, 1, 8), polled(1, 1, 9)])
    first, second, third = await together(
        Rounds(line, 1, 1), Ask({0: 5}, 10, 100), Ask({1: 8}, 20, 200), Ask(settled=[PART])
    )
    assert [offsets(one) for one in (first, second, third)] == [[(0, 5)], [(1, 8), (1, 9)], []]
    assert third == Answer(7, is_paused=False, has_staged=False, frames=[])
    (asked,) = line.asked
    assert {name: asked[name] for name in ("asks", "partitions", "offsets", "mosts", "most_bytes", "settled")} == {
        "asks": "{0,1}",
        "partitions": "{0,1}",
        "offsets": "{5,8}",
        "mosts": "{10,20}",
        "most_bytes": "{100,200}",
        "settled": "{0}",
    }


async def test_what_is_asked_meanwhile_goes_out_with_the_next_round():
    line = Line([polled()], [polled()])
    line.may_answer.clear()
    rounds = Rounds(line, 1, 1)
    first = asyncio.create_task(rounds.ask(Ask()))
    await asyncio.sleep(0)
    later = [asyncio.create_task(rounds.ask(Ask(settled=[part]))) for part in (PART, OTHER)]
    await asyncio.sleep(0)
    line.may_answer.set()
    await asyncio.gather(first, *later)
    assert [asked["settled"] for asked in line.asked] == [None, "{0,1}"]


async def test_those_who_were_cancelled_before_their_round_are_not_asked_for():
    line = Line([polled()], [polled()])
    line.may_answer.clear()
    rounds = Rounds(line, 1, 1)
    first = asyncio.create_task(rounds.ask(Ask()))
    await asyncio.sleep(0)
    second, third = (asyncio.create_task(rounds.ask(Ask(settled=[part]))) for part in (PART, OTHER))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    line.may_answer.set()
    await asyncio.gather(first, third)
    assert line.asked[1]["settled"] == "{1}"


async def test_one_who_is_cancelled_ends_no_round_of_others():
    line = Line([polled(1, 1, 8)])
    line.may_answer.clear()
    rounds = Rounds(line, 1, 1)
    first, second = asyncio.create_task(rounds.ask(Ask())), asyncio.create_task(rounds.ask(Ask({1: 8}, 1, 1)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    line.may_answer.set()
    assert offsets(await second) == [(1, 8)]


async def test_a_refused_commit_is_refused_for_its_own_member_only():
    line = Line(LeaseLost("one of them"), LeaseLost("this one"), [polled()], [polled(0, 2, 3)])
    read, refused, settled = await together(Rounds(line, 1, 1), Ask({2: 3}, 1, 1), Ask(settled=[PART]), Ask(settled=[OTHER]))
    assert offsets(read) == [(2, 3)]
    assert isinstance(refused, LeaseLost) and str(refused) == "this one"
    assert settled == Answer(7, is_paused=False, has_staged=False, frames=[])
    assert [asked["settled"] for asked in line.asked] == ["{0,1}", "{0}", "{1}", None]


async def test_the_only_commit_of_a_round_is_not_tried_again_when_it_is_refused():
    line = Line(LeaseLost("late"))
    (refused,) = await together(Rounds(line, 1, 1), Ask(settled=[PART]))
    assert isinstance(refused, LeaseLost)
    assert len(line.asked) == 1


async def test_one_who_only_reads_is_not_harmed_by_a_refused_commit():
    line = Line(LeaseLost("late"), [polled(0, 2, 3)])
    read, refused = await together(Rounds(line, 1, 1), Ask({2: 3}, 1, 1), Ask(settled=[PART]))
    assert offsets(read) == [(2, 3)]
    assert isinstance(refused, LeaseLost)
    assert [asked["settled"] for asked in line.asked] == ["{0}", None]


async def test_readers_for_whom_a_lock_is_not_to_be_had_are_told():
    line = Line(busy())
    found = await together(Rounds(line, 1, 1), Ask({2: 3}, 1, 1), Ask())
    assert [type(one) for one in found] == [ConnectionLost] * 2
    assert len(line.asked) == 1


async def test_where_all_who_have_asked_are_gone_nothing_is_asked():
    line = Line([polled()])
    rounds = Rounds(line, 1, 1)
    gone = asyncio.create_task(rounds.ask(Ask()))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert isinstance(await rounds.ask(Ask()), Answer)
    assert len(line.asked) == 1


async def test_rounds_that_were_cancelled_before_they_began_are_begun_again():
    rounds = Rounds(Line([polled()]), 1, 1)
    asking = asyncio.create_task(rounds.ask(Ask()))
    await asyncio.sleep(0)
    assert rounds._task is not None
    rounds._task.cancel()
    assert [type(one) for one in await asyncio.gather(rounds.ask(Ask()), asking)] == [Answer] * 2


@pytest.mark.parametrize(("size", "is_cut"), [(99, False), (100, True)])
async def test_what_was_cut_because_it_is_large_may_have_more_behind_it(size, is_cut):
    frame = Polled(None, 7, False, False, 0, 2, 3, 1, 0, AT, b"." * size)
    (answer,) = await together(Rounds(Line([frame]), 1, 1), Ask({2: 3}, 1, 100))
    assert answer.is_cut is is_cut


async def test_a_commit_that_has_to_wait_does_so_beside_the_rounds():
    line = Line(busy(), [polled()])
    (settled,) = await together(Rounds(line, 1, 1), Ask(settled=[PART]))
    assert isinstance(settled, Answer)
    assert [asked["waits_for_others"] for asked in line.asked] == [False, True]


async def test_what_fails_fails_for_all_who_have_asked():
    line = Line(ConnectionLost("gone"))
    found = await together(Rounds(line, 1, 1), Ask(), Ask(settled=[PART]))
    assert [str(one) for one in found] == ["gone", "gone"]


async def test_also_what_nobody_has_thought_of():
    found = await together(Rounds(Line(ZeroDivisionError()), 1, 1), Ask(), Ask())
    assert [type(one) for one in found] == [ZeroDivisionError] * 2


async def test_a_group_that_is_gone_is_none_for_all():
    assert await together(Rounds(Line([]), 1, 1), Ask(), Ask()) == [None, None]


async def test_a_commit_is_tried_again_when_the_connection_is_lost():
    line = Line(ConnectionLost("cut"), [polled()])
    assert await Rounds(line, 1, 1).insist(Ask(settled=[PART]), timedelta(seconds=30)) is not None
    assert [asked["settled"] for asked in line.asked] == ["{0}", "{0}"]


async def test_who_waits_for_a_round_of_a_line_that_is_closed_is_told():
    line = Line([polled()])
    line.may_answer.clear()
    rounds = Rounds(line, 1, 1)
    under_way = asyncio.create_task(rounds.ask(Ask()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting = asyncio.create_task(rounds.ask(Ask()))
    await asyncio.sleep(0)
    await rounds.close()
    for one in (under_way, waiting):
        with pytest.raises(TopicError, match="or its line, is closed"):
            await one
    with pytest.raises(TopicError, match="or its line, is closed"):
        await rounds.ask(Ask())


@pytest.mark.parametrize(("members", "most_bytes"), [(1, 4 << 20), (16, 1 << 20)])
async def test_one_round_brings_no_more_for_many_than_for_a_few(members, most_bytes):
    line = Line([polled()])
    await together(Rounds(line, 1, 1), *(Ask({one: 0}, 1, 4 << 20) for one in range(members)))
    assert line.asked[0]["most_bytes"] == f"{{{','.join([str(most_bytes)] * members)}}}"
