import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest

from headwater.brokers.nats import NatsAccess, Publisher, Received, StreamReader, stream_info
from headwater.errors import BrokerError, BrokerUnavailable, PositionError
from tests.support.brokers.nats_messages import Stream, fresh_stream, numbered, outgoing
from tests.support.servers.embedded import ConfiguredNats
from tests.support.servers.tcp_proxy import Proxy
from tests.support.waiting import eventually


def publish(stream: Stream, token: str, payloads: list[bytes], prefix: str = "id") -> None:
    with Publisher(stream.access) as publisher:
        published = publisher.publish(outgoing(stream.subject(token), payloads, prefix))
        assert published.stored == len(payloads)


def read(reader: StreamReader, count: int) -> list[Received]:
    """So many messages, however they come."""
    found: list[Received] = []
    while len(found) < count:
        part = reader.read(count - len(found), 10)
        assert part, f"only {len(found)} of {count} messages came"
        found += part
    return found


def wait_until_complete(reader: StreamReader, sequence: int) -> list[Received]:
    """What comes until the reader knows that everything up to there has come."""
    found: list[Received] = []

    def is_complete() -> bool:
        found.extend(reader.read(100, 0.1))
        return reader.complete >= sequence

    eventually(is_complete)
    return found


def delivered(stream: Stream) -> int:
    """The last message that the server has sent to the one consumer."""
    (name,) = consumers(stream)
    return int(stream.call(f"CONSUMER.INFO.{stream.name}.{name}")["delivered"]["stream_seq"])


def consumers(stream: Stream) -> list[str]:
    return stream.call(f"CONSUMER.NAMES.{stream.name}")["consumers"] or []


def test_a_backlog_is_read_in_order_with_everything_that_was_stored(access, stream):
    publish(stream, "a", numbered(50_000))
    with StreamReader(access, stream.name, [stream.subject("a")], 1) as reader:
        found = read(reader, 50_000)
        assert reader.read(1, 0.1) == []
    assert [one.payload for one in found] == numbered(50_000)
    assert [one.sequence for one in found] == list(range(1, 50_001))
    assert {one.subject for one in found} == {stream.subject("a")}
    assert found[7].headers == b"NATS/1.0\r\nNats-Msg-Id: id-7\r\n\r\n"
    assert abs(found[0].stored_at / 1e9 - time.time()) < 60


def test_no_more_is_given_than_was_asked_for(access, stream):
    publish(stream, "a", numbered(100))
    with StreamReader(access, stream.name, [], 1) as reader:
        sizes = [len(reader.read(30, 10)) for _ in range(3)]
        assert max(sizes) <= 30
        rest = read(reader, 100 - sum(sizes))
    assert rest[-1].sequence == 100


def test_reading_begins_at_the_wanted_sequence(access, stream):
    publish(stream, "a", numbered(10))
    with StreamReader(access, stream.name, [], 7) as reader:
        assert [one.sequence for one in read(reader, 4)] == [7, 8, 9, 10]


def test_only_the_wanted_subjects_are_read(access, stream):
    for round_ in range(3):
        for token in "abc":
            publish(stream, token, [f"{token}{round_}".encode()], f"{token}{round_}")
    with StreamReader(access, stream.name, [stream.subject("a"), stream.subject("c")], 1) as reader:
        assert [one.payload for one in read(reader, 6)] == [b"a0", b"c0", b"a1", b"c1", b"a2", b"c2"]


def test_messages_of_any_size_come_through(access, stream):
    payloads = [b"", b"x", b"\r\n", b"y" * 1_000_000, b"MSG a 1 2\r\n"] * 8
    publish(stream, "a", payloads)
    with StreamReader(access, stream.name, [], 1) as reader:
        assert [one.payload for one in read(reader, 40)] == payloads


def test_what_is_published_while_somebody_waits_comes_at_once(access, stream):
    with StreamReader(access, stream.name, [], 1) as reader, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(reader.read, 10, 15)
        eventually(lambda: consumers(stream))
        publish(stream, "a", [b"hello"])
        assert [one.payload for one in waiting.result(5)] == [b"hello"]


def test_a_closed_reader_leaves_no_consumer_behind(access, stream):
    reader = StreamReader(access, stream.name, [], 1)
    assert len(consumers(stream)) == 1
    reader.close()
    eventually(lambda: consumers(stream) == [])


def test_a_deleted_consumer_is_replaced_without_loss_or_repetition(access, stream):
    publish(stream, "a", numbered(100))
    with StreamReader(access, stream.name, [], 1) as reader:
        found = read(reader, 60)
        for name in consumers(stream):
            stream.call(f"CONSUMER.DELETE.{stream.name}.{name}")
        publish(stream, "a", numbered(100, start=100), "more")
        found += read(reader, 140)
    assert [one.payload for one in found] == numbered(200)


def test_a_connection_that_is_cut_is_replaced_without_loss_or_repetition(nats, access, stream):
    publish(stream, "a", numbered(60_000))
    with Proxy(nats.url) as proxy, StreamReader(replace(access, url=proxy.url), stream.name, [], 1) as reader:
        found = []
        for count in (100, 25_000, 20_000, 14_900):
            found += read(reader, count)
            proxy.cut()
    assert [one.payload for one in found] == numbered(60_000)


def test_a_server_that_falls_silent_is_left_for_a_new_connection(nats, stream):
    publish(stream, "a", numbered(10))
    with Proxy(nats.url) as proxy:
        access = NatsAccess(url=proxy.url, timeout=timedelta(seconds=2))
        with StreamReader(access, stream.name, [], 1) as reader:
            read(reader, 10)
            proxy.freeze()
            publish(stream, "a", [b"more"], "more")
            assert [one.payload for one in reader.read(10, 15)] == [b"more"]


@pytest.mark.timeout(60)
def test_a_server_that_was_killed_is_waited_for():
    with ConfiguredNats() as server:
        access = NatsAccess(url=server.url, timeout=timedelta(seconds=20))
        with fresh_stream(access) as stream:
            publish(stream, "a", numbered(100))
            with StreamReader(access, stream.name, [], 1) as reader:
                found = read(reader, 50)
                server.kill()
                server.start()
                publish(stream, "a", numbered(100, start=100), "more")
                found += read(reader, 150)
            assert [one.payload for one in found] == numbered(200)


def test_a_server_that_stays_away_is_an_error_once_the_time_is_up(nats, stream):
    with Proxy(nats.url) as proxy:
        access = NatsAccess(url=proxy.url, timeout=timedelta(seconds=1))
        with StreamReader(access, stream.name, [], 1) as reader:
            proxy.refuse = True
            proxy.cut()
            with pytest.raises(BrokerUnavailable):
                reader.read(1, 15)


def test_a_server_that_is_away_for_less_than_the_wait_gives_nothing(nats, access, stream):
    with Proxy(nats.url) as proxy, StreamReader(replace(access, url=proxy.url), stream.name, [], 1) as reader:
        proxy.refuse = True
        proxy.cut()
        assert reader.read(1, 0.3) == []
        proxy.refuse = False
        publish(stream, "a", [b"back"])
        assert [one.payload for one in reader.read(1, 10)] == [b"back"]


def test_a_position_that_the_stream_no_longer_has_is_an_error_naming_both(access, stream):
    stream.update(max_msgs=10)
    publish(stream, "a", numbered(50))
    with pytest.raises(PositionError, match=r"no longer has sequence 5, .* the oldest is 41"):
        StreamReader(access, stream.name, [stream.subject("a")], 5)


def test_all_that_there_is_can_be_read_whatever_is_gone(access, stream):
    stream.update(max_msgs=10)
    publish(stream, "a", numbered(50))
    with StreamReader(access, stream.name, [stream.subject("a")], 0) as reader:
        assert [one.sequence for one in read(reader, 10)] == list(range(41, 51))


def test_a_reader_that_the_stream_overtakes_is_told_so(access, stream):
    stream.update(max_msgs=10)
    with StreamReader(access, stream.name, [stream.subject("a")], 1) as reader:
        publish(stream, "a", numbered(50))
        with pytest.raises(PositionError, match=r"no longer has sequence 1, .* the oldest is 41"):
            reader.read(100, 5)


def test_a_reader_whose_messages_are_gone_before_it_asks_for_them_is_told_so(stream):
    """Nothing of its subject is left that could show it a gap; only the server says that it has looked further."""
    access = replace(stream.access, timeout=timedelta(seconds=3))
    stream.update(max_msgs=20)
    with StreamReader(access, stream.name, [stream.subject("a")], 1) as reader:
        assert reader.read(1, 0.1) == []
        publish(stream, "a", [bytes(1_000_000)] * 20, "large")
        eventually(lambda: delivered(stream) == 16)
        publish(stream, "b", numbered(20), "other")
        with pytest.raises(PositionError, match=r"no longer has sequence 17, .* the oldest is 21"):
            wait_until_complete(reader, 40)
        assert reader.complete <= 16


def test_a_reader_of_a_rare_subject_does_not_mind_that_others_are_trimmed(stream):
    access = replace(stream.access, timeout=timedelta(seconds=1.5))
    stream.update(max_msgs=10)
    publish(stream, "rare", [b"one"], "one")
    with StreamReader(access, stream.name, [stream.subject("rare")], 1) as reader:
        read(reader, 1)
        for round_ in range(3):
            publish(stream, "busy", numbered(10), f"busy{round_}")
            assert wait_until_complete(reader, 11 + 10 * round_) == []
        assert stream.info().first_seq == 22
        publish(stream, "rare", [b"two"], "two")
        assert [one.payload for one in reader.read(1, 5)] == [b"two"]


def test_a_reader_of_a_rare_subject_that_comes_back_begins_behind_what_was_complete(stream):
    access = replace(stream.access, timeout=timedelta(seconds=1.5))
    stream.update(max_msgs=10)
    publish(stream, "rare", [b"one"], "one")
    with StreamReader(access, stream.name, [stream.subject("rare")], 1) as reader:
        read(reader, 1)
        publish(stream, "busy", numbered(10), "busy")
        assert wait_until_complete(reader, 11) == []
    publish(stream, "busy", numbered(5), "more")
    publish(stream, "rare", [b"two"], "two")
    with pytest.raises(PositionError, match=r"no longer has sequence 2, .* the oldest is 8"):
        StreamReader(access, stream.name, [stream.subject("rare")], 2)
    with StreamReader(access, stream.name, [stream.subject("rare")], reader.complete + 1) as again:
        assert [one.payload for one in again.read(10, 5)] == [b"two"]


@pytest.mark.parametrize("start", [0, 1])
def test_a_stream_that_was_thrown_away_whole_since_the_server_last_spoke_may_have_had_ours(stream, start):
    access = replace(stream.access, timeout=timedelta(seconds=1.5))
    stream.update(max_msgs=10)
    publish(stream, "busy", numbered(5), "busy")
    with StreamReader(access, stream.name, [stream.subject("rare")], start) as reader:
        assert wait_until_complete(reader, 5) == []
        publish(stream, "busy", numbered(30), "more")
        with pytest.raises(PositionError, match=r"no longer has sequence 6, .* the oldest is 26"):
            wait_until_complete(reader, 35)


def test_messages_that_are_not_yet_handed_out_are_not_complete(access, stream):
    publish(stream, "b", numbered(2), "other")
    publish(stream, "a", numbered(5))
    with StreamReader(access, stream.name, [stream.subject("a")], 1) as reader:
        assert reader.complete == 0
        eventually(lambda: reader.read(0, 0.1) == [] and reader.complete == 2)
        assert [one.sequence for one in read(reader, 2)] == [3, 4]
        assert reader.complete == 4
        read(reader, 3)
        assert reader.complete == 7


def test_sequences_of_other_subjects_are_no_gap(access, stream):
    publish(stream, "a", numbered(5), "first")
    publish(stream, "b", numbered(5), "other")
    publish(stream, "a", numbered(5, start=5), "second")
    with StreamReader(access, stream.name, [stream.subject("a")], 1) as reader:
        assert [one.payload for one in read(reader, 10)] == numbered(10)


def test_a_question_that_fails_loses_no_message(access, stream, monkeypatch):
    publish(stream, "a", numbered(5), "first")
    publish(stream, "b", numbered(5), "other")
    publish(stream, "a", numbered(5, start=5), "second")
    failures = iter([BrokerUnavailable("no answer"), BrokerError("refused")])

    def fail_twice(link, name):
        for error in failures:
            raise error
        return stream_info(link, name)

    with StreamReader(access, stream.name, [stream.subject("a")], 1) as reader:
        monkeypatch.setattr("headwater.brokers.nats.reader.stream_info", fail_twice)
        with pytest.raises(BrokerError, match="refused"):
            reader.read(10, 5)
        assert [one.payload for one in read(reader, 10)] == numbered(10)


def test_the_position_after_the_last_message_waits_for_the_next(access, stream):
    publish(stream, "a", numbered(5))
    with StreamReader(access, stream.name, [], 6) as reader:
        assert reader.read(1, 0.1) == []
        publish(stream, "a", [b"next"], "next")
        assert [one.sequence for one in reader.read(1, 5)] == [6]


def test_a_position_that_the_stream_never_reached_is_an_error(access, stream):
    publish(stream, "a", numbered(5))
    with pytest.raises(PositionError, match="ends at sequence 5, before the wanted 9"):
        StreamReader(access, stream.name, [], 9)


def test_a_stream_made_anew_is_another_stream(access, stream):
    publish(stream, "a", numbered(5))
    with StreamReader(access, stream.name, [], 1) as reader:
        read(reader, 5)
        stream.delete()
        stream.create()
        publish(stream, "a", numbered(20), "again")
        with pytest.raises(PositionError, match="was deleted and made anew"):
            reader.read(1, 10)


def test_a_stream_that_does_not_exist_is_an_error(access):
    with pytest.raises(BrokerError, match=r"stream 'NONE' does not exist at NATS .*; check its name"):
        StreamReader(access, "NONE", [], 1)
