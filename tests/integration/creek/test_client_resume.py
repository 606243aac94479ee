"""Where the client goes on: behind a position, in the middle of a transaction, from a time; and messages of many packets."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nats.js.api import StreamConfig

from headwater import creek
from headwater.brokers.nats import NatsAccess
from headwater.creek import Generation
from headwater.creek.framing import packets
from headwater.creek.names import Kind
from headwater.errors import PositionError, SettingsError
from headwater.model import Lsn
from tests.support.creek.fastavro_producer import Producer, first, producer, relation

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


@pytest.fixture
async def shop(nats) -> AsyncIterator[Producer]:
    async with producer(nats.url) as made:
        await made.publish_schema()
        yield made


@pytest.fixture
async def client(nats, shop) -> AsyncIterator[creek.Client]:
    async with creek.connect(nats.url, shop.names.root) as connected:
        yield connected


async def ids(stream: creek.WalStream, count: int) -> list[int]:
    """The ids of the next rows, and that there are no more of them that have arrived."""
    async with stream:
        found = [message.after["id"] for message in await first(stream, count)]
        with pytest.raises(TimeoutError):
            await first(stream, 1, seconds=0.3)
        return found


async def test_a_reader_goes_on_right_behind_any_message(shop, client):
    for number in range(1, 7):
        await shop.change({"id": number, "data": None}, lsn=0x200)
        shop.table = relation("public.others")
        await shop.change({"id": -number, "data": None}, lsn=0x200)
        shop.table = relation()
    async with client.stream_wal("shop", "public.orders") as stream:
        positions = [message.position for message in await first(stream, 6)]
    for read, position in enumerate(positions, 1):
        assert await ids(client.stream_wal("shop", "public.orders", after=position), 6 - read) == [*range(read + 1, 7)]


async def test_a_stream_knows_where_it_is(shop, client):
    await shop.changes(1, 3)
    async with client.stream_wal("shop", "public.orders", after=1) as stream:
        assert stream.position == 1
        await first(stream, 1)
        assert stream.position == 2
    assert await ids(client.stream_wal("shop", "public.orders", after=stream.position), 1) == [3]


async def test_the_position_of_a_quiet_table_moves_on_with_the_stream(nats, shop):
    access = NatsAccess(url=nats.url, timeout=timedelta(seconds=1.5))
    async with creek.connect(access, shop.names.root) as client:
        await shop.changes(1, 1)
        async with client.stream_wal("shop", "public.orders") as stream:
            await first(stream, 1)
            shop.table = relation("public.others")
            await shop.changes(2, 6)
            for _ in range(20):
                with pytest.raises(TimeoutError):
                    await first(stream, 1, seconds=0.5)
                if stream.position > 1:
                    break
            assert stream.position == 6
        await shop.client.jetstream().purge_stream(shop.names.stream(Kind.WAL), seq=6)
        shop.table = relation()
        await shop.changes(7, 7)
        assert await ids(client.stream_wal("shop", "public.orders", after=stream.position), 1) == [7]


async def test_a_position_is_not_beyond_what_was_given_out_though_more_has_come(shop, client):
    shop.chunk = 300
    for number in (1, 2):
        await shop.change({"id": number, "data": "x" * 900})
    async with client.stream_wal("shop", "public.orders") as stream:
        (message,) = await first(stream, 1)
        assert stream.position == message.position
    assert stream.position == message.position
    open_, _, *rest = packets(shop.message("c", {"id": 3, "data": "x" * 900}), shop.chunk)
    assert rest
    await shop.client.jetstream().publish(shop.subject, open_)
    async with client.stream_wal("shop", "public.orders", after=message.position) as stream:
        (second,) = await first(stream, 1)
        with pytest.raises(TimeoutError):
            await first(stream, 1, seconds=1)
        assert stream.position == second.position


async def test_creeks_own_rule_drops_what_is_not_beyond_an_lsn_and_so_the_rest_of_its_transaction(shop, client):
    for number, lsn in enumerate((0x200, 0x300, 0x300, 0x400), 1):
        await shop.change({"id": number, "data": None}, lsn=lsn)
    assert await ids(client.stream_wal_from("shop", "public.orders", LONG_AGO, "0/200"), 3) == [2, 3, 4]
    assert await ids(client.stream_wal_from("shop", "public.orders", LONG_AGO, Lsn(0x300)), 1) == [4]


async def test_with_an_ordinal_a_reader_goes_on_in_the_middle_of_a_transaction(shop, client):
    for number, lsn in enumerate((0x200, 0x300, 0x300, 0x300, 0x400), 1):
        await shop.change({"id": number, "data": None}, lsn=lsn)
    async with client.stream_wal("shop", "public.orders") as stream:
        *_, saved = await first(stream, 3)
    assert (saved.source.lsn, saved.ordinal) == (Lsn(0x300), 1)
    again = client.stream_wal_from("shop", "public.orders", LONG_AGO, saved.source.lsn, saved.ordinal)
    assert await ids(again, 2) == [4, 5]


async def test_messages_that_do_not_tell_their_ordinal_are_rather_read_twice_than_not_at_all(shop, client):
    for number in (1, 2):
        await shop.publish(shop.subject, shop.message("c", {"id": number, "data": None}, lsn=0x300))
    again = client.stream_wal_from("shop", "public.orders", LONG_AGO, Lsn(0x300), 0)
    assert await ids(again, 2) == [1, 2]


async def test_after_the_first_new_message_nothing_is_dropped_whatever_its_lsn(shop, client):
    for number, lsn in enumerate((0x300, 0x400, 0x200), 1):
        await shop.change({"id": number, "data": None}, lsn=lsn)
    assert await ids(client.stream_wal_from("shop", "public.orders", LONG_AGO, Lsn(0x300)), 2) == [2, 3]


async def test_a_time_is_that_of_storing(shop, client):
    await shop.changes(1, 2)
    stored = await shop.client.jetstream().get_msg(shop.names.stream(Kind.WAL), 2)
    assert stored.time is not None
    # The driver cuts the time off at microseconds.
    for time, expected in ((stored.time, [2]), (LONG_AGO, [1, 2]), (stored.time + timedelta(milliseconds=1), [])):
        assert await ids(client.stream_wal_from("shop", "public.orders", time, Lsn(0)), len(expected)) == expected


async def test_a_time_without_zone_is_in_utc(shop, client):
    await shop.changes(1, 1)
    tomorrow = datetime.now(UTC).replace(tzinfo=None) + timedelta(days=1)
    assert await ids(client.stream_wal_from("shop", "public.orders", tomorrow, Lsn(0)), 0) == []


@pytest.mark.parametrize("generation", Generation)
async def test_a_row_of_several_mebibytes_comes_whole(nats, generation):
    async with producer(nats.url, generation=generation) as shop:
        await shop.publish_schema()
        texts = ["x" * 2_500_000, "small", "é" * 600_000]
        for number, text in enumerate(texts):
            await shop.change({"id": number, "data": text})
        topic = await shop.snapshot([{"id": 1, "data": texts[0]}, {"id": 2, "data": "small"}])
        async with creek.connect(nats.url, shop.names.root, generation) as client:
            async with client.stream_wal("shop", "public.orders") as stream:
                found = await first(stream, 3)
            rows: list[dict[str, Any]] = [row async for row in await client.get_snapshot(topic)]
    assert [message.after["data"] for message in found] == texts
    assert [message.position for message in found] == [3, 4, 6]
    assert [message.ordinal for message in found] == [0, 0, 0]
    assert [len(row["data"]) for row in rows] == [2_500_000, 5]


@pytest.mark.parametrize("extra", [0, 1, -1])
async def test_a_message_that_is_a_multiple_of_the_packets_size_comes_once(shop, client, extra):
    message = shop.message("c", {"id": 1, "data": "x" * 500})
    shop.chunk = (len(message) + extra) // 2
    last = await shop.publish(shop.subject, message)
    await shop.changes(2, 2)
    assert await ids(client.stream_wal("shop", "public.orders"), 2) == [1, 2]
    async with client.stream_wal("shop", "public.orders") as stream:
        (large,) = await first(stream, 1)
    assert large.position in (last, last - 1)
    assert await ids(client.stream_wal("shop", "public.orders", after=large.position), 1) == [2]


async def test_a_message_is_whole_if_its_packets_lie_on_both_sides_of_the_place_to_go_on_at(shop, client):
    """Packets of two large messages, with those of another table between all of them."""
    shop.chunk = 100
    for number in (1, 2):
        body = shop.message("c", {"id": number, "data": "x" * 900})
        for packet in packets(body, shop.chunk):
            await shop.client.jetstream().publish(shop.subject, packet)
            for _ in range(3):
                await shop.client.jetstream().publish(f"{shop.subject}_others", b"between")
    await shop.changes(3, 3)
    count = len(packets(body, shop.chunk))
    ends = [1 + 4 * (count - 1), 4 * count + 1 + 4 * (count - 1)]
    async with client.stream_wal("shop", "public.orders") as stream:
        assert [message.position for message in await first(stream, 2)] == ends
    for after in (1, 5, ends[0] - 1, ends[0], ends[0] + 2, ends[0] + 8, ends[1] - 1, ends[1]):
        expected = [number for number, end in ((1, ends[0]), (2, ends[1]), (3, ends[1] + 4)) if end > after]
        assert await ids(client.stream_wal("shop", "public.orders", after=after), len(expected)) == expected


async def test_a_message_that_was_sent_again_from_its_first_packet_comes_once(shop, client):
    shop.chunk = 300
    message = shop.message("c", {"id": 1, "data": "x" * 900})
    parts = packets(message, shop.chunk)
    for packet in (*parts[:2], *parts):
        await shop.client.jetstream().publish(shop.subject, packet)
    await shop.changes(2, 2)
    assert await ids(client.stream_wal("shop", "public.orders"), 2) == [1, 2]


async def test_a_message_whose_beginning_is_no_longer_in_the_stream_is_left_out(shop, client):
    shop.chunk = 300
    message = shop.message("c", {"id": 1, "data": "x" * 900})
    await shop.publish(shop.subject, message)
    await shop.changes(2, 2)
    await shop.client.jetstream().purge_stream(shop.names.stream(Kind.WAL), seq=3)
    assert await ids(client.stream_wal("shop", "public.orders"), 1) == [2]


async def test_a_position_whose_successor_is_gone_is_an_error_that_says_what_to_do(shop, client):
    await shop.changes(1, 5)
    await shop.client.jetstream().purge_stream(shop.names.stream(Kind.WAL), seq=4)
    with pytest.raises(PositionError, match="no longer has sequence 2"):
        await first(client.stream_wal("shop", "public.orders", after=1), 1)
    assert await ids(client.stream_wal("shop", "public.orders", after=3), 2) == [4, 5]
    assert await ids(client.stream_wal("shop", "public.orders"), 2) == [4, 5]
    # Nothing was read before, so nothing of it is missing.
    assert await ids(client.stream_wal("shop", "public.orders", after=0), 2) == [4, 5]


async def test_a_position_beyond_the_end_of_the_stream_is_an_error(shop, client):
    await shop.changes(1, 2)
    with pytest.raises(PositionError, match="ends at sequence 2, before the wanted 8"):
        await first(client.stream_wal("shop", "public.orders", after=7), 1)


async def test_a_position_that_is_none_is_refused(client):
    with pytest.raises(SettingsError, match="at least 0"):
        client.stream_wal("shop", "public.orders", after=-1)


async def test_a_namespace_of_two_databases_has_one_stream_and_each_its_subjects(nats, shop, client):
    """In generation 1; a position counts the messages of both."""
    both = [shop.names.stream_subject(Kind.WAL), shop.names.stream_subject(Kind.WAL).replace(".shop.", ".stock.")]
    await shop.client.jetstream().update_stream(StreamConfig(name=shop.names.stream(Kind.WAL), subjects=both))
    for number in range(1, 4):
        await shop.changes(number, number)
        await shop.client.jetstream().publish(shop.subject.replace(".shop.", ".stock."), b"another's")
    async with client.stream_wal("shop", "public.orders") as stream:
        assert [message.position for message in await first(stream, 3)] == [1, 3, 5]
    assert await ids(client.stream_wal("shop", "public.orders", after=2), 2) == [2, 3]
