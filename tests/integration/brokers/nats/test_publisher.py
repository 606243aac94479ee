import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest
from nats.aio.msg import Msg

from headwater.brokers.nats import NatsAccess, Outgoing, Published, Publisher
from headwater.brokers.nats.connection import connect
from headwater.embedded import EmbeddedNats, NatsSettings
from headwater.errors import BrokerError, BrokerUnavailable
from tests.support.brokers.nats_messages import Stream, fresh_stream, numbered, outgoing
from tests.support.servers.embedded import ConfiguredNats, shared_root
from tests.support.servers.tcp_proxy import Proxy
from tests.support.waiting import eventually


def test_messages_are_stored_in_order_with_their_ids_and_headers(publisher, stream):
    messages = Outgoing(
        stream.subject("a"),
        pa.array(["one", "two", "three"]),
        pa.array([b"1", b"", b"\r\n3"], pa.large_binary()),
        pa.array([b"A: b\r\n", None, b""], pa.binary()),
    )
    assert publisher.publish(messages) == Published(3, 0, ())
    assert [(one.sequence, one.subject, one.payload, one.headers) for one in stream.messages()] == [
        (1, stream.subject("a"), b"1", b"NATS/1.0\r\nNats-Msg-Id: one\r\nA: b\r\n\r\n"),
        (2, stream.subject("a"), b"", b"NATS/1.0\r\nNats-Msg-Id: two\r\n\r\n"),
        (3, stream.subject("a"), b"\r\n3", b"NATS/1.0\r\nNats-Msg-Id: three\r\n\r\n"),
    ]


def test_many_windows_of_messages_are_all_stored_in_order(access, stream):
    payloads = numbered(30_000)
    with Publisher(replace(access, max_pending=1000)) as publisher:
        assert publisher.publish(outgoing(stream.subject("a"), payloads)) == Published(30_000, 0, ())
    assert stream.count() == 30_000
    assert stream.payloads() == payloads


@pytest.mark.parametrize("max_pending", [1, 3])
def test_few_unacknowledged_messages_are_enough(access, stream, max_pending):
    with Publisher(replace(access, max_pending=max_pending)) as publisher:
        assert publisher.publish(outgoing(stream.subject("a"), numbered(50))) == Published(50, 0, ())
    assert stream.payloads() == numbered(50)


def test_large_messages_are_sent_without_either_side_waiting_for_the_other(publisher, stream):
    payloads = [bytes([number]) * 1_000_000 for number in range(60)]
    assert publisher.publish(outgoing(stream.subject("a"), payloads)).stored == 60
    assert stream.payloads() == payloads


def test_nothing_to_publish_is_done_at_once(publisher, stream):
    assert publisher.publish(outgoing(stream.subject("a"), [])) == Published(0, 0, ())
    assert stream.count() == 0


def test_what_the_stream_has_already_is_reported_as_duplicates_and_not_stored_again(publisher, stream):
    assert publisher.publish(outgoing(stream.subject("a"), numbered(100))) == Published(100, 0, ())
    assert publisher.publish(outgoing(stream.subject("a"), numbered(150))) == Published(50, 100, ())
    assert stream.payloads() == numbered(150)


def test_a_message_larger_than_the_stream_allows_is_refused_and_the_others_are_stored(publisher, stream):
    stream.update(max_msg_size=1000)
    payloads = [b"a", b"x" * 2000, b"b", b"y" * 3000, b"c"]
    published = publisher.publish(outgoing(stream.subject("a"), payloads))
    assert (published.stored, published.duplicates) == (3, 0)
    assert [(one.index, one.code) for one in published.refused] == [(1, 10054), (3, 10054)]
    assert "exceeds maximum allowed" in published.refused[0].reason
    assert stream.payloads() == [b"a", b"b", b"c"]


def test_a_message_larger_than_the_server_allows_is_refused_and_the_others_are_stored(publisher, stream):
    payloads = [b"a", b"x" * publisher.max_payload, b"b"]
    published = publisher.publish(outgoing(stream.subject("a"), payloads))
    assert (published.stored, [one.index for one in published.refused]) == (2, [1])
    assert f"max_payload of {publisher.max_payload}" in published.refused[0].reason
    assert stream.payloads() == [b"a", b"b"]


def test_nothing_but_messages_that_are_too_large_is_all_refused(publisher, stream):
    published = publisher.publish(outgoing(stream.subject("a"), [b"x" * publisher.max_payload] * 2))
    assert (published.stored, [one.index for one in published.refused]) == (0, [0, 1])
    assert stream.count() == 0


async def test_somebody_who_answers_besides_the_stream_confuses_nobody(access, publisher, stream):
    client = await connect(access)

    async def answer(message: Msg) -> None:
        await message.respond(b"thanks")

    await client.subscribe(stream.subject("a"), cb=answer)
    await client.flush()
    published = await asyncio.to_thread(publisher.publish, outgoing(stream.subject("a"), numbered(500)))
    await client.close()
    assert published == Published(500, 0, ())
    assert stream.payloads() == numbered(500)


def test_a_message_of_just_the_allowed_size_is_stored(publisher, stream):
    probe = outgoing(stream.subject("a"), [b""])
    payload = b"x" * (publisher.max_payload - int(probe.sizes()[0]))
    assert publisher.publish(outgoing(stream.subject("a"), [payload, payload + b"x"])).stored == 1


def test_a_subject_without_stream_is_an_error_once_the_time_is_up(hasty):
    with Publisher(hasty) as publisher:
        with pytest.raises(
            BrokerUnavailable, match=r"does not store messages for 'nobody\.here': no stream listens; .*deleted"
        ):
            publisher.publish(outgoing("nobody.here", numbered(10)))


def test_a_full_stream_is_an_error_with_the_remedy_once_the_time_is_up(hasty, stream):
    stream.update(max_msgs=20, discard="new")
    with Publisher(hasty) as publisher:
        with pytest.raises(BrokerUnavailable, match=r"maximum messages exceeded; the stream is full.*raise its limits"):
            publisher.publish(outgoing(stream.subject("a"), numbered(50)))
    assert stream.payloads() == numbered(20)


def test_a_server_without_room_is_an_error_with_the_remedy():
    settings = NatsSettings(root=shared_root(), max_file_bytes=1 << 20)
    with EmbeddedNats(settings) as server:
        access = NatsAccess(url=server.url, timeout=timedelta(seconds=1))
        with fresh_stream(access) as stream, Publisher(access) as publisher:
            with pytest.raises(BrokerUnavailable, match="more storage"):
                publisher.publish(outgoing(stream.subject("a"), numbered(200, width=10_000)))
            held = stream.payloads()
            assert 0 < len(held) < 200
            assert held == numbered(len(held), width=10_000)


def test_a_full_stream_that_is_purged_takes_the_rest_in_order(access, stream):
    stream.update(max_msgs=20, discard="new")
    with Publisher(access) as publisher, ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publisher.publish, outgoing(stream.subject("a"), numbered(30)))
        eventually(lambda: stream.count() == 20)
        stream.purge()
        published = publishing.result()
    assert published.stored == 30
    assert stream.payloads() == numbered(10, start=20)


def test_what_was_stored_while_an_earlier_message_was_refused_is_stored_again_behind_it(access, stream):
    large = b"L" * 5000
    payloads = [b"first", large, b"second", b"third"]
    stream.update(max_bytes=4000, discard="new")
    with Publisher(access) as publisher, ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publisher.publish, outgoing(stream.subject("a"), payloads))
        eventually(lambda: stream.payloads() == [b"first", b"second", b"third"])
        stream.update(max_bytes=100_000)
        published = publishing.result()
    assert published == Published(4, 0, ())
    found = stream.messages()
    assert [one.payload for one in found] == [b"first", b"second", b"third", large, b"second", b"third"]
    ids = [(one.headers or b"").split(b"Nats-Msg-Id: ")[1].split(b"\r\n")[0] for one in found]
    assert ids == [b"id-0", b"id-2", b"id-3", b"id-1", b"id-2-r1", b"id-3-r1"]


def test_packets_that_others_came_between_are_stored_again_from_the_first_on(access, stream):
    large = b"L" * 5000
    stream.update(max_bytes=4000, discard="new")
    messages = replace(outgoing(stream.subject("a"), [b"packet 0", large, b"next"]), starts=pa.array([True, False, True]))
    with Publisher(access) as publisher, ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publisher.publish, messages)
        eventually(lambda: stream.payloads() == [b"packet 0", b"next"])
        stream.update(max_bytes=100_000)
        publishing.result()
    assert stream.payloads()[-3:] == [b"packet 0", large, b"next"]


def test_a_stream_deleted_and_made_anew_takes_the_rest_in_order(access, stream):
    payloads = numbered(60_000)
    with Publisher(access) as publisher, ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publisher.publish, outgoing(stream.subject("a"), payloads))
        # More than may be under way, so that some are confirmed: a stream's last answers can be lost with it.
        eventually(lambda: stream.count() > access.max_pending)
        stream.delete()
        stream.create()
        published = publishing.result()
    assert published.stored == 60_000
    held = stream.payloads()
    last = {payload: at for at, payload in enumerate(held)}
    assert 0 < len(last) < 60_000
    assert sorted(last, key=lambda payload: last[payload]) == payloads[-len(last) :]
    # What was under way, and came into the new stream while what was sent before it had found none.
    assert len(held) - len(last) < access.max_pending


@pytest.mark.timeout(60)
def test_a_server_killed_in_the_middle_loses_nothing_and_has_nothing_twice():
    payloads = numbered(100_000)
    with ConfiguredNats() as server:
        access = NatsAccess(url=server.url, timeout=timedelta(seconds=30))
        with fresh_stream(access) as stream, Publisher(access) as publisher, ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(publisher.publish, outgoing(stream.subject("a"), payloads))
            for limit in (10_000, 50_000):
                reached = eventually(lambda limit=limit: (count := stream.count()) > limit and count)
                assert reached < len(payloads)
                server.kill()
                server.start()
            published = publishing.result()
            assert published.stored + published.duplicates == len(payloads)
            assert published.refused == ()
            assert stream.count() == len(payloads)
            assert stream.payloads() == payloads


def test_a_connection_that_is_cut_again_and_again_loses_nothing(nats, access, stream):
    payloads = numbered(40_000)
    with Proxy(nats.url) as proxy, ThreadPoolExecutor(1) as pool:
        with Publisher(replace(access, url=proxy.url)) as publisher:
            publishing = pool.submit(publisher.publish, outgoing(stream.subject("a"), payloads))
            for limit in (1_000, 10_000, 20_000):
                eventually(lambda limit=limit: stream.count() > limit)
                proxy.cut()
            published = publishing.result()
    assert published.stored + published.duplicates == 40_000
    assert stream.payloads() == payloads


def test_a_connection_that_falls_silent_is_replaced(nats, stream):
    with Proxy(nats.url) as proxy:
        with Publisher(NatsAccess(url=proxy.url, timeout=timedelta(seconds=3))) as publisher:
            publisher.publish(outgoing(stream.subject("a"), numbered(10)))
            proxy.freeze()
            published = publisher.publish(outgoing(stream.subject("a"), numbered(20)))
    assert published == Published(10, 10, ())
    assert stream.payloads() == numbered(20)


def test_a_server_that_stays_away_is_an_error_once_the_time_is_up(nats, stream):
    with Proxy(nats.url) as proxy:
        with Publisher(NatsAccess(url=proxy.url, timeout=timedelta(seconds=2))) as publisher:
            proxy.refuse = True
            proxy.cut()
            with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1"):
                publisher.publish(outgoing(stream.subject("a"), numbered(20)))
            proxy.refuse = False
            assert publisher.publish(outgoing(stream.subject("a"), numbered(20))) == Published(20, 0, ())


def test_a_subject_that_the_user_may_not_publish_to_is_named():
    permissions = {"publish": {"allow": ["$JS.API.>", "allowed.>"]}}
    users = {"users": [{"user": "me", "password": "secret", "permissions": permissions}]}
    with ConfiguredNats(authorization=users) as server:
        access = NatsAccess(url=f"nats://me:secret@{server.address}", timeout=timedelta(seconds=5))
        stream = Stream(access, "S")
        stream.call("STREAM.CREATE.S", name="S", subjects=["allowed.>", "forbidden.>"])
        with Publisher(access) as publisher:
            with pytest.raises(BrokerError, match=r"does not let us publish to 'forbidden\.a'; add it") as refusal:
                publisher.publish(outgoing("forbidden.a", numbered(10)))
            assert not refusal.value.retryable
            assert publisher.publish(outgoing("allowed.a", numbered(10))) == Published(10, 0, ())
        assert stream.count() == 10
