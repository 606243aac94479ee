"""How often the table is searched, and for how much at a time."""

import asyncio
import time
from datetime import timedelta

import pytest

from headwater.outbox.relay.availability import Availability
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.ledger import Ledger
from headwater.outbox.relay.retry import RetryQueue, Suspects
from headwater.outbox.relay.reviver import Reviver, least_pause, next_limit
from headwater.outbox.relay.session import Session
from headwater.outbox.relay.settings import RelaySettings

SETTINGS = RelaySettings(send_every=timedelta(milliseconds=10), lease=timedelta(seconds=30))


@pytest.mark.parametrize(("seconds", "pause"), [(0.0, 0.01), (0.001, 0.01), (0.3, 1.2), (20.0, 30.0)])
def test_a_search_that_takes_long_is_followed_by_a_longer_pause(seconds, pause):
    assert least_pause(seconds, SETTINGS) == pytest.approx(pause)


def test_claims_grow_to_what_the_settings_say_or_to_what_payloads_allow():
    assert next_limit(100, 100, 1000) == 200
    assert next_limit(800, 800, 1000) == 1000
    assert next_limit(100, 100 << 20, 1000) == 16
    assert next_limit(1, 100 << 20, 1000) == 1


class Slow(Session):
    """A session of which each search finds nothing, and takes its time by a clock of its own."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self.now = seconds, 1000.0

    def monotonic(self) -> float:
        return self.now

    async def open(self):
        return

    async def fetch(self, statement):
        self.now += self._seconds
        return []


async def test_one_who_is_woken_all_the_time_searches_a_fifth_of_it_at_the_most(monkeypatch):
    session, enough = Slow(0.3), asyncio.Event()
    pauses: list[float] = []
    availability = Availability(counts := Counts())
    availability.found()
    made = Reviver(session, "me", SETTINGS, RetryQueue(10, 1000, Suspects()), Ledger(), availability, counts)
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        made.wake()
        if len(pauses) == 3:
            enough.set()
        await sleep(0)

    monkeypatch.setattr(time, "monotonic", session.monotonic)
    monkeypatch.setattr(asyncio, "sleep", noted)
    running = asyncio.create_task(made.run())
    await enough.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert pauses[:3] == pytest.approx([1.2, 1.2, 1.2])
