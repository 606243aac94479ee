"""The official SDK against the server of the tests, which proves how we use the SDK and not how Azure behaves."""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from headwater.brokers.base import Offered, Published
from headwater.brokers.servicebus import ServiceBusAccess, ServiceBusBroker
from headwater.errors import BrokerError, BrokerUnavailable
from tests.conformance.broker_contract import CREATED_AT_TEXT, message, messages, numbered
from tests.support.brokers.servicebus_server import Accept, Delay, DropConnection, DropLink, NeverSettle, Reject
from tests.support.brokers.servicebus_server.server import connection_string
from tests.support.waiting import eventually

KIB = 1024


def wide(count, **values):
    """Messages of a KiB, some 190 of which fill a batch."""
    return [{**row, "payload": row["payload"].ljust(KIB)} for row in numbered("orders", count, **values)]


def payloads(double, entity="orders"):
    return [stored.body.strip() for stored in double.messages(entity)]


def expected(count):
    return [b"%06d" % number for number in range(count)]


def test_a_message_has_its_id_session_subject_content_type_event_and_headers(double, broker):
    row = message("orders", b'{"a": 1}', id="i-1", key="k", headers={"traceparent": "00-1", "tenant": "ä"})
    assert broker.publish(messages(row)) == Published(1)
    (stored,) = double.messages("orders")
    assert (stored.id, stored.session, stored.subject, stored.content_type) == (
        "i-1",
        "k",
        "OrderPlaced",
        "application/json",
    )
    assert stored.body == b'{"a": 1}'
    assert stored.properties == {
        "traceparent": "00-1",
        "tenant": "ä",
        "cloudEvents:specversion": "1.0",
        "cloudEvents:id": "i-1",
        "cloudEvents:source": "headwater",
        "cloudEvents:type": "OrderPlaced",
        "cloudEvents:time": CREATED_AT_TEXT,
        "cloudEvents:partitionkey": "k",
    }


def test_a_message_without_key_has_no_session(double, broker):
    broker.publish(messages(message("orders")))
    (stored,) = double.messages("orders")
    assert stored.session is None
    assert "cloudEvents:partitionkey" not in stored.properties


def test_a_header_of_the_user_s_cannot_say_something_else_about_the_event(double, broker):
    broker.publish(messages(message("orders", id="i", headers={"cloudEvents:id": "other"})))
    assert double.messages("orders")[0].properties["cloudEvents:id"] == "i"


def test_many_messages_go_in_full_batches_in_order(double, broker):
    assert broker.publish(messages(*wide(1000))) == Published(1000)
    assert payloads(double) == expected(1000)
    assert max(double.sizes) <= double.max_message_bytes
    # All but the last are so full that no further message would have fit.
    assert min(double.sizes[:-1]) > double.max_message_bytes - 2 * KIB


def test_each_batch_is_of_one_session_and_each_key_is_in_order(double, broker):
    double.session_entities = {"orders"}
    rows = [{**row, "key": f"k{number % 7}"} for number, row in enumerate(wide(2000))]
    assert broker.publish(messages(*rows)) == Published(2000)
    stored = double.messages("orders")
    assert double.transfers == 14
    assert len({(one.transfer, one.session) for one in stored}) == double.transfers
    for key in range(7):
        assert [one.body.strip() for one in stored if one.session == f"k{key}"] == expected(2000)[key::7]


def test_without_sessions_the_order_is_that_of_the_messages(double, access):
    rows = [{**row, "key": f"k{number % 7}"} for number, row in enumerate(numbered("orders", 100))]
    with ServiceBusBroker(replace(access, sessions=False)) as broker:
        assert broker.publish(messages(*rows)) == Published(100)
    assert payloads(double) == expected(100)
    assert {one.session for one in double.messages("orders")} == {None}
    assert double.transfers == 1


def test_a_template_says_which_entity_gets_a_message(double, access):
    rows = [message("a", b"1"), message("b", b"2"), message("a", b"3", type="Bill"), message("a", b"4")]
    with ServiceBusBroker(replace(access, entity="shop-{topic}-{type}")) as broker:
        assert broker.publish(messages(*rows)) == Published(4)
    assert payloads(double, "shop-a-OrderPlaced") == [b"1", b"4"]
    assert payloads(double, "shop-b-OrderPlaced") == [b"2"]
    assert payloads(double, "shop-a-Bill") == [b"3"]


def test_more_entities_than_links_are_kept_are_all_served(double, broker, monkeypatch):
    monkeypatch.setattr("headwater.brokers.servicebus.sender._MAX_LINKS", 2)
    rows = [message(f"e{number}", b"%d" % number) for number in range(4)]
    assert broker.publish(messages(*rows)) == Published(4)
    assert double.connections == 4
    # The last two are still there, and the first is not.
    for entity, connections in (("e3", 4), ("e2", 4), ("e0", 5)):
        assert broker.publish(messages(message(entity))) == Published(1)
        assert double.connections == connections
    assert [len(double.messages(f"e{number}")) for number in range(4)] == [2, 1, 2, 2]


def test_nothing_to_publish_is_done_at_once(double, broker):
    assert broker.publish(messages()) == Published(0)
    assert double.connections == 0


def test_a_message_that_fits_no_batch_is_refused_with_its_size_and_the_others_are_stored(double, broker):
    rows = numbered("orders", 5)
    rows[2]["payload"] = b"x" * double.max_message_bytes
    published = broker.publish(messages(*rows))
    assert (published.stored, [one.index for one in published.refused]) == (4, [2])
    assert f"bytes are more than the {double.max_message_bytes} that a batch may have" in published.refused[0].reason
    assert int(published.refused[0].reason.split()[0]) > double.max_message_bytes
    assert payloads(double) == [b"000000", b"000001", b"000003", b"000004"]


@pytest.mark.parametrize("name", ["key", "id"])
def test_a_key_or_id_that_service_bus_cannot_hold_is_refused_and_the_others_are_stored(double, broker, name):
    rows = numbered("orders", 3)
    rows[1][name] = "x" * 129
    published = broker.publish(messages(*rows))
    assert (published.stored, [one.index for one in published.refused]) == (2, [1])
    assert "128" in published.refused[0].reason
    assert payloads(double) == [b"000000", b"000002"]


@pytest.mark.parametrize("guilty", [[0], [7], [15], [0, 1], [3, 12]])
def test_the_messages_that_the_service_rejects_are_found_in_their_batch_and_the_others_stored_once(double, broker, guilty):
    rows = numbered("orders", 16)
    double.unwanted = {rows[place]["id"] for place in guilty}
    published = broker.publish(messages(*rows))
    assert (published.stored, [one.index for one in published.refused]) == (16 - len(guilty), guilty)
    assert "there is a message that nobody wants" in published.refused[0].reason
    assert payloads(double) == [body for place, body in enumerate(expected(16)) if place not in guilty]


def test_messages_without_key_are_refused_by_an_entity_with_sessions(double, broker):
    double.session_entities = {"orders"}
    rows = [message("orders", b"1", key="k"), message("orders", b"2"), message("orders", b"3", key="k")]
    published = broker.publish(messages(*rows))
    assert (published.stored, [one.index for one in published.refused]) == (2, [1])
    assert "the session id was not set" in published.refused[0].reason
    assert payloads(double) == [b"1", b"3"]


def test_an_entity_that_does_not_exist_has_its_messages_refused_with_the_remedy_and_the_others_are_stored(double, broker):
    double.entities = {"orders"}
    rows = [message("orders", b"1"), message("bills", b"2"), message("orders", b"3"), message("bills", b"4", key="k")]
    published = broker.publish(messages(*rows))
    assert (published.stored, [one.index for one in published.refused]) == (2, [1, 3])
    assert "there is no queue or topic 'bills' at 127.0.0.1" in published.refused[0].reason
    assert "create it" in published.refused[0].reason
    assert payloads(double) == [b"1", b"3"]


def test_a_message_that_names_no_entity_is_refused_and_the_others_are_stored(double, broker):
    published = broker.publish(messages(message(""), message("orders", b"1")))
    assert (published.stored, [one.index for one in published.refused]) == (1, [0])
    assert "names no queue or topic" in published.refused[0].reason


BUSY = Reject("com.microsoft:server-busy")


@pytest.mark.parametrize(
    ("faults", "repeated"),
    [
        pytest.param([Accept(), BUSY, BUSY], 0, id="busy"),
        pytest.param([Accept(), Reject("com.microsoft:timeout")], 0, id="timed out inside"),
        pytest.param([Accept(), Reject("amqp:internal-error")], 0, id="internal error"),
        pytest.param([Accept(), Delay(1)], 0, id="settled late"),
        pytest.param([Accept(), NeverSettle(is_stored=False)], 0, id="never settled, not stored"),
        pytest.param([Accept(), NeverSettle()], 1, id="never settled, stored"),
        pytest.param([Accept(), DropLink()], 0, id="link dropped, not stored"),
        pytest.param([Accept(), DropLink(is_stored=True)], 1, id="link dropped, stored"),
        pytest.param([Accept(), DropConnection()], 0, id="connection dropped, not stored"),
        pytest.param([Accept(), DropConnection(is_stored=True)], 1, id="connection dropped, stored"),
        pytest.param([Accept(), *[DropConnection(is_stored=True)] * 2], 2, id="connection dropped twice, stored"),
    ],
)
def test_no_fault_loses_a_message_or_breaks_the_order(double, broker, record_property, faults, repeated):
    double.plan(*faults)
    assert broker.publish(messages(*wide(600))) == Published(600)
    found = payloads(double)
    assert sorted(set(found)) == expected(600), "lost"
    # Each transfer repeats what it held, from its first message on, and nothing overtakes.
    places = [found.index(body) for body in expected(600)]
    assert places == sorted(places)
    per_batch = sum(one.transfer == 1 for one in double.messages("orders"))
    record_property("counts", f"service bus, {faults[-1]}: lost 0, repeated {len(found) - 600} of 600")
    assert len(found) - 600 == repeated * per_batch


@pytest.mark.parametrize("fault", [NeverSettle(), DropLink(is_stored=True), DropConnection(is_stored=True)])
def test_where_duplicates_are_detected_nothing_is_there_twice(double, broker, fault):
    double.duplicate_window = timedelta(minutes=10)
    double.plan(Accept(), fault)
    assert broker.publish(messages(*wide(600))) == Published(600)
    assert payloads(double) == expected(600)
    assert double.transfers == 5


def test_a_busy_service_is_waited_for_on_the_same_connection(double, broker):
    double.plan(BUSY, BUSY)
    assert broker.publish(messages(*numbered("orders", 10))) == Published(10)
    assert (double.connections, double.transfers) == (1, 3)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (BUSY, "too busy: send less"),
        (Reject("amqp:resource-limit-exceeded"), "it is full: have its messages received"),
        (Reject("com.microsoft:entity-disabled"), "it is disabled: enable it"),
        (NeverSettle(), "timed out"),
        (DropConnection(), "port 5671"),
    ],
)
def test_a_fault_that_does_not_pass_is_an_error_with_the_remedy_once_the_time_is_up(double, hasty, fault, words):
    double.otherwise = fault
    start = time.monotonic()
    with ServiceBusBroker(hasty) as broker:
        with pytest.raises(
            BrokerUnavailable, match=rf"Service Bus at 127.0.0.1:\d+ does not take messages for 'orders'.*{words}"
        ):
            broker.publish(messages(*numbered("orders", 10)))
    # The limit of the test, 20 s, is the upper bound: the default timeout is 30 s.
    assert time.monotonic() - start > 1.4


def test_after_an_error_the_same_broker_goes_on(double, hasty):
    double.otherwise = BUSY
    with ServiceBusBroker(hasty) as broker:
        with pytest.raises(BrokerUnavailable):
            broker.publish(messages(*numbered("orders", 10)))
        double.otherwise = Accept()
        assert broker.publish(messages(*numbered("orders", 10))) == Published(10)


def test_time_does_not_run_out_while_batches_are_settled(double, hasty):
    double.otherwise = Delay(0.4)
    with ServiceBusBroker(hasty) as broker:
        assert broker.publish(messages(*wide(1500))) == Published(1500)
    assert double.transfers * 0.4 > hasty.timeout.total_seconds()
    assert payloads(double) == expected(1500)


def test_a_wrong_key_is_an_error_at_once_without_the_key(double):
    secret = "bm90IHRvIGJlIHNlZW4="
    access = ServiceBusAccess(connection_string=connection_string(double.port, secret))
    with ServiceBusBroker(access) as broker:
        with pytest.raises(BrokerError, match=r"401.*check the key in the connection string") as refusal:
            broker.publish(messages(message("orders")))
    assert not refusal.value.retryable
    assert (double.connections, double.transfers) == (1, 0)
    assert secret not in f"{refusal.value!r} {refusal.value.__cause__!r} {broker!r}"


def test_a_right_that_is_missing_is_an_error_at_once(double, broker):
    double.otherwise = Reject("amqp:unauthorized-access", "'Send' claim is required")
    with pytest.raises(BrokerError, match=r"'Send' claim is required.*right to send") as refusal:
        broker.publish(messages(message("orders")))
    assert not refusal.value.retryable


def test_a_service_that_cannot_look_at_the_token_is_waited_for(double, broker):
    double.token_status = 503
    with ThreadPoolExecutor() as pool:
        publishing = pool.submit(broker.publish, messages(message("orders")))
        with pytest.raises(TimeoutError):
            publishing.result(0.7)
        double.token_status = 200
        assert publishing.result(10) == Published(1)


def test_a_service_that_is_away_is_waited_for_and_nothing_is_lost(double, broker):
    broker.publish(messages(message("bills")))
    double.stop()
    with ThreadPoolExecutor() as pool:
        publishing = pool.submit(broker.publish, messages(*wide(600)))
        with pytest.raises(TimeoutError):
            publishing.result(1)
        double.start()
        assert publishing.result(10) == Published(600)
    assert payloads(double) == expected(600)


def test_a_service_that_stays_away_is_an_error_once_the_time_is_up(double, hasty):
    double.stop()
    with ServiceBusBroker(hasty) as broker:
        with pytest.raises(BrokerUnavailable, match="does not take messages for 'orders'"):
            broker.publish(messages(message("orders")))


def test_a_server_that_takes_connections_and_says_nothing_is_an_error_once_the_time_is_up(double, hasty):
    double.is_mute = True
    start = time.monotonic()
    with ServiceBusBroker(hasty) as broker:
        with pytest.raises(BrokerUnavailable, match="takes connections, but does not answer"):
            broker.publish(messages(message("orders")))
    # The limit of the test, 20 s, is the upper bound: the default timeout is 30 s.
    assert time.monotonic() - start > 1.4
    # Nothing waits for it any longer.
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "open Service Bus"])


def test_a_connection_that_died_while_idle_is_opened_again_without_an_error(double, broker):
    assert broker.publish(messages(message("orders", b"1"))) == Published(1)
    double.hang_up()
    assert broker.publish(messages(message("orders", b"2"))) == Published(1)
    assert payloads(double) == [b"1", b"2"]
    assert double.connections == 2


def test_a_connection_is_kept_between_calls_and_opened_again_after_close(double, broker):
    for _ in range(3):
        broker.publish(messages(message("orders")))
    assert double.connections == 1
    broker.close()
    assert broker.publish(messages(message("orders"))) == Published(1)
    assert double.connections == 2


def test_the_sdk_says_nothing_while_things_fail(double, broker, caplog):
    caplog.set_level(logging.INFO)
    double.plan(DropConnection(), DropLink(), Reject("com.microsoft:timeout"))
    assert broker.publish(messages(*numbered("orders", 10))) == Published(10)
    assert caplog.records == []


def test_an_entity_that_is_full_holds_up_no_message_of_another(double, broker):
    double.plan(Reject("amqp:resource-limit-exceeded"))
    rows = [row for pair in zip(numbered("bills", 10), numbered("orders", 10), strict=True) for row in pair]
    offered = broker.offer(messages(*rows))
    assert (offered.stored, [one.index for one in offered.left]) == (10, list(range(0, 20, 2)))
    assert {(one.was_sent, one.was_answered) for one in offered.left} == {(True, True)}
    assert "it is full" in offered.left[0].reason
    assert payloads(double) == expected(10)
    assert double.transfers == 2


@pytest.mark.parametrize("fault", [BUSY, NeverSettle(is_stored=False), DropLink(), DropConnection(is_stored=True)])
def test_an_offer_sends_a_batch_once_and_leaves_what_comes_behind_it(double, broker, fault):
    double.plan(Accept(), fault)
    rows = wide(600)
    offered = broker.offer(messages(*rows))
    per_batch = sum(one.transfer == 1 for one in double.messages("orders"))
    assert [one.index for one in offered.left] == list(range(per_batch, 600))
    assert offered.stored == per_batch
    was_sent = [one.was_sent for one in offered.left]
    assert was_sent == sorted(was_sent, reverse=True)
    assert 0 < sum(was_sent) <= per_batch
    assert [one.was_answered for one in offered.left] == [fault is BUSY and one.was_sent for one in offered.left]
    assert double.transfers == 2
    again = [rows[one.index] for one in offered.left]
    assert broker.offer(messages(*again)) == Offered(len(again))
    assert sorted(set(payloads(double))) == expected(600)


def test_offers_to_many_slow_entities_end_in_about_the_timeout(double, hasty):
    rows = [message(f"entity{number}", b"%d" % number) for number in range(12)]
    with ServiceBusBroker(hasty) as broker:
        # To connect is no part of what is slow.
        assert broker.offer(messages(*numbered("orders", 1))) == Offered(1)
        double.otherwise = Delay(0.4)
        offered = broker.offer(messages(*rows))
    assert 0 < offered.stored < 12
    assert [one.was_sent for one in offered.left] == [False] * (12 - offered.stored)
    assert "did not settle all messages within 1.5 s" in offered.left[0].reason
