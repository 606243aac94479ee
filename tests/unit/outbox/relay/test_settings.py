"""What settings of a relay are refused."""

from datetime import timedelta

import pytest

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.brokers.registry import NatsMessages
from headwater.errors import SettingsError
from headwater.outbox.relay.confirming import with_timeout
from headwater.outbox.relay.settings import RelaySettings


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"window": 0}, "window of the relay is 0; give more"),
        ({"quick_retries": -1}, "quick_retries"),
        ({"lease": timedelta(0)}, "lease of the relay is 0 s"),
        ({"confirm_timeout": timedelta(seconds=15)}, "make it 32 s or longer"),
        ({"lease": timedelta(seconds=10)}, "too short for a confirm_timeout of 10 s"),
        ({"longest_wait": timedelta(milliseconds=1)}, "shorter than retry_wait"),
        ({"send_every": timedelta(seconds=1)}, "shorter than send_every"),
        ({"partition_length": timedelta(minutes=1)}, "one hour or longer"),
        ({"partitions_ahead": timedelta(days=-1)}, "not negative"),
        ({"lanes": 5000}, "give fewer"),
        ({"retention": timedelta(0)}, "retention of the relay is 0 s"),
    ],
)
def test_what_cannot_work_is_refused(wrong, said):
    with pytest.raises(SettingsError, match=said):
        RelaySettings(**wrong)


def test_the_numbers_of_the_original_are_settings():
    RelaySettings(
        intake_events=10_000,
        retry_events=20_000,
        save_events=20_000,
        quick_retries=2,
        save_rows=10_000,
        save_every=timedelta(minutes=1),
        revive_every=timedelta(minutes=5),
    )


def test_without_order_there_are_no_lanes():
    assert RelaySettings().lane_count == 0
    assert RelaySettings(order_by_key=True, lanes=4).lane_count == 4


def test_a_broker_waits_no_longer_for_a_confirm_than_the_relay_says():
    rabbitmq = with_timeout(RabbitmqAccess(url="amqp://localhost"), timedelta(seconds=10))
    assert isinstance(rabbitmq, RabbitmqAccess)
    assert rabbitmq.timeout == timedelta(seconds=10)
    quick = NatsMessages(access=NatsAccess(url="nats://localhost", timeout=timedelta(seconds=3)))
    nats = with_timeout(quick, timedelta(seconds=10))
    assert isinstance(nats, NatsMessages)
    assert nats.access.timeout == timedelta(seconds=3)
