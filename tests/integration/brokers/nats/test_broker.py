"""What is JetStream's own; what all brokers do alike is in the conformance suite."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from headwater.brokers.base import Offered, Published
from headwater.brokers.nats import Link, NatsAccess, stream_info
from headwater.brokers.nats.broker import NatsBroker, NatsBrokerSettings
from headwater.brokers.nats.streams import StreamLimits, call
from headwater.errors import BrokerUnavailable, SettingsError
from tests.conformance.broker_contract import message, messages, numbered
from tests.support.brokers.nats_messages import Stream, fresh_stream
from tests.support.servers.tcp_proxy import Proxy


@pytest.fixture
def open_broker(access) -> Iterator[Callable[..., NatsBroker]]:
    with ExitStack() as stack:

        def opened(given: NatsAccess = access, **settings: Any) -> NatsBroker:
            return stack.enter_context(closing(NatsBroker(given, NatsBrokerSettings(**settings))))

        yield opened


@pytest.fixture
def fresh_name(access) -> Iterator[str]:
    """Of a stream that is not there yet, and is deleted at the end."""
    name = f"S{uuid.uuid4().hex}"
    yield name
    with Link(access) as link:
        if stream_info(link, name) is not None:
            call(link, f"STREAM.DELETE.{name}", {})


def test_messages_of_many_subjects_of_a_stream_are_stored_in_the_order_of_the_call(open_broker, stream):
    rows = [message(f"kind{number % 7}", b"%d" % number) for number in range(1000)]
    assert open_broker(subject=f"{stream.name}.{{topic}}").publish(messages(*rows)) == Published(1000)
    found = stream.messages()
    assert [one.payload for one in found] == [row["payload"] for row in rows]
    assert [one.subject for one in found] == [stream.subject(row["topic"]) for row in rows]


def test_messages_of_several_streams_that_are_there_already_are_known_in_each(access, open_broker):
    """The numbers of streams have nothing to do with one another."""
    broker = open_broker()
    with fresh_stream(access) as one, fresh_stream(access) as other:
        broker.publish(messages(*numbered(other.subject("a"), 50)))
        rows = [
            row
            for pair in zip(numbered(one.subject("a"), 100), numbered(other.subject("b"), 100), strict=True)
            for row in pair
        ]
        assert broker.publish(messages(*rows[:100])) == Published(100)
        assert broker.publish(messages(*rows)) == Published(100, 100)
        assert one.payloads() == [row["payload"] for row in rows[::2]]
        assert other.payloads()[50:] == [row["payload"] for row in rows[1::2]]


def test_a_stream_is_made_for_subjects_that_none_stores(access, open_broker, fresh_name):
    settings: dict[str, Any] = {"stream": fresh_name, "limits": StreamLimits(max_age=timedelta(hours=1))}
    broker = open_broker(**settings)
    rows = [message(f"{fresh_name}.a", b"1"), message(f"{fresh_name}.b", b"2")]
    assert broker.publish(messages(*rows)) == Published(2)
    assert broker.publish(messages(message(f"{fresh_name}.c", b"3"))) == Published(1)
    made = Stream(access, fresh_name)
    assert sorted(made.info().subjects) == [f"{fresh_name}.{name}" for name in "abc"]
    assert made.info().config["max_age"] == 3600 * 10**9
    assert made.payloads() == [b"1", b"2", b"3"]


def test_a_stream_is_made_with_the_subjects_that_are_named(access, open_broker, fresh_name):
    broker = open_broker(stream=fresh_name, stream_subjects=[f"{fresh_name}.>"])
    published = broker.publish(messages(message(f"{fresh_name}.a.b"), message(f"other.{fresh_name}")))
    assert (published.stored, [one.index for one in published.refused]) == (1, [1])
    assert f"add it to stream_subjects of '{fresh_name}'" in published.refused[0].reason
    assert Stream(access, fresh_name).info().subjects == (f"{fresh_name}.>",)


def test_a_subject_that_another_stream_has_stays_there(open_broker, stream, access, fresh_name):
    assert open_broker(stream=fresh_name).publish(messages(message(stream.subject("a")))) == Published(1)
    assert stream.count() == 1
    with Link(access) as link:
        assert stream_info(link, fresh_name) is None


def test_a_subject_without_stream_is_refused_with_the_remedy(open_broker):
    (refused,) = open_broker().publish(messages(message("nobody.here"))).refused
    assert refused.reason == (
        "unroutable: no stream stores subject 'nobody.here'; make one, or set `stream` for Headwater to make it"
    )


def test_a_stream_that_was_deleted_is_found_out(access, hasty, open_broker, stream):
    broker = open_broker(hasty)
    assert broker.publish(messages(message(stream.subject("a")))) == Published(1)
    stream.delete()
    with pytest.raises(BrokerUnavailable, match="no stream listens"):
        broker.publish(messages(message(stream.subject("a"))))
    published = broker.publish(messages(message(stream.subject("a"))))
    assert (published.stored, published.refused[0].index) == (0, 0)


@pytest.mark.parametrize("topic", ["a b", "$JS.API.STREAM.NAMES", "a.*", ""])
def test_a_topic_that_is_no_subject_is_refused_and_the_others_are_stored(open_broker, stream, topic):
    rows = [message(stream.subject("a"), b"1"), message(topic), message(stream.subject("a"), b"2")]
    published = open_broker().publish(messages(*rows))
    assert (published.stored, [one.index for one in published.refused]) == (2, [1])
    assert stream.payloads() == [b"1", b"2"]


def test_headers_that_give_orders_to_the_server_are_refused_and_the_others_are_stored(open_broker, stream):
    orders = {"Nats-Expected-Last-Sequence": "77"}
    rows = [message(stream.subject("a"), b"1"), message(stream.subject("a"), headers=orders), message(stream.subject("b"))]
    published = open_broker().publish(messages(*rows))
    assert (published.stored, [one.index for one in published.refused]) == (2, [1])
    assert stream.count() == 2


def test_nothing_is_connected_before_something_is_published():
    NatsBroker(NatsAccess(url="nats://127.0.0.1:1")).close()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"subject": "{table}"}, "names {table}"),
        ({"source": ""}, "source of CloudEvents"),
        ({"stream": "a.b"}, "no name of a stream"),
        ({"stream": ""}, "no name of a stream"),
        ({"stream_subjects": ["a.>"]}, "need a stream"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, reason):
    with pytest.raises(SettingsError, match=reason):
        NatsBrokerSettings(**settings)


def test_a_full_stream_holds_up_no_message_of_a_healthy_one(access, open_broker):
    with fresh_stream(access) as full, fresh_stream(access) as healthy:
        full.update(max_msgs=1, discard="new")
        broker = open_broker()
        assert broker.offer(messages(message(full.subject("a")))) == Offered(1)
        rows = [
            row
            for pair in zip(numbered(full.subject("a"), 300), numbered(healthy.subject("a"), 300), strict=True)
            for row in pair
        ]
        offered = broker.offer(messages(*rows))
        assert (offered.stored, [one.index for one in offered.left]) == (300, list(range(0, 600, 2)))
        assert {(one.was_sent, one.was_answered) for one in offered.left} == {(True, True)}
        assert "raise its limits" in offered.left[0].reason
        assert healthy.payloads() == [row["payload"] for row in rows[1::2]]
        full.update(max_msgs=-1)
        again = [rows[one.index] for one in offered.left]
        assert broker.offer(messages(*again)) == Offered(300)


def test_a_stream_that_was_deleted_leaves_its_messages_and_the_next_offer_finds_it_out(open_broker, stream):
    broker = open_broker()
    row = message(stream.subject("a"))
    assert broker.offer(messages(row)) == Offered(1)
    stream.delete()
    offered = broker.offer(messages(row))
    assert [(one.index, one.was_sent) for one in offered.left] == [(0, True)]
    assert "unroutable" in broker.offer(messages(row)).refused[0].reason


def test_an_offer_that_is_never_answered_is_left_after_the_timeout(access, open_broker, stream):
    rows = numbered(stream.subject("a"), 20)
    with Proxy(access.url) as proxy:
        broker = open_broker(replace(access, url=proxy.url, timeout=timedelta(seconds=1)))
        assert broker.offer(messages(*rows[:10])) == Offered(10)
        proxy.freeze()
        offered = broker.offer(messages(*rows[10:]))
        assert [(one.index, one.was_sent) for one in offered.left] == [(index, True) for index in range(10)]
        assert "no answer" in offered.left[0].reason
        assert broker.offer(messages(*rows[10:])) == Offered(10)
    assert sorted(stream.payloads()) == [row["payload"] for row in rows]
