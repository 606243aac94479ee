"""Whether the broker is there, by those who send."""

import logging

import pytest

from headwater.errors import BrokerError, BrokerUnavailable
from headwater.outbox.relay.availability import Availability
from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.thread import BrokerThread

AWAY, REFUSAL = BrokerUnavailable("away"), BrokerError("who are you")


async def test_who_has_lost_the_broker_finds_it_again_and_no_other_for_him(caplog):
    caplog.set_level(logging.INFO)
    availability = Availability(counts := Counts())
    availability.found()
    availability.lost(AWAY, "publisher")
    availability.found("retry")
    seen = [availability.is_up]
    availability.lost(AWAY, "retry")
    availability.found("publisher")
    seen.append(availability.is_up)
    availability.found("retry")
    assert [*seen, availability.is_up] == [False, False, True]
    assert counts.is_broker_up
    assert len(caplog.messages) == 2, "that it is away, and that it is back"


async def test_that_the_broker_does_not_let_us_in_is_said_once_also_when_it_was_away_before(caplog):
    caplog.set_level(logging.INFO)
    availability = Availability(counts := Counts())
    for error in (AWAY, REFUSAL, REFUSAL):
        availability.lost(error, "publisher")
        assert (availability.is_up, counts.is_broker_up) == (False, False)
    availability.found("publisher")
    assert (availability.is_up, counts.is_broker_up) == (True, True)
    assert [message.split(": ")[-1] for message in caplog.messages] == [
        "away",
        "who are you",
        "the broker is back, and what waits in the outbox is sent",
    ]


async def test_one_that_does_not_let_us_in_is_asked_less_often_than_one_that_is_away():
    availability = Availability(Counts())
    longest = []
    for error in (AWAY, REFUSAL, AWAY):
        availability.lost(error, "publisher")
        longest.append(availability.pause(100, chance=1.0))
        assert availability.pause(100, chance=0.0) == 0
    assert longest == [2, 10, 2]


class Checked(BrokerThread):
    """A broker of which each check ends in the next of some ways."""

    def __init__(self, *errors):
        self._errors = list(errors)

    async def check(self):
        if (error := self._errors.pop(0)) is not None:
            raise error


async def test_a_broker_is_not_known_to_be_there_before_it_was_reached_and_that_is_no_return(caplog):
    caplog.set_level(logging.INFO)
    availability = Availability(counts := Counts())
    assert (availability.is_up, counts.is_broker_up) == (False, False)
    await availability.meet(Checked(None), "publisher")
    assert (availability.is_up, counts.is_broker_up) == (True, True)
    assert caplog.messages == []


async def test_a_broker_that_is_away_at_first_is_waited_for_and_one_that_refuses_us_at_the_start_is_not(caplog):
    availability, broker = Availability(counts := Counts()), Checked(AWAY, AWAY, REFUSAL, REFUSAL, None)
    await availability.meet(broker, "publisher")
    assert not await availability.ask(broker, "publisher")
    assert (counts.is_broker_up, len(caplog.messages)) == (False, 1)
    with pytest.raises(BrokerError, match="who are you"):
        await availability.meet(broker, "publisher")
    assert not await availability.ask(broker, "publisher")
    assert await availability.ask(broker, "publisher")
    assert counts.is_broker_up


async def test_a_relay_that_is_started_again_has_to_find_the_broker_again():
    counts = Counts()
    Availability(counts).found()
    Availability(counts)
    assert not counts.is_broker_up
