"""Whether the broker is there, by those who send."""

import logging

import pytest

from headwater.errors import BrokerError, BrokerUnavailable
from headwater.outbox.relay.availability import Availability
from headwater.outbox.relay.counts import Counts

AWAY = BrokerUnavailable("away")


async def test_who_has_lost_the_broker_finds_it_again_and_no_other_for_him(caplog):
    caplog.set_level(logging.INFO)
    availability = Availability(counts := Counts())
    availability.found()
    availability.lost(AWAY, "publisher")
    availability.found("retry")
    assert not availability.is_up
    availability.lost(AWAY, "retry")
    availability.found("publisher")
    assert not availability.is_up
    availability.found("retry")
    assert availability.is_up
    assert counts.is_broker_up
    assert len(caplog.messages) == 2, "that it is away, and that it is back"


async def test_what_no_waiting_cures_is_raised_until_we_were_let_in_once():
    availability = Availability(Counts())
    with pytest.raises(BrokerError, match="who are you"):
        availability.lost(BrokerError("who are you"))
    assert not availability.is_up
    availability.found()
    assert availability.is_up
    availability.lost(BrokerError("who are you"))
    assert not availability.is_up


class Checked:
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


async def test_a_broker_that_is_away_at_first_is_waited_for_and_one_that_refuses_us_is_not(caplog):
    availability, broker = Availability(counts := Counts()), Checked(AWAY, AWAY, BrokerError("who are you"), None)
    await availability.meet(broker, "publisher")
    assert not await availability.ask(broker, "publisher")
    assert (counts.is_broker_up, len(caplog.messages)) == (False, 1)
    with pytest.raises(BrokerError, match="who are you"):
        await availability.meet(broker, "publisher")
    assert await availability.ask(broker, "publisher")
    assert counts.is_broker_up


async def test_a_relay_that_is_started_again_has_to_find_the_broker_again():
    counts = Counts()
    Availability(counts).found()
    Availability(counts)
    assert not counts.is_broker_up
