"""The async client against a real NATS: changes, snapshots and schemas, in both generations of the wire."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from headwater import creek
from headwater.brokers.nats.access import NatsAccess
from headwater.creek import Generation, WalMessage
from headwater.creek.messages import SnapshotRequest
from headwater.errors import (
    BrokerError,
    BrokerUnavailable,
    MessageError,
    NoSchema,
    SettingsError,
    SnapshotFailed,
)
from headwater.model import Lsn, Op, Snapshot, SnapshotRead
from tests.support.creek.fastavro_producer import AT, Producer, first, producer, relation

SECOND = timedelta(seconds=1)


@pytest.fixture(params=Generation, ids=lambda generation: f"generation{generation}")
async def shop(nats, request) -> AsyncIterator[Producer]:
    async with producer(nats.url, generation=request.param) as made:
        yield made


@pytest.fixture
async def client(nats, shop) -> AsyncIterator[creek.Client]:
    access = NatsAccess(url=nats.url, timeout=2 * SECOND)
    async with creek.connect(access, shop.names.root, shop.names.generation) as connected:
        yield connected


def told(messages: list[WalMessage]) -> list[tuple[str, object, object]]:
    return [(message.op.value, message.before, message.after) for message in messages]


async def test_changes_come_with_their_rows_in_the_order_of_the_stream(shop, client):
    await shop.publish_schema()
    await shop.change({"id": 1, "data": "test"})
    await shop.change({"id": 1, "data": "cool"}, op="u", before={"id": 1})
    await shop.change({"id": 100, "data": None}, op="u_pk", before={"id": 1})
    await shop.change(None, op="d", before={"id": 100})
    await shop.change(None, op="t")
    async with client.stream_wal("shop", "public.orders") as stream:
        found = await first(stream, 5)
    assert told(found) == [
        ("c", None, {"id": 1, "data": "test"}),
        ("u", {"id": 1}, {"id": 1, "data": "cool"}),
        ("u_pk", {"id": 1}, {"id": 100, "data": None}),
        ("d", {"id": 100}, None),
        ("t", None, None),
    ]
    message = found[0]
    assert (message.source.db, message.source.schema, message.source.table) == ("shop", "public", "orders")
    assert (message.source.tx_at, message.source.tx_id, message.source.lsn) == (AT, 504, Lsn(0x110))
    assert message.source.last_lsn == (Lsn(0x100) if shop.names.generation is Generation.ONE else None)
    assert (message.op, message.sent_at, message.fingerprint) == (Op.INSERT, AT, shop.schema.name)
    assert [each.position for each in found] == [1, 2, 3, 4, 5]
    assert (message.id, message.ordinal) == ("7301.1.shop.slot.110.0", 0)


async def test_a_change_that_is_yet_to_come_is_waited_for(shop, client):
    await shop.publish_schema()
    async with client.stream_wal("shop", "public.orders") as stream:
        waiting = asyncio.create_task(first(stream, 1))
        await shop.change({"id": 1, "data": "late"})
        assert told(await waiting) == [("c", None, {"id": 1, "data": "late"})]


async def test_a_reader_that_was_cancelled_while_it_waited_misses_nothing(shop, client):
    await shop.publish_schema()
    async with client.stream_wal("shop", "public.orders") as stream:
        with pytest.raises(TimeoutError):
            await first(stream, 1, seconds=0.5)
        await shop.changes(1, 3)
        assert [message.after["id"] for message in await first(stream, 3)] == [1, 2, 3]


async def test_values_have_the_types_of_python_and_rows_that_do_not_fit_are_widened(shop, client):
    shop.table = relation(
        "public.orders", "id! int8, price numeric(10:2), at timestamptz, local timestamp, tags _text, doc jsonb"
    )
    await shop.publish_schema()
    row = {"id": 1, "price": Decimal("9.50"), "at": AT, "local": AT, "tags": ["a", "b"], "doc": b'{"a":1.5}'}
    await shop.change(row)
    shop.widened = True
    await shop.publish_schema()
    await shop.change({**row, "price": "NaN", "at": "infinity", "tags": "{a,NULL}"})
    async with client.stream_wal("shop", "public.orders") as stream:
        plain, wide = [message.after for message in await first(stream, 2)]
    assert plain == {**row, "local": AT.replace(tzinfo=None), "doc": {"a": 1.5}}
    assert repr(wide["price"]) == "Decimal('NaN')"
    assert (wide["at"], wide["tags"]) == ("infinity", ["a", None])


async def test_columns_that_were_not_sent_are_named(shop, client):
    await shop.publish_schema()
    headers = {"Headwater-Unchanged": "data,a%2Cb"}
    await shop.change({"id": 1, "data": None}, op="u", before={"id": 1}, headers=headers)
    async with client.stream_wal("shop", "public.orders") as stream:
        (message,) = await first(stream, 1)
    assert message.unchanged == ("data", "a,b")


async def test_a_table_with_dots_and_blanks_in_its_name_is_quoted(shop, client):
    shop.table = replace(relation(), schema="Sales 2024", name='the.»orders«"')
    await shop.publish_schema()
    await shop.change({"id": 1, "data": "x"})
    async with client.stream_wal("shop", '"Sales 2024"."the.»orders«"""') as stream:
        (message,) = await first(stream, 1)
    assert (message.source.schema, message.source.table) == ("Sales 2024", 'the.»orders«"')


@pytest.mark.parametrize("table", ["orders", "", ".orders", 'public."orders', "public."])
async def test_what_is_no_table_is_refused(client, table):
    with pytest.raises(SettingsError, match=r"write schema\.table"):
        client.stream_wal("shop", table)


async def test_a_stream_that_does_not_exist_is_an_error_that_names_it(nats):
    async with creek.connect(nats.url, "NOBODY") as client:
        with pytest.raises(BrokerError, match="stream 'NOBODY_wal' does not exist"):
            await first(client.stream_wal("shop", "public.orders"), 1)


async def test_two_databases_share_a_client(nats):
    async with producer(nats.url, generation=Generation.TWO) as shop:
        async with producer(nats.url, root=shop.names.root, database="stock", generation=Generation.TWO) as stock:
            for each in (shop, stock):
                await each.publish_schema()
                await each.change({"id": 1, "data": each.names.database})
        async with creek.connect(nats.url, shop.names.root, Generation.TWO) as client:
            for database in ("shop", "stock"):
                async with client.stream_wal(database, "public.orders") as stream:
                    assert [message.after["data"] for message in await first(stream, 1)] == [database]


async def test_a_schema_comes_from_a_producer_if_it_is_not_on_the_stream(shop, client):
    await shop.answer(shop.names.schema_requests[:1], shop.schema_message().to_json())
    await shop.changes(1, 2)
    async with client.stream_wal("shop", "public.orders") as stream:
        assert [message.after["id"] for message in await first(stream, 2)] == [1, 2]
    assert shop.requests == [shop.schema.name.encode()]


async def test_an_older_schema_is_found_on_the_stream_without_a_producer(shop, client):
    await shop.publish_schema()
    await shop.changes(1, 1)
    shop.table = relation("public.orders", "id! int4, data text, more int4")
    await shop.publish_schema()
    await shop.change({"id": 2, "data": "x", "more": 3})
    async with client.stream_wal("shop", "public.orders") as stream:
        found = await first(stream, 2)
    assert [message.after for message in found] == [{"id": 1, "data": "row 1"}, {"id": 2, "data": "x", "more": 3}]


async def test_a_message_whose_schema_nobody_knows_is_an_error_and_comes_again(shop, client):
    await shop.changes(1, 1)
    async with client.stream_wal("shop", "public.orders") as stream:
        with pytest.raises(NoSchema, match=f"no schema found for fingerprint {shop.schema.name}"):
            await first(stream, 1)
        assert stream.position == 0
        await shop.publish_schema()
        assert [message.after["id"] for message in await first(stream, 1)] == [1]
        assert stream.position == 1


async def test_a_message_that_cannot_be_read_is_an_error_that_names_it_and_stops_nothing_behind_it(shop, client):
    await shop.publish_schema()
    await shop.changes(1, 1)
    await shop.publish(shop.subject, b"no message of Creek's")
    await shop.publish(shop.subject, shop.message("c", {"id": 2, "data": "x"})[:-1])
    await shop.changes(3, 3)
    async with client.stream_wal("shop", "public.orders") as stream:
        assert [message.after["id"] for message in await first(stream, 1)] == [1]
        for sequence in (2, 3):
            with pytest.raises(MessageError, match=f"message {sequence} of the stream cannot be read"):
                await first(stream, 1)
        assert [message.after["id"] for message in await first(stream, 1)] == [3]


async def test_a_schema_is_given_by_its_fingerprint_and_asked_for_once(shop, client):
    wanted = shop.schema_message()
    await shop.answer(shop.names.schema_requests[:1], wanted.to_json())
    database = "shop" if shop.names.generation is Generation.TWO else None
    assert await client.get_schema(wanted.fingerprint, database=database) == wanted
    assert await client.get_schema(wanted.fingerprint, database=database) == wanted
    assert shop.requests == [wanted.fingerprint.encode()]


async def test_generation_two_asks_the_producer_of_a_database(nats):
    async with creek.connect(nats.url, generation="2") as client:
        with pytest.raises(SettingsError, match="give database="):
            await client.get_schema("9oTzOV2QDOA=")


@pytest.mark.parametrize("listens", [True, False])
async def test_a_fingerprint_that_nobody_knows_is_an_error_within_the_time_limit(shop, client, listens):
    async def keep_silent(_: object) -> None:
        """As producers do."""

    if listens:
        await shop.client.subscribe(shop.names.schema_requests[0], cb=keep_silent)
        await shop.settle()
    reason = "no answer on .* within 2 s" if listens else "nobody listens on"
    with pytest.raises(NoSchema, match=reason):
        await client.get_schema("9oTzOV2QDOA=", database="shop")


async def test_an_answer_that_is_no_schema_is_an_error(shop, client):
    await shop.answer(shop.names.schema_requests[:1], b"sorry")
    with pytest.raises(MessageError, match="is no schema"):
        await client.get_schema("9oTzOV2QDOA=", database="shop")


async def test_the_last_schema_of_a_table_is_the_newest_that_was_published(shop, client):
    with pytest.raises(NoSchema, match=r"no schema found for public\.orders of database 'shop'"):
        await client.get_last_schema("shop", "public.orders")
    await shop.publish_schema()
    shop.table = relation("public.orders", "id! int4, data text, more int4")
    newest = await shop.publish_schema()
    assert await client.get_last_schema("shop", "public.orders") == newest


async def test_a_schema_larger_than_a_packet_is_found_whole(shop, client):
    shop.chunk = 500
    await shop.publish_schema()
    shop.table = relation("public.orders", "id! int4, data text, more int4")
    newest = await shop.publish_schema()
    assert await client.get_last_schema("shop", "public.orders") == newest


ROWS = [{"id": 1, "data": "a"}, {"id": 2, "data": None}, {"id": 3, "data": "c" * 3000}]


async def test_a_snapshot_is_asked_for_and_read_to_its_end(shop, client):
    topic = shop.topic()
    await shop.answer(shop.names.snapshot_requests, topic.encode())
    publishing = asyncio.create_task(shop.snapshot(ROWS))
    reader = await client.snapshot("shop", "public.orders")
    assert [row async for row in reader] == ROWS
    assert [row async for row in reader.rows()] == []
    await publishing
    assert (reader.header.topic, reader.header.lsn, reader.header.at) == (topic, Lsn(0x100), AT)
    assert (reader.header.approx_rows, reader.keys, reader.seen) == (3, ("id",), None)
    (request,) = shop.requests
    assert SnapshotRequest.from_json(request) == SnapshotRequest("shop", "public", "orders")


async def test_a_snapshot_of_headwaters_says_which_changes_it_holds(shop, client):
    headers = {"Headwater-Snapshot": "10:20:10,14", "Headwater-Until": "0/200"}
    topic = await shop.snapshot(ROWS, headers=headers, end_headers={"Headwater-Rows": "3"})
    reader = await client.get_snapshot(topic)
    assert reader.seen == SnapshotRead(Snapshot(10, 20, frozenset({10, 14})), Lsn(0x200))
    assert [row async for row in reader.rows()] == ROWS


async def test_a_row_that_looks_like_the_end_is_a_row_if_the_producer_is_headwaters(shop, client):
    shop.table = relation("public.t", "a! int4, b! int4, c! int4")
    rows = [{"a": -35, "b": -40, "c": 35}]
    headers = {"Headwater-Snapshot": "10:20:", "Headwater-Until": "0/200"}
    topic = await shop.snapshot(rows, headers=headers, end_headers={"Headwater-Rows": "1"})
    assert [row async for row in await client.get_snapshot(topic)] == rows


async def test_a_snapshot_with_fewer_rows_than_its_end_says_is_an_error(shop, client):
    topic = await shop.snapshot(ROWS, end_headers={"Headwater-Rows": "4"})
    reader = await client.get_snapshot(topic)
    with pytest.raises(SnapshotFailed, match="has 4 rows, and only 3 came"):
        await first(reader, 4)


async def test_a_snapshot_that_is_refused_tells_why(shop, client):
    reason = "table public.orders is not in the publication"
    await shop.answer(shop.names.snapshot_requests, reason.encode(), {"Headwater-Error": reason})
    with pytest.raises(SnapshotFailed, match=f"database 'shop' gives no snapshot of public.orders: {reason}"):
        await client.snapshot("shop", "public.orders")


@pytest.mark.parametrize("answer", [b"", b"not allowed", b"CREEK.shop.wal.public.orders"])
async def test_an_answer_that_is_no_topic_is_a_refusal(shop, client, answer):
    await shop.answer(shop.names.snapshot_requests, answer)
    with pytest.raises(SnapshotFailed, match=answer.decode() or "the answer is empty"):
        await client.snapshot("shop", "public.orders")


async def test_a_snapshot_without_a_producer_is_an_error_at_once(client):
    with pytest.raises(BrokerUnavailable, match="is a producer running"):
        await client.snapshot("shop", "public.orders")


async def test_a_snapshot_that_is_broken_off_tells_why_after_the_rows_that_came(shop, client):
    topic = await shop.snapshot(ROWS, end=b"ERROR", end_headers={"Headwater-Error": "the table was dropped"})
    reader = await client.get_snapshot(topic)
    assert await first(reader, 3) == ROWS
    with pytest.raises(SnapshotFailed, match=f"{topic} was broken off: the table was dropped"):
        await first(reader, 1)


async def test_a_snapshot_that_does_not_go_on_is_an_error_and_not_waited_for_for_ever(shop, client):
    topic = await shop.snapshot(ROWS, end=None)
    reader = await client.get_snapshot(topic, patience=timedelta(seconds=2))
    assert await first(reader, 3) == ROWS
    with pytest.raises(BrokerUnavailable, match=r"is not complete, and nothing more of it came within 2 s"):
        await first(reader, 1)
    await reader.aclose()


async def test_a_snapshot_that_never_begins_is_an_error(shop, client):
    await shop.answer(shop.names.snapshot_requests, shop.topic().encode())
    with pytest.raises(BrokerUnavailable, match="is not complete"):
        await client.snapshot("shop", "public.orders", patience=timedelta(seconds=0.5))


async def test_a_topic_without_messages_is_an_error(shop, client):
    with pytest.raises(SnapshotFailed, match="no messages on"):
        await client.get_snapshot(shop.topic())


@pytest.mark.parametrize("topic", ["nonsense", "CREEK.shop.wal.public.orders"])
async def test_what_is_no_topic_is_refused(client, topic):
    with pytest.raises(SettingsError, match="no topic of a snapshot"):
        await client.get_snapshot(topic)


async def test_a_snapshot_that_does_not_begin_with_a_header_is_an_error(shop, client):
    topic = shop.topic()
    await shop.publish(topic, json.dumps({"lsn": "0/1"}).encode())
    with pytest.raises(MessageError, match="begins with something else than a header"):
        await client.get_snapshot(topic)


async def test_a_row_that_cannot_be_read_is_an_error_that_names_it(shop, client):
    topic = await shop.snapshot(ROWS[:1], end=b"\x02")
    reader = await client.get_snapshot(topic)
    assert await first(reader, 1) == ROWS[:1]
    with pytest.raises(MessageError, match=f"message 3 of snapshot {topic} cannot be read"):
        await first(reader, 1)
    await reader.aclose()


async def test_snapshots_of_a_table_are_listed_by_their_time(shop, client):
    assert await client.list_snapshots("shop", "public.orders") == []
    later = datetime(2024, 3, 1, 8, 0, 0, 42, tzinfo=UTC)
    topics = [shop.topic(), shop.topic(later, b"\x00\x01")]
    for topic in reversed(topics):
        await shop.snapshot(ROWS, topic)
    shop.table = relation("public.others")
    await shop.snapshot(ROWS)
    found = await client.list_snapshots("shop", "public.orders")
    assert [(each.name, each.at, each.messages) for each in found] == [(topics[0], AT, 3), (topics[1], later, 3)]
    assert [row async for row in await client.get_snapshot(found[0].name)] == ROWS


async def test_many_tables_are_read_at_the_same_time(shop, client):
    tables = [f"public.t{number}" for number in range(8)]
    for table in tables:
        shop.table = relation(table)
        await shop.publish_schema()
        await shop.changes(1, 20)

    async def read(table: str) -> list[object]:
        async with client.stream_wal("shop", table) as stream:
            return [message.after["id"] for message in await first(stream, 20)]

    assert await asyncio.gather(*map(read, tables)) == [[*range(1, 21)]] * 8


async def test_nothing_can_be_read_after_the_end_of_the_connection(nats, shop):
    await shop.publish_schema()
    await shop.changes(1, 2)
    async with creek.connect(nats.url, shop.names.root, shop.names.generation) as client:
        stream = client.stream_wal("shop", "public.orders")
        await first(stream, 1)
    with pytest.raises(BrokerError, match="was closed"):
        await first(stream, 2)


async def test_a_generation_that_there_is_not_is_refused(nats):
    with pytest.raises(SettingsError, match="no generation 3"):
        async with creek.connect(nats.url, generation="3"):
            pass


async def test_a_server_that_is_not_there_is_an_error(nats):
    access = NatsAccess(url="nats://127.0.0.1:1", timeout=SECOND)
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
        async with creek.connect(access):
            pass


async def test_a_wrong_password_is_an_error_that_does_not_show_it(nats):
    with pytest.raises(BrokerError) as caught:
        async with creek.connect(f"nats://headwater:secret-word@127.0.0.1:{nats.port}"):
            pass
    assert "secret-word" not in str(caught.value)
