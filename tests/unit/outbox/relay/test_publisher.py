"""What is sent, and that nothing stays in memory that nobody has."""

import asyncio

import pytest

from headwater.brokers.base import Left, Offered, Refused
from headwater.errors import BrokerError, HeadwaterError
from headwater.outbox.relay.availability import Availability
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.database import Database
from headwater.outbox.relay.failures import Failures
from headwater.outbox.relay.intake import Intake
from headwater.outbox.relay.ledger import Ledger
from headwater.outbox.relay.outcome import Judge
from headwater.outbox.relay.publisher import Desk, Publisher, is_answered
from headwater.outbox.relay.retry import RetryQueue, Suspects
from headwater.outbox.relay.saver import Saver
from headwater.outbox.relay.session import Session
from headwater.outbox.relay.settings import RelaySettings
from tests.support.outbox.relay_entries import entry

SETTINGS = RelaySettings()


class Failing:
    """A broker of which every offer fails in one way."""

    def __init__(self, error: Exception) -> None:
        self._error = error

        self.asked = asyncio.Event()

    async def offer(self, make):
        self.asked.set()
        raise self._error


def prepared(broker):
    counts, ledger, suspects, intake = Counts(), Ledger(), Suspects(), Intake(100, 1 << 20)
    retries = RetryQueue(100, 1 << 20, suspects)
    saver = Saver(Session("", Database(counts)), "me", SETTINGS, ledger, counts)
    failures = Failures(asyncio.get_running_loop().call_later)
    desk = Desk(Judge(SETTINGS), saver, retries, suspects, ledger, failures, counts)
    one = entry("a", deadline=float("inf"))
    ledger.add(one)
    intake.put([one])
    return Publisher(intake, broker, desk, Availability(counts), SETTINGS, counts), intake, ledger


async def test_what_an_unexpected_failure_has_taken_is_in_memory_no_more_so_that_it_is_found_in_the_table():
    publisher, intake, ledger = prepared(Failing(HeadwaterError("of no known kind")))
    with pytest.raises(HeadwaterError, match="of no known kind"):
        await publisher.run()
    assert (len(intake), len(ledger)) == (0, 0)


async def test_what_was_put_back_stays_in_memory_also_when_the_broker_does_not_let_us_in():
    publisher, intake, ledger = prepared(broker := Failing(BrokerError("who are you")))
    running = asyncio.create_task(publisher.run())
    for _ in range(2):
        await broker.asked.wait()
        broker.asked.clear()
    assert not running.done(), "it goes on"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (len(intake), len(ledger)) == (1, 1)


async def test_what_was_under_way_when_it_was_stopped_is_still_known():
    publisher, _, ledger = prepared(broker := Silent())
    running = asyncio.create_task(publisher.run())
    await broker.asked.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert len(ledger) == 1


class Silent:
    """A broker that never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def offer(self, make):
        self.asked.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        (Offered(1, left=(Left(0, "gone", was_sent=True),)), True),
        (Offered(0, refused=(Refused(0, "no"),), left=(Left(1, "gone", was_sent=True),)), True),
        (Offered(0, left=(Left(0, "full", was_sent=True, was_answered=True), Left(1, "gone", was_sent=True))), True),
        (Offered(0, left=(Left(0, "gone", was_sent=True), Left(1, "gone", was_sent=False))), False),
    ],
)
def test_a_broker_is_there_if_it_had_a_word_on_any_message(offered, expected):
    assert is_answered(offered, 2) is expected
