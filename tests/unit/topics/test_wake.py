"""When to look for messages, by the bell and without it."""

import asyncio
from datetime import timedelta

import pytest

from headwater.topics.ear import partitions_of
from headwater.topics.subscribe_settings import SubscriberSettings
from headwater.topics.wake import Wake

SETTINGS = SubscriberSettings(poll_least=timedelta(microseconds=1), poll_longest=timedelta(hours=1))


@pytest.mark.parametrize(("payload", "meant"), [("", []), ("3", [3]), ("0,12", [0, 12]), ("of another release", [])])
def test_a_notification_names_partitions_or_none(payload, meant):
    assert partitions_of(payload) == meant


async def poll(wake: Wake, *, finds: bool) -> None:
    wake.begin()
    wake.answered()
    wake.end(has_found=finds)


async def is_waiting(wake: Wake) -> bool:
    """Whether it waits for longer than a poll would take."""
    waiting = asyncio.create_task(wake.wait())
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    waiting.cancel()
    return not done


async def test_without_a_bell_polls_follow_soon_upon_one_that_found_something():
    wake = Wake(SETTINGS)
    await poll(wake, finds=True)
    assert not await is_waiting(wake)


async def test_where_messages_come_with_the_bell_nobody_looks_without_it():
    wake = Wake(SETTINGS)
    wake._rung.set()
    await poll(wake, finds=True)
    await poll(wake, finds=False)
    assert await is_waiting(wake)
    wake._rung.set()
    assert not await is_waiting(wake)


async def test_what_is_coming_is_looked_for_without_the_bell():
    wake = Wake(SETTINGS)
    wake._rung.set()
    await poll(wake, finds=True)
    await poll(wake, finds=False)
    assert await is_waiting(wake)
    wake.begin()
    wake.answered()
    wake.end(has_found=False, is_coming=True)
    assert not await is_waiting(wake)


async def test_what_is_coming_is_looked_for_less_and_less_often():
    wake = Wake(SETTINGS)
    for _ in range(10):
        wake.begin()
        wake.answered()
        wake.end(has_found=False, is_coming=True)
        await wake.wait()
    assert wake._wait == wake._least * 2**10


async def test_a_message_that_came_without_the_bell_ends_that():
    wake = Wake(SETTINGS)
    wake._rung.set()
    await poll(wake, finds=True)
    await poll(wake, finds=True)
    assert not await is_waiting(wake)
