"""Whether the broker is there, by those who send."""

import pytest

from headwater.errors import BrokerError, BrokerUnavailable
from headwater.outbox.relay.availability import Availability
from headwater.outbox.relay.counts import Counts

AWAY = BrokerUnavailable("away")


async def test_who_has_lost_the_broker_finds_it_again_and_no_other_for_him(caplog):
    availability = Availability(counts := Counts())
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
    assert availability.is_up
    availability.found()
    availability.lost(BrokerError("who are you"))
    assert not availability.is_up
