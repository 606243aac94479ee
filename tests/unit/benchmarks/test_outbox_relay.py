"""The benchmark of the relay inside of an application: what it compares, and a reference that is what it says it is."""

from unittest.mock import Mock
from uuid import UUID

import pytest

from benchmarks.outbox_relay.__main__ import PARTS
from benchmarks.outbox_relay.burst import Round, Turn, median_over
from benchmarks.outbox_relay.comparison_arms import Watched
from benchmarks.outbox_relay.reference_relay import UPSTREAM, Confirms, Event, ReferenceSettings
from benchmarks.outbox_relay.testbed import Place, text_of
from headwater.brokers.base import Broker, Left, Offered, Refused
from tests.conformance.broker_contract import message, messages


def test_each_group_of_bars_has_a_part():
    assert [*PARTS] == ["burst", "requests", "latency", "faults"]


def test_an_event_has_about_a_hundred_bytes():
    assert 90 <= len(text_of(0)) <= len(text_of(49_999)) <= 110


def test_both_arms_publish_to_the_same_exchange_by_the_type_of_the_event():
    access = Place("amqp://127.0.0.1", "turn0001", ("turn0001",)).messages
    assert (access.exchange, access.routing_key, access.mandatory) == ("turn0001", "{type}", True)


def sent(settings: ReferenceSettings, count: int) -> tuple[Confirms, list[Event]]:
    confirms, events = Confirms(settings), [Event(UUID(int=number), "t", "{}") for number in range(count)]
    for event in events:
        confirms.publish(event, lambda: None)
    return confirms, events


def test_the_numbers_of_the_original_are_the_default():
    settings = ReferenceSettings()
    assert (settings.event_places, settings.retry_places, settings.save_rows) == (10_000, 20_000, 10_000)
    assert settings.save_every_seconds == 60


def test_an_event_is_known_before_it_is_sent():
    confirms, event = Confirms(ReferenceSettings()), Event(UUID(int=1), "t", "{}")
    answers: list[list[Event]] = []
    confirms.publish(event, lambda: answers.append(confirms.settle(1, is_multiple=False)))
    assert answers == [[event]]


def test_a_confirm_of_many_settles_all_before_it_and_one_of_one_only_that():
    confirms, events = sent(ReferenceSettings(), 5)
    assert confirms.settle(2, is_multiple=False) == [events[1]]
    assert confirms.settle(4, is_multiple=True) == [events[0], events[2], events[3]]
    assert list(confirms.waiting.values()) == [events[4]]


def test_as_coded_upstream_a_confirm_is_taken_for_the_event_before_and_the_last_one_never_has_any():
    confirms, events = sent(ReferenceSettings(is_off_by_one=True), 3)
    assert confirms.settle(1, is_multiple=False) == []
    assert confirms.settle(2, is_multiple=False) == [events[0]]
    assert confirms.settle(3, is_multiple=False) == [events[1]]
    assert list(confirms.waiting.values()) == [events[2]]


def test_as_coded_upstream_a_confirm_of_many_settles_one():
    confirms, events = sent(ReferenceSettings(ignores_multiple=True), 3)
    assert confirms.settle(3, is_multiple=True) == [events[2]]
    assert len(confirms.waiting) == 2
    assert UPSTREAM.is_off_by_one
    assert UPSTREAM.ignores_multiple


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    def round_of(relay: float, reference: float) -> Round:
        return Round(Turn(relay, 0), Turn(reference, 0), Turn(1, 0), Turn(1, 0), Turn(1, 0))

    rounds = [round_of(1, 2), round_of(10, 10), round_of(4, 2)]
    assert median_over(rounds, "relay", "reference") == 1.0
    assert rounds[0].over("relay", "reference") == pytest.approx(2)


def test_only_what_is_stored_counts_as_confirmed():
    offered = Offered(1, 0, (Refused(0, "no queue"),), (Left(2, "full", was_sent=True),))
    choosy = Mock(spec=Broker, offer=Mock(return_value=offered))
    confirmed: dict[str, float] = {}
    Watched(choosy, confirmed).offer(messages(*(message("t", id=id) for id in "abc")))
    assert [*confirmed] == ["b"]
