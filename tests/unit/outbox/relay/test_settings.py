"""What settings of a relay are refused."""

import re
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
        ({"window": 0}, "window of the relay is 0; give 1 or more"),
        ({"quick_retries": -1}, "quick_retries of the relay is -1; give 0 or more"),
        ({"lease": timedelta(0)}, "lease of the relay is 0 s"),
        ({"confirm_timeout": timedelta(seconds=15)}, "make it 32 s or longer"),
        ({"lease": timedelta(seconds=10)}, "too short for a confirm_timeout of 10 s"),
        ({"longest_wait": timedelta(milliseconds=1)}, "shorter than retry_wait"),
        ({"send_every": timedelta(seconds=1)}, "shorter than send_every"),
        ({"partition_length": timedelta(minutes=1)}, "partition_length of the relay is 60 s; give 3600 s or more"),
        ({"partitions_ahead": timedelta(days=-1)}, "partitions_ahead of the relay is -86400 s; give 0 s or more"),
        ({"lanes": 5000}, "lanes of the relay is 5000; give 1024 or fewer"),
        ({"retention": timedelta(0)}, "retention of the relay is 0 s"),
    ],
)
def test_what_cannot_work_is_refused(wrong, said):
    with pytest.raises(SettingsError, match=said):
        RelaySettings(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"order_by_key": "no"}, "order_by_key of the relay is 'no'; give True or False"),
        ({"skip_existing": 1}, "skip_existing of the relay is 1; give True or False"),
        ({"lease": 5}, "lease of the relay is 5; give a timedelta, such as timedelta(seconds=30)"),
        ({"send_every": None}, "send_every of the relay is None; give a timedelta"),
        ({"retention": "never"}, "retention of the relay is 'never'; give a timedelta, such as timedelta(days=7), or None"),
        ({"window": "500"}, "window of the relay is '500'; give a whole number"),
        ({"window": 0.5}, "window of the relay is 0.5; give a whole number"),
        ({"window": True}, "window of the relay is True; give a whole number"),
    ],
)
def test_a_value_of_another_kind_is_refused(wrong, said):
    with pytest.raises(SettingsError, match=re.escape(said)):
        RelaySettings(**wrong)


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"window": "500", "lease": 5}, ("window", "lease")),
        ({"window": 0, "lease": timedelta(seconds=1)}, ("window", "the lease")),
        ({"send_every": timedelta(seconds=1), "retry_wait": timedelta(hours=1)}, ("send_every_busy", "longest_wait")),
    ],
)
def test_all_that_is_wrong_is_said(wrong, names):
    with pytest.raises(SettingsError) as caught:
        RelaySettings(**wrong)
    assert len(caught.value.faults) == len(names)
    assert all(fault.startswith(f"{name} of") for fault, name in zip(caught.value.faults, names, strict=True))
    assert str(caught.value) == "\n".join(caught.value.faults)


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
