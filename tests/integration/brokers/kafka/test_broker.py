"""The real client against librdkafka's mock cluster: real sockets and frames, and failures when a test asks for them."""

import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from confluent_kafka import KafkaError

from headwater.brokers.base import Offered, Published
from headwater.brokers.kafka import KafkaAccess, KafkaBroker
from headwater.errors import BrokerError, BrokerUnavailable, SettingsError
from tests.conformance.broker_contract import CREATED_AT_TEXT, message, messages, numbered
from tests.support.brokers.kafka_cluster import INIT_PRODUCER_ID, PRODUCE, KafkaCluster, RefusingKafka
from tests.support.servers.tcp_proxy import Proxy


def keyed(count, keys=10, **values):
    return [{**row, "key": f"k{number % keys}"} for number, row in enumerate(numbered("orders", count, **values))]


def counts(cluster, rows):
    """How many of the messages are lost, and how many come more than once; fails if a key is out of order.

    What was overtaken comes once more with all that overtook it, so the order is that in which they come last.
    """
    stored = cluster.messages("orders")
    times = Counter(one.value() for one in stored)
    for key in {row["key"] for row in rows}:
        last = list(dict.fromkeys(one.value() for one in reversed(stored) if one.key() == key.encode()))
        assert last[::-1] == [row["payload"] for row in rows if row["key"] == key], "order"
    return sum(not times[row["payload"]] for row in rows), sum(times.values()) - len(times)


def test_a_record_has_key_value_event_and_headers(cluster, broker):
    row = message("orders", b"{}", id="i-1", key="kä", headers={"traceparent": "00-1", "tenant": "ä"})
    assert broker.publish(messages(row)) == Published(1)
    (stored,) = cluster.messages("orders")
    assert (stored.key(), stored.value()) == ("kä".encode(), b"{}")
    assert {name: value.decode() for name, value in stored.headers()} == {
        "content-type": "application/json",
        "ce_specversion": "1.0",
        "ce_id": "i-1",
        "ce_source": "headwater",
        "ce_type": "OrderPlaced",
        "ce_time": CREATED_AT_TEXT,
        "ce_partitionkey": "kä",
        "traceparent": "00-1",
        "tenant": "ä",
    }


def test_a_message_without_key_has_none_and_an_empty_payload_is_no_tombstone(cluster, broker):
    assert broker.publish(messages(message("orders", b""))) == Published(1)
    (stored,) = cluster.messages("orders")
    assert (stored.key(), stored.value()) == (None, b"")


def test_many_messages_are_stored_once_and_each_key_is_in_order(cluster, broker):
    rows = keyed(20_000, keys=50)
    assert broker.publish(messages(*rows)) == Published(20_000)
    assert counts(cluster, rows) == (0, 0)


def test_a_key_is_in_one_partition_and_keys_are_spread(cluster, broker):
    broker.publish(messages(*keyed(1000, keys=100)))
    places = {(one.key(), one.partition()) for one in cluster.messages("orders")}
    assert len(places) == 100
    assert len({partition for _, partition in places}) == 4


def test_a_key_goes_to_the_partition_to_which_kafka_s_own_client_sends_it(cluster, broker):
    broker.publish(messages(message("orders", key="21")))
    (stored,) = cluster.messages("orders")
    # In Java: Utils.toPositive(Utils.murmur2("21".getBytes())) % 4, with -973932308 as its test has it.
    assert stored.partition() == (-973932308 & 0x7FFFFFFF) % 4


def test_more_than_the_queue_of_the_producer_holds_is_sent_all_the_same(cluster, access):
    rows = keyed(2000)
    with KafkaBroker(replace(access, settings={"queue.buffering.max.messages": "100"})) as broker:
        assert broker.publish(messages(*rows)) == Published(2000)
    assert counts(cluster, rows) == (0, 0)


def test_a_template_says_which_topic_gets_a_message(cluster, access):
    with KafkaBroker(replace(access, topic="shop.{topic}.{type}")) as broker:
        assert broker.publish(messages(message("a", b"1"), message("b", b"2", type="Bill"))) == Published(2)
    assert [one.value() for one in cluster.messages("shop.a.OrderPlaced")] == [b"1"]
    assert [one.value() for one in cluster.messages("shop.b.Bill")] == [b"2"]


def test_nothing_to_publish_is_done_at_once(broker):
    assert broker.publish(messages()) == Published(0)


def test_a_message_larger_than_the_client_allows_is_refused_with_its_size_and_the_others_are_stored(cluster, broker):
    rows = keyed(5)
    rows[2]["payload"] = b"x" * 1_000_001
    published = broker.publish(messages(*rows))
    assert (published.stored, [one.index for one in published.refused]) == (4, [2])
    assert published.refused[0].reason == ("topic 'orders': Broker: Message size too large; its payload has 1000001 bytes")
    assert counts(cluster, rows[:2] + rows[3:]) == (0, 0)


@pytest.mark.parametrize("error", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD])
def test_the_message_that_the_broker_rejects_is_found_in_its_batch_and_the_others_stored_once(cluster, broker, error):
    rows = keyed(20, keys=1)
    # First the batch, then the third of the messages that are sent by themselves.
    cluster.fail_requests(PRODUCE, error, 0, 0, error)
    published = broker.publish(messages(*rows))
    assert (published.stored, [one.index for one in published.refused]) == (19, [2])
    assert "topic 'orders': Broker: " in published.refused[0].reason
    assert counts(cluster, rows[:2] + rows[3:]) == (0, 0)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "create it"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "give the user the right to write"),
        (KafkaError.TOPIC_EXCEPTION, "a topic's name has letters"),
    ],
)
def test_a_topic_that_takes_nothing_has_its_messages_refused_and_the_others_are_stored(cluster, access, error, remedy):
    cluster.fail_topic("bills", error)
    rows = keyed(10)
    with KafkaBroker(replace(access, timeout=timedelta(seconds=3))) as broker:
        published = broker.publish(messages(*rows[:5], message("bills"), *rows[5:], message("bills")))
    assert (published.stored, [one.index for one in published.refused]) == (10, [5, 11])
    assert "topic 'bills'" in published.refused[0].reason
    assert remedy in published.refused[0].reason
    assert counts(cluster, rows) == (0, 0)


PASSING = [
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.NOT_ENOUGH_REPLICAS,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_PRODUCER_ID,
]


@pytest.mark.parametrize("error", PASSING)
def test_a_failure_that_passes_loses_and_repeats_nothing(cluster, broker, record_property, error):
    cluster.fail_requests(PRODUCE, 0, error, error, 0, error)
    rows = keyed(5000)
    assert broker.publish(messages(*rows)) == Published(5000)
    lost, repeated = counts(cluster, rows)
    record_property("counts", f"kafka, {KafkaError(error).name()}: lost {lost}, repeated {repeated} of 5000")
    assert (lost, repeated) == (0, 0)


def test_what_the_client_gives_back_is_sent_again_behind_what_overtook_it(cluster, access, record_property):
    cluster.create("orders", partitions=1)
    # The client gives up the first batch, while the next ones are on their way already.
    cluster.fail_requests(PRODUCE, KafkaError.INVALID_PRODUCER_EPOCH)
    rows = keyed(2000, keys=3)
    with KafkaBroker(replace(access, settings={"batch.num.messages": "50"})) as broker:
        assert broker.publish(messages(*rows)) == Published(2000)
    lost, repeated = counts(cluster, rows)
    record_property("counts", f"kafka, INVALID_PRODUCER_EPOCH: lost {lost}, repeated {repeated} of 2000")
    assert lost == 0
    # How many were on their way already is a matter of time.
    assert repeated < 2000


def test_a_fatal_error_gets_a_new_producer_and_loses_nothing(cluster, broker, record_property, caplog):
    cluster.fail_requests(PRODUCE, 0, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER)
    rows = keyed(5000)
    assert broker.publish(messages(*rows)) == Published(5000)
    assert any("Fatal error" in record.getMessage() for record in caplog.records)
    lost, repeated = counts(cluster, rows)
    record_property("counts", f"kafka, fatal: lost {lost}, repeated {repeated} of 5000")
    assert lost == 0
    assert broker.publish(messages(message("bills"))) == Published(1)


def test_a_producer_that_is_fatal_again_and_again_is_an_error_once_the_time_is_up(cluster, hasty):
    cluster.fail_requests(PRODUCE, *[KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER] * 1000)
    with KafkaBroker(hasty) as broker:
        with pytest.raises(BrokerUnavailable, match=r"has acknowledged nothing for 1\.5 s"):
            broker.publish(messages(message("orders")))


def test_a_broker_that_is_away_is_waited_for_and_nothing_is_lost_or_repeated(cluster, broker):
    broker.publish(messages(message("bills")))
    cluster.stop()
    rows = keyed(5000)
    with ThreadPoolExecutor() as pool:
        publishing = pool.submit(broker.publish, messages(*rows))
        with pytest.raises(TimeoutError):
            publishing.result(1)
        cluster.start()
        assert publishing.result() == Published(5000)
    assert counts(cluster, rows) == (0, 0)


@pytest.mark.parametrize("fault", ["cut", "freeze"])
def test_connections_that_break_under_way_lose_and_repeat_nothing(cluster, access, fault):
    rows = keyed(20_000, keys=50)
    with Proxy(cluster.url) as proxy:
        servers = proxy.url.removeprefix("kafka://")
        cluster.advertise(int(servers.rpartition(":")[2]))
        with KafkaBroker(replace(access, bootstrap_servers=servers)) as broker, ThreadPoolExecutor() as pool:
            broker.publish(messages(message("bills")))
            publishing = pool.submit(broker.publish, messages(*rows))
            for _ in range(3):
                getattr(proxy, fault)()
            assert publishing.result() == Published(20_000)
        assert counts(cluster, rows) == (0, 0)


def test_a_broker_that_stays_away_is_an_error_with_the_remedy_once_the_time_is_up_and_the_next_call_works(cluster, hasty):
    cluster.stop()
    start = time.monotonic()
    with KafkaBroker(hasty) as broker:
        with pytest.raises(BrokerUnavailable, match=r"Kafka at 127\.0\.0\.1.*refused.*check that its brokers run"):
            broker.publish(messages(message("orders")))
        # The limit of the test, 20 s, is the upper bound: the default timeout is 30 s.
        assert time.monotonic() - start > 1.4
        cluster.start()
        assert broker.publish(messages(message("orders"))) == Published(1)
    assert len(cluster.messages("orders")) == 1


def test_a_connection_that_died_while_idle_is_opened_again_without_an_error(cluster, broker):
    assert broker.publish(messages(message("orders", b"1"))) == Published(1)
    cluster.stop()
    cluster.start()
    assert broker.publish(messages(message("orders", b"2"))) == Published(1)
    assert sorted(one.value() for one in cluster.messages("orders")) == [b"1", b"2"]


def test_a_broker_is_of_use_again_after_close(cluster, broker):
    broker.publish(messages(message("orders")))
    broker.close()
    broker.close()
    assert broker.publish(messages(message("orders"))) == Published(1)


def test_several_brokers_of_a_cluster_are_all_written_to():
    with KafkaCluster(brokers=3) as cluster:
        cluster.create("orders", partitions=6)
        rows = keyed(3000, keys=60)
        with KafkaBroker(KafkaAccess(bootstrap_servers=cluster.bootstrap_servers, timeout=timedelta(seconds=6))) as broker:
            assert broker.publish(messages(*rows)) == Published(3000)
        assert counts(cluster, rows) == (0, 0)
        assert len({one.partition() for one in cluster.messages("orders")}) == 6


def test_a_wrong_password_is_an_error_at_once_without_the_password(caplog):
    secret = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "hidden",
    }
    with RefusingKafka() as server:
        access = KafkaAccess(bootstrap_servers=server.bootstrap_servers, settings=secret, timeout=timedelta(seconds=60))
        start = time.monotonic()
        with KafkaBroker(access) as broker:
            with pytest.raises(BrokerError, match=r"does not let us in.*check security\.protocol") as refusal:
                broker.publish(messages(message("orders")))
    assert not refusal.value.retryable
    assert time.monotonic() - start < access.timeout.total_seconds()
    assert "hidden" not in f"{refusal.value!r} {refusal.value.__cause__!r} {broker!r} {caplog.text}"


def test_a_user_who_may_not_write_idempotently_is_an_error_at_once(cluster, access):
    cluster.fail_requests(INIT_PRODUCER_ID, *[KafkaError.CLUSTER_AUTHORIZATION_FAILED] * 10)
    with KafkaBroker(access) as broker:
        with pytest.raises(BrokerError, match="may write idempotently") as refusal:
            broker.publish(messages(message("orders")))
    assert not refusal.value.retryable


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"no.such.setting": "1", "sasl.password": "hidden"}, 'No such configuration property: "no.such.setting"'),
        ({"linger.ms": "soon"}, "Invalid value for configuration property"),
        ({"max.in.flight": "10"}, "max.in.flight"),
    ],
)
def test_settings_that_the_client_does_not_know_are_refused_without_secrets(cluster, access, settings, words):
    with KafkaBroker(replace(access, settings=settings)) as broker:
        with pytest.raises(SettingsError, match=words) as refusal:
            broker.publish(messages(message("orders")))
    assert "hidden" not in str(refusal.value)


def test_what_the_client_says_goes_to_the_log_and_not_to_the_terminal(cluster, hasty, caplog, capfd):
    caplog.set_level(logging.INFO)
    cluster.stop()
    with KafkaBroker(hasty) as broker, pytest.raises(BrokerUnavailable):
        broker.publish(messages(message("orders")))
    assert {record.name for record in caplog.records} == {"headwater.brokers.kafka.producer"}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("error", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_RECORD])
def test_an_offer_finds_the_message_that_is_rejected_in_its_batch_and_the_others_are_stored_once(cluster, broker, error):
    rows = keyed(20, keys=1)
    broker.offer(messages(message("bills")))
    cluster.fail_requests(PRODUCE, error, 0, 0, error)
    offered = broker.offer(messages(*rows))
    assert (offered.stored, [one.index for one in offered.refused], offered.left) == (19, [2], ())
    assert sorted(one.value() for one in cluster.messages("orders")) == [row["payload"] for row in rows[:2] + rows[3:]]


def test_a_topic_that_takes_nothing_holds_up_no_message_of_another(cluster, access):
    cluster.fail_topic("bills", KafkaError.UNKNOWN_TOPIC_OR_PART)
    rows = [row for pair in zip(numbered("bills", 50), numbered("orders", 50), strict=True) for row in pair]
    with KafkaBroker(replace(access, timeout=timedelta(seconds=3))) as broker:
        offered = broker.offer(messages(*rows))
    assert (offered.stored, [one.index for one in offered.refused]) == (50, list(range(0, 100, 2)))
    assert offered.left == ()


def test_an_offer_to_a_cluster_that_goes_away_is_left_and_the_next_one_is_an_error_before_anything_is_sent(cluster, hasty):
    with KafkaBroker(hasty) as broker:
        assert broker.offer(messages(message("orders", b"1"))) == Offered(1)
        cluster.stop()
        offered = broker.offer(messages(message("orders", b"2")))
        assert [(one.index, one.was_sent) for one in offered.left] == [(0, True)]
        with pytest.raises(BrokerUnavailable):
            broker.offer(messages(message("orders", b"2")))
        cluster.start()
        assert broker.offer(messages(message("orders", b"2"))) == Offered(1)
    assert b"2" in [one.value() for one in cluster.messages("orders")]


def test_a_fatal_error_leaves_what_is_open_and_the_next_offer_has_a_new_producer(cluster, broker):
    rows = keyed(10)
    broker.offer(messages(message("bills")))
    cluster.fail_requests(PRODUCE, KafkaError.INVALID_PRODUCER_EPOCH)
    offered = broker.offer(messages(*rows))
    assert offered.stored + len(offered.left) == 10
    assert offered.left
    again = [rows[one.index] for one in offered.left]
    assert broker.offer(messages(*again)) == Offered(len(again))
    assert {one.value() for one in cluster.messages("orders")} == {row["payload"] for row in rows}
