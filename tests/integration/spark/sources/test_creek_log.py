"""What a stream throws away while the planner reads it: an error if it may have been a table's, nothing if it was not."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest

from headwater.brokers.nats import NatsAccess, Publisher
from headwater.creek.framing import packets
from headwater.errors import PositionError
from headwater.spark.sources.creek.log import MessageLog
from headwater.spark.sources.creek.offset import Mark
from headwater.spark.sources.creek.stream import StreamWatch, identity_of
from tests.support.brokers.nats_messages import Stream, fresh_stream, numbered, outgoing
from tests.support.waiting import eventually


@pytest.fixture
def stream(nats) -> Iterator[Stream]:
    with fresh_stream(NatsAccess(url=nats.url, timeout=timedelta(seconds=2))) as made:
        yield made


@pytest.fixture
def watch(stream) -> Iterator[StreamWatch]:
    with closing(StreamWatch(stream.access, stream.name)) as opened:
        yield opened


def open_log(stream: Stream, watch: StreamWatch, ahead_bytes: int) -> MessageLog:
    """A log of the subject `mine`, from the beginning of the stream."""
    identity = identity_of(watch.info())
    return MessageLog(stream.access, watch, identity, {stream.subject("mine"): 0}, Mark(0, {}), ahead_bytes)


def publish(stream: Stream, token: str, bodies: list[bytes], prefix: str) -> None:
    framed = [packet for body in bodies for packet in packets(body, 1_020_000)]
    with Publisher(stream.access) as publisher:
        assert publisher.publish(outgoing(stream.subject(token), framed, prefix)).stored == len(bodies)


def delivered(stream: Stream) -> int:
    (name,) = stream.call(f"CONSUMER.NAMES.{stream.name}")["consumers"]
    return int(stream.call(f"CONSUMER.INFO.{stream.name}.{name}")["delivered"]["stream_seq"])


def test_messages_that_are_gone_before_they_were_read_are_not_passed_over(stream, watch):
    stream.update(max_msgs=21)
    with closing(open_log(stream, watch, ahead_bytes=1)) as log:
        publish(stream, "mine", numbered(1), "first")
        # It reads no further now, since there is no room.
        eventually(lambda: log.end == 1)
        publish(stream, "mine", [bytes(1_000_000)] * 20, "large")
        # As much as it has asked for.
        eventually(lambda: delivered(stream) == 17)
        publish(stream, "other", numbered(21), "other")
        with pytest.raises(PositionError, match=r"no longer has sequence 18, .* the oldest is 22"):
            log.fill_to(42)
        assert log.end == 17


def test_others_messages_are_passed_over_and_may_then_be_gone(stream, watch):
    stream.update(max_msgs=10)
    with closing(open_log(stream, watch, ahead_bytes=1 << 20)) as log:
        publish(stream, "mine", numbered(1), "first")
        # The stream has no room for it beside ten others.
        eventually(lambda: log.end == 1)
        for round_ in range(3):
            publish(stream, "other", numbered(10), f"other{round_}")
            # So far the reader has come by itself, before more is gone.
            eventually(lambda end=11 + 10 * round_: log.end == end)
        assert stream.info().first_seq == 22
        publish(stream, "mine", numbered(1), "last")
        log.fill_to(32)
        assert log.counts(Mark(0, {}), Mark(32, {})) == {0: 2}


def test_what_others_have_just_written_need_not_be_waited_for(stream, watch):
    with closing(open_log(stream, watch, ahead_bytes=1 << 20)) as log:
        publish(stream, "mine", numbered(1), "first")
        publish(stream, "other", numbered(10), "other")
        eventually(lambda: log.end == 1)
        log.pass_over()
        assert log.end == 11
