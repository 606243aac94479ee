"""Creek's own test suite against Headwater's producer, told by Creek's environment, with real servers and the client.

Tables and assertions are those of Creek's integration tests, in both generations of the wire. After them come tests of
changes that Creek loses and Headwater must not. The producer runs on the session of the tests, one for each generation.
"""

import asyncio
import base64
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from pyspark.sql import SparkSession

from headwater import creek
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import stream_info
from headwater.creek.fingerprint import fingerprint_of
from headwater.creek.names import Kind, Names
from headwater.embedded import EmbeddedNats, EmbeddedPostgres, NatsSettings
from headwater.embedded.process import free_port
from headwater.errors import BrokerError, SnapshotFailed
from headwater.model import Op
from tests.support.creek.producer_thread import ProducerThread, producing
from tests.support.servers.embedded import fresh_database, postgres_settings, shared_root
from tests.support.servers.tcp_proxy import Proxy

pytestmark = pytest.mark.timeout(300)

# The generation chooses names and schemas. To see the producer come back after an outage, one of them is enough.
one_generation = pytest.mark.parametrize("place", ["1"], indirect=True, ids=["generation1"])

_NAMESPACE = "CREEK"
_PATIENCE_SECONDS = 60

_COLUMNS = """
    bool bool, char "char", varchar varchar, bpchar bpchar, date date, float4 float4, float8 float8, int2 int2, int4 int4,
    int8 int8, json json, jsonb jsonb, text text, time time, timestamp timestamp, timestamptz timestamptz,
    uuid uuid primary key, numeric numeric({numeric}),
    bool_arr bool[], char_arr "char"[], varchar_arr varchar[], bpchar_arr bpchar[], date_arr date[], float4_arr float4[],
    float8_arr float8[], int2_arr int2[], int4_arr int4[], int8_arr int8[], json_arr json[], jsonb_arr jsonb[],
    text_arr text[], time_arr time[], timestamp_arr timestamp[], timestamptz_arr timestamptz[], uuid_arr uuid[],
    numeric_arr numeric({numeric})[]
"""
_SETUP = (
    f"create table types_data ({_COLUMNS.format(numeric='10')})",
    "insert into types_data (uuid, text, int4, numeric) "
    "select gen_random_uuid(), 'row ' || g, g, g from generate_series(1, 1000) g",
    "create table other (id int primary key, data text)",
    f"create table types ({_COLUMNS.format(numeric='10, 5')})",
    "create table prices (id int, value float8, at date, primary key (id, at)) partition by range (at)",
    "create table prices_2022 partition of prices for values from ('2022-01-01') to ('2023-01-01')",
    "create table prices_2023 partition of prices for values from ('2023-01-01') to ('2024-01-01')",
    # What Creek's tests have no table for.
    "create table fence (id int generated always as identity primary key)",
    "create table second (id int primary key, data text)",
    "create table large (id int primary key, note text, data text)",
    "alter table large alter data set storage external",
    "create table whole (id int primary key, note text, data text)",
    "alter table whole alter data set storage external",
    "alter table whole replica identity full",
    "create table odd_types "
    "(id int primary key, amount numeric, codes int[], addr inet, span interval, raw bytea, doc jsonb)",
    'create table "Odd.Name é" ("i d" int primary key, "päyload" text)',
)
_TABLES = (
    "public.types_data public.other public.types public.prices,public.second public.large,public.whole public.odd_types "
    "public.fence "
    'public."Odd.Name é"'
)


@dataclass
class Place:
    """A producer that runs, its servers, and a name of its own in both."""

    generation: creek.Generation
    source: str
    proxy: Proxy
    nats: EmbeddedNats
    database: str
    slot: str
    producer: ProducerThread

    @property
    def tries(self) -> int:
        """How often the producer has failed, and is to try again."""
        return sum("trying again in" in line for line in self.producer.log)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[creek.Client]:
        async with creek.connect(self.nats.url, _NAMESPACE, generation=self.generation) as client:
            yield client

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.source, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def wait_for_replies(self, count: int = 2) -> None:
        """Wait until the producer has told the server so many times how far it is."""
        answers = "select reply_time from pg_stat_replication where application_name like 'headwater%'"
        with psycopg.connect(self.source, autocommit=True) as connection:
            seen = set[tuple[object, ...]]()

            def have_come() -> bool:
                seen.update(connection.execute(answers).fetchall())
                return len(seen) > count

            self.producer.wait_until(have_come)

    def published(self, table: str) -> int:
        """How many messages the stream has of a table."""
        names = Names(_NAMESPACE, self.database, self.generation)
        subject = names.subject(Kind.WAL, *table.split(".", 1))
        with closing(Link(NatsAccess(url=self.nats.url))) as link:
            info = stream_info(link, names.stream(Kind.WAL), subject)
        return 0 if info is None else info.subject_counts.get(subject, 0)

    def settle(self) -> int:
        """Wait until all that was written has been acknowledged and confirmed; returns where the stream ends then."""
        with psycopg.connect(self.source, autocommit=True) as connection:
            (written,) = connection.execute("select pg_current_wal_insert_lsn()").fetchone() or ("",)
            # Something behind it that is published: an idle server has no reason to move its slot.
            connection.execute("insert into fence default values")
            query = "select confirmed_flush_lsn >= %s::pg_lsn from pg_replication_slots where slot_name = %s"
            self.producer.wait_until(lambda: connection.execute(query, [written, self.slot]).fetchone() == (True,))
        with closing(Link(NatsAccess(url=self.nats.url))) as link:
            info = stream_info(link, Names(_NAMESPACE, self.database, self.generation).stream(Kind.WAL))
        return 0 if info is None else info.last_seq


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """A server of this file alone: its slots stay from one test to the next."""
    with EmbeddedPostgres(postgres_settings(18)) as server:
        yield server.url


@pytest.fixture(scope="module", params=["1", "2"], ids=["generation1", "generation2"])
def place(
    request: pytest.FixtureRequest, spark: SparkSession, server_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    with placed(spark, server_url, tmp_path_factory.mktemp("creek"), request.param) as found:
        yield found


@contextmanager
def placed(spark: SparkSession, server_url: str, directory: Path, generation: str) -> Iterator[Place]:
    """A producer that publishes, with a database and a NATS server of its own."""
    with ExitStack() as stack:
        source = stack.enter_context(fresh_database(server_url))
        proxy = stack.enter_context(Proxy(source))
        nats = stack.enter_context(EmbeddedNats(NatsSettings(root=shared_root())))
        with psycopg.connect(source, autocommit=True) as connection:
            for statement in _SETUP:
                connection.execute(statement.encode())
            database = connection.info.dbname
        slot = f"test_{secrets.token_hex(4)}"
        environment = {
            "PG_URI": proxy.url,
            "PG_PUBLICATION_NAME": "test",
            "PG_PUBLICATION_SLOT": slot,
            "PG_TABLES": _TABLES,
            "NATS_URI": nats.url,
            "NATS_NAMESPACE": _NAMESPACE,
            # So long does a batch wait for a server that is away.
            "NATS_TIMEOUT": "3s",
            "PROMETHEUS_PORT": str(free_port()),
            "CREEK_GENERATION": generation,
            "PG_MESSAGE_TIMEOUT": "10s",
        }
        producer = stack.enter_context(producing(spark, environment, directory / "checkpoint"))
        found = Place(creek.Generation(generation), source, proxy, nats, database, slot, producer)
        producer.wait_until(lambda: asyncio.run(_is_ready(found)))
        yield found


async def _is_ready(place: Place) -> bool:
    try:
        async with place.client() as client:
            found = await client.get_last_schema(place.database, "public.other")
            await client.get_schema(found.fingerprint, database=place.database)
    except BrokerError:
        return False
    return True


async def _take(stream: creek.WalStream, count: int, seconds: float = _PATIENCE_SECONDS) -> list[creek.WalMessage]:
    """So many messages of a stream, which have to come."""
    async with asyncio.timeout(seconds):
        return [await anext(stream) for _ in range(count)]


@asynccontextmanager
async def _following(place: Place, table: str) -> AsyncIterator[creek.WalStream]:
    """The messages of a table from now on."""
    async with place.client() as client:
        async with client.stream_wal(place.database, table, after=place.settle()) as stream:
            yield stream


async def test_insert(place: Place) -> None:
    async with _following(place, "public.other") as stream:
        place.execute("insert into other values (1, 'test')")
        (message,) = await _take(stream, 1)
        assert message.sent_at > message.source.tx_at > datetime(2000, 1, 1, tzinfo=UTC)
        assert (message.source.db, message.source.schema, message.source.table) == (place.database, "public", "other")
        assert message.source.name == "dummy"
        assert (message.op, message.before, message.after) == (Op.INSERT, None, {"id": 1, "data": "test"})
        assert (message.source.last_lsn is not None) == (place.generation is creek.Generation.ONE)
        place.execute("insert into other values (2, 'test 2')")
        async with place.client() as client:
            resumed = client.stream_wal_from(place.database, "public.other", message.source.tx_at, message.source.lsn)
            (second,) = await _take(resumed, 1)
            assert second.after == {"id": 2, "data": "test 2"}
            assert second.source.lsn > message.source.lsn
            await resumed.aclose()
        await _take(stream, 1)
        place.execute("insert into other select g, 'many' from generate_series(11, 16) g")
        place.execute("insert into other values (17, 'last')")
        assert [row.after["id"] for row in await _take(stream, 7) if row.after] == [*range(11, 18)]


async def test_update(place: Place) -> None:
    place.execute("insert into other values (21, 'test')")
    async with _following(place, "public.other") as stream:
        place.execute("update other set data = 'cool' where id = 21", "update other set id = 100 where id = 21")
        plain, moved = await _take(stream, 2)
    assert (plain.op, plain.before, plain.after) == (Op.UPDATE, {"id": 21}, {"id": 21, "data": "cool"})
    assert (moved.op, moved.before, moved.after) == (Op.UPDATE_KEY, {"id": 21}, {"id": 100, "data": "cool"})


async def test_delete(place: Place) -> None:
    place.execute("insert into other values (31, 'test')")
    async with _following(place, "public.other") as stream:
        place.execute("delete from other where id = 31")
        (message,) = await _take(stream, 1)
    assert (message.op, message.before, message.after) == (Op.DELETE, {"id": 31}, None)


async def test_snap(place: Place) -> None:
    async with place.client() as client:
        reader = await client.snapshot(place.database, "public.types_data")
        rows = [row async for row in reader.rows()]
        assert len(rows) == 1000
        assert sorted(str(row["text"]) for row in rows) == sorted(f"row {n}" for n in range(1, 1001))
        assert reader.keys == ("uuid",)
        listed = await client.list_snapshots(place.database, "public.types_data")
        # Other tests take snapshots, too; the latest is the last.
        assert listed[-1].name == reader.header.topic
        assert listed[-1].messages == 1000
        again = await client.get_snapshot(listed[0].name)
        assert len([row async for row in again.rows()]) == 1000


_EVERY = """
    insert into types values (true, 'a', 'hi', 'hello', '2023-01-23', 1.25, 2.5, 1, 2, 3, '{"a": 1}', '{"b": [2]}', 'text',
        '12:34:56.789', '2023-01-23 12:34:56', '2023-01-23 12:34:56+00', '1eafa1c4-9c0f-4d0b-8a3c-6c5d4e3f2a1b', 1234.5,
        '{t,f}', '{a,b}', '{hi,ho}', '{x,y}', '{2023-01-23}', '{1.5}', '{2.5,3.5}', '{1}', '{2}', '{3}', '{}', '{}',
        '{a,b}', '{12:34:56}', '{2023-01-23 12:34:56}', '{2023-01-23 12:34:56+00}',
        '{1eafa1c4-9c0f-4d0b-8a3c-6c5d4e3f2a1b}', '{1.5,-2.25}')
"""


async def test_types(place: Place) -> None:
    async with _following(place, "public.types") as stream:
        place.execute(_EVERY)
        (message,) = await _take(stream, 1)
    row = message.after
    assert row is not None and len(row) == 36
    assert (row["bool"], row["char"], row["varchar"], row["bpchar"]) == (True, "a", "hi", "hello")
    assert (row["date"], row["numeric"]) == (date(2023, 1, 23), Decimal("1234.50000"))
    assert (row["json"], row["jsonb"], row["json_arr"]) == ({"a": 1}, {"b": [2]}, [])
    assert row["uuid"] == UUID("1eafa1c4-9c0f-4d0b-8a3c-6c5d4e3f2a1b")
    assert row["timestamptz"] == datetime(2023, 1, 23, 12, 34, 56, tzinfo=UTC)
    assert row["numeric_arr"] == [Decimal("1.5"), Decimal("-2.25")]
    place.execute("truncate types")


async def test_schema(place: Place) -> None:
    async with place.client() as client:
        found = await client.get_last_schema(place.database, "public.types")
        schema = json.loads(found.schema)
        names = [field["name"] for field in schema["fields"]]
        assert names == ["fingerprint", "source", "op", "sent_at", "before", "after"]
        source = [field["name"] for field in schema["fields"][1]["type"]["fields"]]
        labels = ["last_lsn", "lsn"] if place.generation is creek.Generation.ONE else ["lsn"]
        assert source == ["name", "tx_at", "db", "schema", "table", "tx_id", *labels]
        before, after = schema["fields"][4]["type"][1], schema["fields"][5]["type"][1]
        assert (before["name"], after["name"], len(after["fields"])) == ("before.types", "after.types", 36)
        fields = {field["name"]: field for field in after["fields"]}
        assert fields["numeric"] == {
            "name": "numeric",
            "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 5}],
            "pgKey": False,
            "pgType": "numeric",
        }
        modifier = fields["date"]["type"][2]
        assert (modifier["name"], modifier["type"]) == ("after.infinity_modifier", "enum")
        assert fields["uuid"]["pgKey"] is True
        computed = base64.urlsafe_b64encode(fingerprint_of(schema)).decode()
        assert found.fingerprint == computed
        same = await client.get_schema(found.fingerprint, database=place.database)
    assert json.loads(same.schema) == schema
    assert same.source == "public.types"


async def test_partitions(place: Place) -> None:
    async with _following(place, "public.prices") as stream:
        place.execute("insert into prices values (1, 1.5, '2022-05-05'), (2, 2.5, '2023-05-05')")
        rows = [message.after for message in await _take(stream, 2)]
    assert rows == [{"id": 1, "value": 1.5, "at": date(2022, 5, 5)}, {"id": 2, "value": 2.5, "at": date(2023, 5, 5)}]


@one_generation
async def test_restart(place: Place) -> None:
    said = len(place.producer.log)
    async with _following(place, "public.other") as stream:
        refused = place.proxy.refused
        place.proxy.refuse = True
        place.proxy.cut()
        place.producer.wait_until(lambda: place.proxy.refused > refused + 2)
        place.execute("insert into other values (999, 'reconnect')")
        place.proxy.refuse = False
        (message,) = await _take(stream, 1)
        assert message.after == {"id": 999, "data": "reconnect"}
        place.execute("insert into other values (998, 'after')")
        (message,) = await _take(stream, 1)
        assert message.after == {"id": 998, "data": "after"}
    place.producer.require_life()
    # Its session in the state database was cut, too. When it notices, it stands by until it has the lease again, and nobody
    # answers requests meanwhile: the next test is not to begin before.
    place.producer.wait_until(lambda: _has_run_again(place.producer.log[said:]))
    await asyncio.to_thread(place.producer.wait_until, lambda: asyncio.run(_is_ready(place)))
    assert 1 <= len(place.producer.log) - said <= 99


def _has_run_again(log: Sequence[str]) -> bool:
    phases = [line.rpartition(": ")[2] for line in log if line.startswith("pipeline ")]
    return "standing by" in phases and "running" in phases[phases.index("standing by") :]


def test_nats_reconnection(spark: SparkSession, server_url: str, tmp_path: Path) -> None:
    # The server that is started again is this test's own.
    with placed(spark, server_url, tmp_path, "1") as place:
        asyncio.run(_reconnect(place))


async def _reconnect(place: Place) -> None:
    async with _following(place, "public.second") as stream:
        place.execute("insert into second select g, 'before' from generate_series(1, 5) g")
        await _take(stream, 5)
        place.nats.kill()
        place.execute("insert into second select g, 'away' from generate_series(6, 8) g")
        with psycopg.connect(place.source, autocommit=True) as connection:
            (written,) = connection.execute("select pg_current_wal_insert_lsn()").fetchall()[0]
            connection.execute("insert into fence default values")
            sent = "select 1 from pg_stat_replication where sent_lsn >= %s::pg_lsn"
            place.producer.wait_until(lambda: connection.execute(sent, [written]).fetchall())
            failures = place.tries
            place.producer.wait_until(lambda: place.tries > failures)
            # Sent, and not acknowledged: the slot has to stay before it.
            confirmed = "select confirmed_flush_lsn < %s::pg_lsn from pg_replication_slots where slot_name = %s"
            assert connection.execute(confirmed, [written, place.slot]).fetchall() == [(True,)]
        place.nats.start()
        assert [message.after["id"] for message in await _take(stream, 3) if message.after] == [6, 7, 8]
        place.execute("insert into second select g, 'after' from generate_series(9, 13) g")
        place.execute("insert into second values (14, 'last')")
        assert [message.after["id"] for message in await _take(stream, 6) if message.after] == [*range(9, 15)]


async def test_copy_and_a_truncate_of_several_tables_arrive_whole(place: Place) -> None:
    async with _following(place, "public.other") as stream, _following(place, "public.second") as second:
        place.execute("delete from other", "delete from second")
        with psycopg.connect(place.source) as connection, connection.cursor() as cursor:
            with cursor.copy("copy other from stdin") as copy:
                copy.write("".join(f"{n}\tcopied\n" for n in range(1000, 1100)))
        copied = [
            message async for message in _until(stream, lambda message: message.after == {"id": 1099, "data": "copied"})
        ]
        assert [message.after["id"] for message in copied if message.op == Op.INSERT and message.after] == [
            *range(1000, 1100)
        ]
        place.execute("insert into second values (1, 'x')", "truncate other, second")
        truncated = [message async for message in _until(second, lambda message: message.op == Op.TRUNCATE)]
        (last,) = await _take(stream, 1)
    assert (last.op, last.before, last.after) == (Op.TRUNCATE, None, None)
    assert truncated[-1].source.lsn == last.source.lsn
    assert truncated[-1].id != last.id


async def test_overlapping_transactions_and_one_left_open_lose_no_row(place: Place) -> None:
    with psycopg.connect(place.source) as first, psycopg.connect(place.source) as second:
        async with _following(place, "public.other") as stream:
            first.execute("insert into other values (2001, 'early')")
            second.execute("insert into other select g, 'overlapping' from generate_series(2002, 2004) g")
            second.commit()
            # The producer confirms what it has published, which lies behind the beginning of what is left open.
            place.settle()
            place.wait_for_replies()
            first.execute("insert into other values (2005, 'late'), (2006, 'late')")
            first.commit()
            messages = await _take(stream, 6)
    assert [message.after["id"] for message in messages if message.after] == [2002, 2003, 2004, 2001, 2005, 2006]
    assert len({message.id for message in messages}) == 6


async def test_large_values_that_an_update_left_alone_arrive_or_are_named(place: Place) -> None:
    value = "v" * 20_000
    place.execute("insert into large values (1, 'a', repeat('v', 20000))", "insert into whole select * from large")
    async with _following(place, "public.large") as large, _following(place, "public.whole") as whole:
        place.execute("update large set note = 'b'", "update whole set note = 'b'")
        (marked,), (merged,) = await _take(large, 1), await _take(whole, 1)
    assert (marked.op, marked.unchanged, marked.after) == (Op.UPDATE, ("data",), {"id": 1, "note": "b", "data": None})
    assert (merged.op, merged.unchanged) == (Op.UPDATE_KEY, ())
    assert merged.after == {"id": 1, "note": "b", "data": value}


async def test_a_row_of_several_packets_arrives_whole(place: Place) -> None:
    async with _following(place, "public.large") as stream:
        place.execute(
            "insert into large values (2, 'three packets', repeat('0123456789', 250000))", "delete from large where id = 2"
        )
        message, after = await _take(stream, 2)
    assert message.after == {"id": 2, "note": "three packets", "data": "0123456789" * 250_000}
    assert after.op == Op.DELETE


async def test_values_that_creek_drops_arrive(place: Place) -> None:
    async with _following(place, "public.odd_types") as stream:
        place.execute(
            "insert into odd_types values (1, 'NaN', '{1,null,3}', '10.0.0.1/8', '1 day 02:00', '\\xdeadbeef', '[1, 2]')",
            "insert into odd_types (id, amount, codes, doc) "
            "values (2, 12345678901234567890.123456789, '{{1,2},{3,4}}', '\"text\"')",
            "insert into odd_types values (3, null, '{}', null, null, null, 'null')",
        )
        first, second, third = [message.after for message in await _take(stream, 3)]
        reader_rows = []
        async with place.client() as client:
            reader = await client.snapshot(place.database, "public.odd_types")
            reader_rows = [row async for row in reader.rows()]
    assert first is not None and second is not None and third is not None
    assert isinstance(first["amount"], Decimal) and first["amount"].is_nan()
    assert (first["codes"], first["doc"], first["addr"], first["raw"]) == ([1, None, 3], [1, 2], "10.0.0.1/8", "\\xdeadbeef")
    assert (second["amount"], second["codes"], second["doc"]) == (
        Decimal("12345678901234567890.123456789"),
        [[1, 2], [3, 4]],
        "text",
    )
    assert (third["amount"], third["codes"], third["doc"]) == (None, [], None)
    assert sorted(row["id"] for row in reader_rows) == [1, 2, 3]  # type: ignore[type-var] # integers
    assert next(row["codes"] for row in reader_rows if row["id"] == 1) == [1, None, 3]


async def test_odd_names_arrive(place: Place) -> None:
    table = 'public."Odd.Name é"'
    async with _following(place, table) as stream:
        place.execute("insert into \"Odd.Name é\" values (1, 'päck')")
        (message,) = await _take(stream, 1)
        async with place.client() as client:
            reader = await client.snapshot(place.database, table)
            rows = [row async for row in reader.rows()]
    assert message.after == {"i d": 1, "päyload": "päck"}
    assert rows == [{"i d": 1, "päyload": "päck"}]


async def test_a_table_that_was_never_changed_has_its_schema_on_the_stream(place: Place) -> None:
    async with place.client() as client:
        found = await client.get_last_schema(place.database, "public.types_data")
    assert found.source == "public.types_data"


async def test_requests_that_cannot_be_met_are_answered_and_the_next_one_is_not_disturbed(place: Place) -> None:
    async with place.client() as client:
        with pytest.raises(SnapshotFailed, match="nothing_of_the_kind"):
            await client.snapshot(place.database, "public.nothing_of_the_kind")
        # Another producer may know it, so this one keeps silent: for as long as somebody waits.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await client.get_schema("AAAAAAAAAAA=", database=place.database)
        reader = await client.snapshot(place.database, "public.types_data")
        assert len([row async for row in reader.rows()]) == 1000


async def test_snapshots_at_the_same_time_are_all_complete(place: Place) -> None:
    async def read() -> int:
        async with place.client() as client:
            reader = await client.snapshot(place.database, "public.types_data")
            return len([row async for row in reader.rows()])

    assert await asyncio.gather(*(read() for _ in range(3))) == [1000, 1000, 1000]


async def test_a_table_is_added_and_removed_in_sql_while_the_producer_runs(place: Place) -> None:
    place.execute('create schema if not exists "Sales"', 'create table "Sales"."New" (id int primary key, v text)')
    place.execute("""select _creek.add_table('test', '"Sales"."New"')""")
    async with place.client() as client:
        stream = client.stream_wal(place.database, '"Sales"."New"')
        await _has_schema_of(client, place, '"Sales"."New"')
        place.execute("""insert into "Sales"."New" values (1, 'in')""")
        (message,) = await _take(stream, 1)
        assert message.after == {"id": 1, "v": "in"}
        place.execute(
            """select _creek.remove_table('test', '"Sales"."New"')""", """insert into "Sales"."New" values (2, 'out')"""
        )
        place.settle()
        assert place.published("Sales.New") == 1
        await stream.aclose()


async def test_a_table_without_a_key_is_refused_before_it_breaks_the_application(place: Place) -> None:
    place.execute("create table if not exists keyless (v int)", "insert into keyless values (1)")
    with pytest.raises(psycopg.Error, match="key"):
        place.execute("select _creek.add_table('test', 'public.keyless')")
    place.execute("update keyless set v = 2")


async def _has_schema_of(client: creek.Client, place: Place, table: str) -> None:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            try:
                await client.get_last_schema(place.database, table)
                return
            except BrokerError:
                await asyncio.sleep(0.1)


async def _until(stream: creek.WalStream, is_last: Callable[[creek.WalMessage], bool]) -> AsyncIterator[creek.WalMessage]:
    async with asyncio.timeout(_PATIENCE_SECONDS):
        async for message in stream:
            yield message
            if is_last(message):
                return
