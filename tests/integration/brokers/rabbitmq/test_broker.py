"""What is RabbitMQ's own; what all brokers do alike is in the conformance suite."""

import os
import socket
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from threading import Event

import pytest

from headwater.brokers.base import Offered, Published
from headwater.errors import BrokerError, BrokerUnavailable
from tests.conformance.broker_contract import message, messages, numbered
from tests.support.brokers.rabbitmq_node import MAX_MESSAGE_BYTES
from tests.support.servers.tcp_proxy import Proxy
from tests.support.waiting import eventually

# The first test waits for the node.
pytestmark = pytest.mark.timeout(60)

HASTY = timedelta(seconds=2)


class CutAfterConfirms(Proxy):
    """Cuts everything once so many bytes of answers have come through, and lets none through after them."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.let_through: int | None = None

    def _pump(self, source: socket.socket, target: socket.socket, frozen: Event) -> None:
        is_answer = source.getpeername()[1] == self._target[1]
        with suppress(OSError):
            while data := source.recv(65536):
                if is_answer and self.let_through is not None:
                    data = data[: self.let_through]
                    self.let_through -= len(data)
                target.sendall(data)
                if self.let_through == 0:
                    self.let_through = None
                    self.cut()
            target.shutdown(socket.SHUT_RDWR)


class Counting(Proxy):
    """Tells how often some bytes have come through, either way."""

    def __init__(self, url: str, wanted: bytes) -> None:
        super().__init__(url)
        self._wanted, self.seen = wanted, 0

    def _pump(self, source: socket.socket, target: socket.socket, frozen: Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self.seen += data.count(self._wanted)
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


def as_sent(rows) -> list[bytes]:
    return [row["payload"] for row in rows]


@pytest.mark.parametrize("max_pending", [1, 7, 300])
def test_few_unconfirmed_messages_are_enough(open_broker, queue, held, max_pending):
    rows = numbered(queue(), 600)
    assert open_broker(max_pending=max_pending).publish(messages(*rows)) == Published(600)
    assert held(rows[0]["topic"]) == as_sent(rows)


def test_quorum_queues_confirm_too(open_broker, queue, held):
    rows = numbered(queue(x_queue_type="quorum"), 2000)
    assert open_broker().publish(messages(*rows)) == Published(2000)
    assert held(rows[0]["topic"]) == as_sent(rows)


def test_many_large_messages_are_sent_without_either_side_holding_all_of_them(open_broker, queue, held):
    topic = queue()
    rows = [message(topic, bytes([number]) * 1_000_000) for number in range(60)]
    assert open_broker().publish(messages(*rows)) == Published(60)
    assert held(topic) == as_sent(rows)


def test_a_full_queue_that_refuses_is_an_error_with_the_remedy_once_the_time_is_up(open_broker, queue, held):
    rows = numbered(queue(x_max_length=10, x_overflow="reject-publish"), 50)
    with pytest.raises(BrokerUnavailable, match=rf"does not take messages for '{rows[0]['topic']}'.*raise its limits"):
        open_broker(timeout=HASTY).publish(messages(*rows))
    assert held(rows[0]["topic"]) == as_sent(rows[:10])


def test_a_full_queue_takes_the_rest_in_order_as_it_is_emptied(rabbitmq, open_broker, queue):
    topic = queue(x_max_length=10, x_overflow="reject-publish")
    rows = numbered(topic, 60)
    taken: list[bytes] = []
    with ThreadPoolExecutor(1) as pool, rabbitmq.channel() as channel:
        publishing = pool.submit(open_broker().publish, messages(*rows))

        def take() -> bool:
            got = channel.basic_get(topic, auto_ack=True)
            taken.extend([] if got[0] is None else [got[2]])
            return got[0] is None and publishing.done()

        eventually(take, seconds=30)
        assert publishing.result() == Published(60)
    # What was stored behind a message that was refused comes again behind it.
    assert list(dict.fromkeys(reversed(taken))) == as_sent(rows)[::-1]


def test_what_was_stored_while_an_earlier_message_was_refused_is_sent_again_behind_it(rabbitmq, open_broker, queue, held):
    full, other = queue(x_max_length=1, x_overflow="reject-publish"), queue()
    rows = [message(full, b"0"), message(full, b"1"), message(other, b"2")]
    with ThreadPoolExecutor(1) as pool, rabbitmq.channel() as channel:
        publishing = pool.submit(open_broker().publish, messages(*rows))
        eventually(lambda: channel.queue_declare(other, passive=True).method.message_count == 1)
        assert channel.basic_get(full, auto_ack=True)[2] == b"0"
        assert publishing.result() == Published(3)
    assert (held(full), held(other)) == ([b"1"], [b"2", b"2"])


def test_a_full_queue_does_not_flood_another_one_that_takes_what_comes(open_broker, queue, held):
    full, other = queue(x_max_length=1, x_overflow="reject-publish"), queue()
    rows = [row for pair in zip(numbered(full, 20), numbered(other, 20), strict=True) for row in pair]
    with pytest.raises(BrokerUnavailable):
        open_broker(timeout=HASTY).publish(messages(*rows))
    # At most those that were under way with the first refused one.
    assert len(held(other)) <= 20


def test_an_exchange_that_is_not_there_is_named(open_broker):
    with pytest.raises(BrokerError, match=r"no exchange 'nowhere' in the virtual host '/'; declare it") as refusal:
        open_broker(exchange="nowhere").publish(messages(message("a")))
    assert not refusal.value.retryable


def test_a_virtual_host_that_is_not_there_is_named(rabbitmq, open_broker):
    with pytest.raises(BrokerError, match=r"virtual host 'nowhere'; check that it exists") as refusal:
        open_broker(url=f"{rabbitmq.url}nowhere").publish(messages(message("a")))
    assert not refusal.value.retryable


def test_a_user_who_may_not_write_is_told_so(rabbitmq, open_broker):
    user = f"reader-{uuid.uuid4().hex}"
    rabbitmq.control("add_user", user, "hidden")
    rabbitmq.control("set_permissions", user, ".*", "^$", ".*")
    url = f"amqp://{user}:hidden@127.0.0.1:{rabbitmq.port}/"
    with pytest.raises(BrokerError, match="permission to write") as refusal:
        open_broker(url=url, exchange="amq.topic").publish(messages(message("a")))
    assert "hidden" not in str(refusal.value)


def test_messages_go_through_an_exchange_by_their_routing_key(rabbitmq, open_broker, queue, held):
    name, place = f"x-{uuid.uuid4().hex}", queue()
    with rabbitmq.channel() as channel:
        channel.exchange_declare(name, "topic", durable=True)
        channel.queue_bind(place, name, "shop.orders.*")
    rows = [message("orders", b"1"), message("users", b"2"), message("orders", b"3", type="Paid")]
    published = open_broker(exchange=name, routing_key="shop.{topic}.{type}").publish(messages(*rows))
    assert (published.stored, [one.index for one in published.refused]) == (2, [1])
    assert f"the exchange '{name}' has no queue for the routing key 'shop.users.OrderPlaced'" in published.refused[0].reason
    assert held(place) == [b"1", b"3"]


def test_every_copy_of_an_unroutable_message_is_refused_and_no_other_one(open_broker, queue, held):
    topic = queue()
    same = message("nowhere", b"lost")
    rows = [same, message(topic, b"1"), same, {**same, "topic": topic, "payload": b"2"}, same]
    published = open_broker().publish(messages(*rows))
    assert (published.stored, [one.index for one in published.refused]) == (2, [0, 2, 4])
    assert held(topic) == [b"1", b"2"]


def test_what_no_queue_takes_is_dropped_when_that_is_wanted(open_broker):
    assert open_broker(mandatory=False).publish(messages(message("nowhere"))) == Published(1)


def test_queues_are_made_as_durable_quorum_queues_when_that_is_wanted(rabbitmq, open_broker, held):
    topic = f"made-{uuid.uuid4().hex}"
    assert open_broker(declare=True).publish(messages(*numbered(topic, 5))) == Published(5)
    with rabbitmq.channel() as channel:
        # Refused if it is anything else.
        channel.queue_declare(topic, durable=True, arguments={"x-queue-type": "quorum"})
    assert held(topic) == as_sent(numbered(topic, 5))


def test_a_queue_that_is_there_already_is_left_as_it_is(open_broker, queue, held):
    topic = queue(x_max_length=100)
    assert open_broker(declare=True).publish(messages(*numbered(topic, 5))) == Published(5)
    assert held(topic) == as_sent(numbered(topic, 5))


@pytest.mark.parametrize(("topic", "reason"), [("amq.mine", "does not let us make it"), ("", "there is no queue ''")])
def test_a_queue_that_cannot_be_made_is_a_refusal_of_its_messages_only(open_broker, queue, held, topic, reason):
    other = queue()
    published = open_broker(declare=True).publish(messages(message(other, b"1"), message(topic), message(other, b"2")))
    assert (published.stored, [one.index for one in published.refused]) == (2, [1])
    assert reason in published.refused[0].reason
    assert held(other) == [b"1", b"2"]


def test_a_payload_beyond_our_own_limit_is_refused_with_the_sizes(open_broker, queue, held):
    topic = queue()
    published = open_broker(max_bytes=100).publish(messages(message(topic, b"x" * 101), message(topic, b"x" * 100)))
    assert (published.stored, published.refused[0].index) == (1, 0)
    assert published.refused[0].reason == "a payload of 101 bytes is more than RabbitMQ's limit of 100"
    assert held(topic) == [b"x" * 100]


def test_a_limit_of_the_broker_s_own_is_learned_and_remembered(open_broker, queue, held):
    topic, broker = queue(), open_broker()
    large = message(topic, b"x" * (MAX_MESSAGE_BYTES + 1))
    for _ in range(2):
        published = broker.publish(messages(large, message(topic, b"x" * MAX_MESSAGE_BYTES)))
        assert published.stored == 1
        assert (
            f"{MAX_MESSAGE_BYTES + 1} bytes is more than RabbitMQ's limit of {MAX_MESSAGE_BYTES}"
            in published.refused[0].reason
        )
        assert [len(payload) for payload in held(topic)] == [MAX_MESSAGE_BYTES]


def test_headers_beyond_a_frame_are_refused_and_the_others_are_stored(open_broker, queue, held):
    topic = queue()
    rows = [message(topic, b"1"), message(topic, headers={"large": "x" * 131_072}), message(topic, b"2")]
    published = open_broker().publish(messages(*rows))
    assert (published.stored, [one.index for one in published.refused]) == (2, [1])
    assert "more than a frame of 131072 bytes" in published.refused[0].reason
    assert held(topic) == [b"1", b"2"]


def test_headers_that_rabbitmq_would_close_the_channel_for_are_refused(open_broker, queue, held):
    topic = queue()
    rows = [message(topic, b"1"), message(topic, headers={"CC": "other"}), message(topic, b"2")]
    assert [one.index for one in open_broker().publish(messages(*rows)).refused] == [1]
    assert held(topic) == [b"1", b"2"]


def test_a_broker_out_of_memory_is_waited_for_and_told_when_it_takes_too_long(rabbitmq, open_broker, queue, held):
    rows = numbered(queue(), 30)
    patient, hasty = open_broker(timeout=timedelta(seconds=30)), open_broker(timeout=HASTY)
    patient.publish(messages(*rows[:10]))
    rabbitmq.control("set_vm_memory_high_watermark", "0.000001")
    try:
        with pytest.raises(BrokerUnavailable, match=r"takes no messages for now \(low on memory\)"):
            hasty.publish(messages(message(rows[0]["topic"], b"not there")))
        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(patient.publish, messages(*rows[10:]))
            rabbitmq.control("set_vm_memory_high_watermark", "0.4")
            assert publishing.result() == Published(20)
    finally:
        rabbitmq.control("set_vm_memory_high_watermark", "0.4")
    assert [payload for payload in held(rows[0]["topic"]) if payload != b"not there"] == as_sent(rows)


def test_a_broker_that_never_confirms_is_an_error_once_the_time_is_up(rabbitmq, open_broker, queue, held):
    rows = numbered(queue(), 20)
    with Proxy(rabbitmq.url) as proxy:
        broker = open_broker(url=proxy.url, timeout=HASTY)
        broker.publish(messages(*rows[:10]))
        proxy.freeze()
        with pytest.raises(BrokerUnavailable, match=r"confirmed none of the 10 messages under way within 2 s"):
            broker.publish(messages(*rows[10:]))
        assert broker.publish(messages(*rows[10:])) == Published(10)
    assert held(rows[0]["topic"]) == as_sent(rows)


def test_a_server_that_takes_the_connection_and_says_nothing_is_an_error_and_no_traceback(rabbitmq, open_broker, caplog):
    with Proxy(rabbitmq.url) as proxy:
        proxy.mute = True
        broker = open_broker(url=proxy.url, timeout=timedelta(milliseconds=300))
        for _ in range(2):
            with pytest.raises(BrokerUnavailable, match=r"does not answer within 0\.3 s"):
                broker.check()
        # Whatever there was to say about the connections is said by then.
        broker.close()
    assert caplog.messages == []


def test_a_connection_lives_while_nobody_publishes(rabbitmq, open_broker, queue):
    topic = queue()
    with Counting(rabbitmq.url, b"\x08\0\0\0\0\0\0\xce") as proxy:
        broker = open_broker(url=proxy.url, heartbeat=timedelta(seconds=1))
        broker.publish(messages(message(topic)))
        # A client that sends none is cut off by the node before it has sent this many itself.
        eventually(lambda: proxy.seen >= 10)
        proxy.refuse = True
        assert broker.publish(messages(message(topic))) == Published(1)


def test_tls_is_spoken_with_a_node_whose_authority_is_known(rabbitmq, open_broker, queue, held):
    rows = numbered(queue(), 3000)
    broker = open_broker(url=rabbitmq.tls_url, tls_ca=rabbitmq.authority)
    assert broker.publish(messages(*rows, message(rows[0]["topic"], b"x" * 3_000_000))) == Published(3001)
    assert held(rows[0]["topic"])[:-1] == as_sent(rows)


def test_a_certificate_of_an_unknown_authority_is_refused(rabbitmq, open_broker):
    with pytest.raises(BrokerError, match="set tls_ca") as refusal:
        open_broker(url=rabbitmq.tls_url).publish(messages(message("a")))
    assert not refusal.value.retryable


def test_a_port_for_tls_that_is_spoken_to_without_it_is_an_error_with_the_remedy(rabbitmq, open_broker):
    url = rabbitmq.url.replace(str(rabbitmq.port), str(rabbitmq.tls_port))
    with pytest.raises(BrokerUnavailable, match="amqps://"):
        open_broker(url=url, timeout=HASTY).publish(messages(message("a")))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_broker_that_was_used_works_in_a_forked_process_too(open_broker, queue, held):
    topic, broker = queue(), open_broker()
    broker.publish(messages(message(topic, b"parent")))
    child = os.fork()
    if child == 0:
        # Nothing of pytest may run here.
        os._exit(0 if broker.publish(messages(message(topic, b"child"))) == Published(1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert broker.publish(messages(message(topic, b"parent again"))) == Published(1)
    assert held(topic) == [b"parent", b"child", b"parent again"]


def full_queue(queue, length: int) -> str:
    return str(queue(x_max_length=length, x_overflow="reject-publish"))


def test_an_offer_leaves_what_a_full_queue_refuses_with_the_remedy(open_broker, queue, held):
    rows = numbered(full_queue(queue, 10), 50)
    offered = open_broker().offer(messages(*rows))
    kept = held(rows[0]["topic"])
    assert (offered.stored, offered.refused, len(offered.left)) == (len(kept), (), 50 - len(kept))
    # The queue learns of its limit a little late.
    assert 10 <= len(kept) < 50
    assert kept == [row["payload"] for place, row in enumerate(rows) if place not in {one.index for one in offered.left}]
    assert {(one.was_sent, one.was_answered) for one in offered.left} == {(True, True)}
    assert "raise its limits" in offered.left[0].reason


def test_a_full_queue_holds_up_no_message_of_a_healthy_one(open_broker, queue, held):
    full, healthy = full_queue(queue, 1), queue()
    broker = open_broker()
    assert broker.offer(messages(message(full))) == Offered(1)
    rows = [row for pair in zip(numbered(full, 500), numbered(healthy, 500), strict=True) for row in pair]
    offered = broker.offer(messages(*rows))
    assert (offered.stored, [one.index for one in offered.left]) == (500, list(range(0, 1000, 2)))
    assert held(healthy) == as_sent(rows[1::2])


def test_what_was_left_is_taken_when_there_is_room_again(open_broker, queue, held):
    rows = numbered(full_queue(queue, 1), 2)
    broker = open_broker()
    assert broker.offer(messages(rows[0])) == Offered(1)
    assert [one.index for one in broker.offer(messages(rows[1])).left] == [0]
    assert held(rows[0]["topic"]) == as_sent(rows[:1])
    assert broker.offer(messages(rows[1])) == Offered(1)


def test_stored_refused_and_left_stand_side_by_side(open_broker, queue, held):
    full, healthy = full_queue(queue, 1), queue()
    broker = open_broker(max_bytes=100)
    broker.offer(messages(message(full)))
    rows = [
        message(full),
        message("nowhere"),
        message(healthy, b"1"),
        message(healthy, b"x" * 101),
        message(healthy, headers={"CC": "other"}),
        message(healthy, b"2"),
    ]
    offered = broker.offer(messages(*rows))
    assert offered.stored == 2
    assert [one.index for one in offered.refused] == [1, 3, 4]
    assert [(one.index, one.was_sent) for one in offered.left] == [(0, True)]
    assert held(healthy) == [b"1", b"2"]


@pytest.mark.parametrize("frames", [0, 1, 30])
def test_what_was_confirmed_before_the_connection_was_cut_is_stored_and_the_rest_left(
    rabbitmq, open_broker, queue, held, frames
):
    topic = queue()
    with CutAfterConfirms(rabbitmq.url) as proxy:
        broker = open_broker(url=proxy.url, max_pending=10)
        assert broker.offer(messages(message(topic, b"first"))) == Offered(1)
        # A confirm is 21 bytes; the last one that comes is cut in two.
        proxy.let_through = 21 * frames + 5
        rows = numbered(topic, 1000)
        offered = broker.offer(messages(*rows))
    assert offered.stored >= frames
    assert [one.index for one in offered.left] == list(range(offered.stored, 1000))
    was_sent = [one.was_sent for one in offered.left]
    assert was_sent == sorted(was_sent, reverse=True)
    assert 0 < sum(was_sent) <= 10, "what was beyond the window was never sent"
    assert "lost the connection" in offered.left[0].reason
    assert not set(as_sent(rows[: offered.stored])) - set(held(topic))


def test_an_offer_that_is_never_confirmed_is_left_after_the_timeout(rabbitmq, open_broker, queue):
    rows = numbered(queue(), 20)
    with Proxy(rabbitmq.url) as proxy:
        broker = open_broker(url=proxy.url, timeout=HASTY)
        assert broker.offer(messages(*rows[:10])) == Offered(10)
        proxy.freeze()
        offered = broker.offer(messages(*rows[10:]))
        assert offered.stored == 0
        assert [(one.index, one.was_sent) for one in offered.left] == [(index, True) for index in range(10)]
        assert not any(one.was_answered for one in offered.left)
        assert "confirmed none of the 10 messages under way" in offered.left[0].reason
        assert broker.offer(messages(*rows[10:])) == Offered(10)


def test_a_broker_out_of_memory_leaves_what_it_was_sent_and_is_sent_no_more_until_it_has_room(
    rabbitmq, open_broker, queue, held
):
    topic, broker = queue(), open_broker(timeout=HASTY)
    assert broker.offer(messages(message(topic, b"before"))) == Offered(1)
    rabbitmq.control("set_vm_memory_high_watermark", "0.000001")
    try:
        # Only who sends something is told.
        offered = broker.offer(messages(message(topic, b"told")))
        assert [(one.index, one.was_sent) for one in offered.left] == [(0, True)]
        assert "low on memory" in offered.left[0].reason
        for _ in range(3):
            with pytest.raises(BrokerUnavailable, match="low on memory"):
                broker.offer(messages(message(topic, b"never")))
        with pytest.raises(BrokerUnavailable, match=r"takes no messages for now \(low on memory\)"):
            broker.check()
    finally:
        rabbitmq.control("set_vm_memory_high_watermark", "0.4")
    eventually(lambda: is_taken(broker, message(topic, b"after")))
    kept = held(topic)
    assert b"never" not in kept
    assert [kept[0], kept[-1]] == [b"before", b"after"]


class SlowToDeclare(Proxy):
    """Each queue that is declared takes its time, and is told in the end."""

    def __init__(self, url: str, seconds: float) -> None:
        super().__init__(url)
        self._seconds, self.declared = seconds, 0

    def _pump(self, source: socket.socket, target: socket.socket, frozen: Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if b"x-queue-type" in data:
                    self.declared += 1
                    Event().wait(self._seconds)
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


def test_all_queues_that_an_offer_makes_have_its_timeout_together_and_the_next_one_goes_on(rabbitmq, open_broker, held):
    topics = [f"made-{uuid.uuid4().hex}" for _ in range(4)]
    rows = [message(topic, b"1") for topic in topics]
    with SlowToDeclare(rabbitmq.url, 0.8) as proxy:
        broker = open_broker(url=proxy.url, declare=True, timeout=HASTY)
        with pytest.raises(BrokerUnavailable, match="does not answer within 2 s"):
            broker.offer(messages(*rows))
        assert proxy.declared <= 3
        eventually(lambda: is_offered(broker, rows))
    assert [held(topic) for topic in topics] == [[b"1"]] * 4


def is_offered(broker, rows) -> bool:
    try:
        return bool(broker.offer(messages(*rows)) == Offered(len(rows)))
    except BrokerUnavailable:
        return False


def is_taken(broker, row) -> bool:
    try:
        return bool(broker.offer(messages(row)).stored)
    except BrokerUnavailable:
        return False


def test_a_channel_that_the_server_closes_leaves_the_messages_with_its_reason(open_broker):
    offered = open_broker(exchange="nowhere").offer(messages(message("a"), message("b")))
    assert [(one.index, one.was_sent) for one in offered.left] == [(0, True), (1, True)]
    assert "no exchange 'nowhere'" in offered.left[0].reason


def test_a_limit_that_an_offer_learns_of_leaves_the_others_for_the_next(open_broker, queue, held):
    topic, broker = queue(), open_broker()
    rows = [message(topic, b"x" * (MAX_MESSAGE_BYTES + 1)), message(topic, b"1")]
    first = broker.offer(messages(*rows))
    assert [one.index for one in first.refused] == [0]
    assert first.stored + len(first.left) == 1
    second = broker.offer(messages(*rows))
    assert (second.stored, [one.index for one in second.refused], second.left) == (1, [0], ())
    assert b"1" in held(topic)


def test_queues_are_made_for_offers_when_that_is_wanted(open_broker, held):
    topic = f"made-{uuid.uuid4().hex}"
    assert open_broker(declare=True).offer(messages(*numbered(topic, 5))) == Offered(5)
    assert held(topic) == as_sent(numbered(topic, 5))
