"""Snapshots on request: taken from a real database by Spark, and read back from a real NATS."""

import asyncio
import json
import os
import re
import subprocess
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit

import nats as nats_py
import psycopg
import pyarrow as pa
import pytest

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.publisher import Publisher
from headwater.brokers.nats.streams import StreamLimits
from headwater.capture import snapshot as capture_snapshot
from headwater.capture.pieces import describe
from headwater.capture.snapshot import open_snapshot
from headwater.creek.client.headers import find_header
from headwater.creek.decode import Decoder
from headwater.creek.encode import encode_rows
from headwater.creek.framing import FIRST_BYTES
from headwater.creek.messages import EOF, SchemaMessage, SnapshotHeader
from headwater.creek.names import Generation, Kind, Names
from headwater.creek.requests import ERROR_HEADER
from headwater.creek.schema import row_schema
from headwater.creek.store import prepare_creek, save_schemas
from headwater.embedded import EmbeddedNats, EmbeddedPostgres, NatsSettings
from headwater.errors import SourceError
from headwater.model import Lsn, Snapshot, SnapshotRead
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync
from headwater.postgres.types import Types
from headwater.spark.creek import RequestService, answering, statements
from headwater.spark.creek.reading import Cores, ReadingCancelled, TableReading
from headwater.spark.creek.snapshot import SnapshotRun, TopicWriter
from headwater.spark.creek.task import RowTask
from headwater.spark.pipeline import Pipeline
from headwater.spark.reporter import Reporter
from headwater.spark.settings import ChangesSettings, NatsSinkSettings, PipelineSettings, SnapshotRule
from headwater.spark.sinks.build import build_sinks
from headwater.spark.sources.creek.stream import StreamWatch
from headwater.spark.state import Phase
from tests.support.brokers.nats_streams import fresh_namespace, stored, wal, whole
from tests.support.servers.embedded import fresh_database, postgres_settings, shared_root
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

PUBLICATION = "creek"
TOPIC = re.compile(r"\d{14}_\d{6}_[0-9a-f]{4}")


@dataclass
class Shop:
    """A database with a publication, a NATS server, and who asks for what."""

    url: str
    access: NatsAccess
    names: Names

    def settings(self, **sink) -> tuple[PipelineSettings, NatsSinkSettings]:
        source = ChangesSettings(url=self.url, tables=("public.*",), slot="creek", publication=PUBLICATION)
        nats = NatsSinkSettings(
            name="creek", access=self.access, namespace=self.names.root, generation=self.names.generation, **sink
        )
        return PipelineSettings(name="shop", source=source, sinks=(nats,), checkpoint="none", state_url=self.url), nats

    def service(self, spark, **sink) -> RequestService:
        settings, nats = self.settings(**sink)
        return RequestService(spark, settings, nats, self.names.database)

    def execute(self, *statements) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)

    def insert(self, statement, *parameters) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(statement, parameters)

    def fetch(self, statement):
        with psycopg.connect(self.url, autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def ask(self, table, *, database=None, seconds=30):
        return asyncio.run(self.asking(table, database=database, seconds=seconds))

    async def asking(self, table, *, database=None, seconds=30):
        """The reply to a request for a snapshot: its body, and why there is none."""
        namespace, name = table.split(".", 1)
        request = {"database": database or self.names.database, "namespace": namespace, "table": name}
        async with await nats_py.connect(self.access.url) as client:
            reply = await client.request(self.names.snapshot_requests[0], json.dumps(request).encode(), timeout=seconds)
        return reply.data.decode(), (reply.headers or {}).get("Headwater-Error")

    def topic(self, table):
        body, error = self.ask(table)
        assert error is None, error
        return body

    def stored(self, topic):
        return stored(self.access, self.names.stream(Kind.SNAPSHOT), topic)

    def ended(self, topic):
        """The messages of a snapshot once it has ended, well or not."""
        with closing(StreamWatch(self.access, self.names.stream(Kind.SNAPSHOT))) as watch:
            # The last message alone: to read all of a large snapshot at each look would take longer than to write it.
            eventually(lambda: _is_end(watch.message({"last_by_subj": topic})), seconds=60)
        return whole(self.stored(topic))

    def rows(self, table) -> list[dict[str, object]]:
        return self.read(self.topic(table))[1]

    def read(self, topic) -> tuple[SnapshotHeader, list[dict[str, object]]]:
        """The header and the rows of a snapshot that ends in EOF."""
        head, *rows, last = self.ended(topic)
        assert (last.body, last.headers.get("Headwater-Rows")) == (b"EOF", str(len(rows)))
        header = SnapshotHeader.from_json(head.body)
        decoder = Decoder(header.schema)
        return header, [decoder.row(row.body) for row in rows]

    def open_transactions(self):
        return self.fetch(
            "select pid, state, query from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            " and backend_type = 'client backend' and state <> 'idle'"
        )


def _is_end(message: dict[str, Any] | None) -> bool:
    return message is not None and (
        message["data"][FIRST_BYTES:] == EOF or find_header(message["hdrs"], ERROR_HEADER) is not None
    )


@contextmanager
def _shop(server_url, nats_url, generation=Generation.ONE, timeout=30):
    with fresh_database(server_url) as url:
        access = NatsAccess(url=nats_url, timeout=timedelta(seconds=timeout))
        shop = Shop(url, access, Names(fresh_namespace(), urlsplit(url).path[1:], generation))
        shop.execute(
            "create table other (id int primary key, data text)",
            "insert into other select n, 'row ' || n from generate_series(1, 100) as n",
            f"create publication {PUBLICATION} for table other",
        )
        yield shop


@pytest.fixture
def shop(postgres18, nats):
    with _shop(postgres18.url, nats.url) as shop:
        yield shop


@pytest.fixture
def own_nats():
    """A server that a test may end, and have back."""
    with EmbeddedNats(NatsSettings(root=shared_root())) as server:
        yield server


@pytest.fixture
def service(shop, spark):
    with shop.service(spark) as service:
        yield service


# Five of the cuts that `small_cuts` makes: one stands at the gate of `bundles`, and not all others can be read meanwhile.
LARGE = 4000


@pytest.fixture
def small_cuts(monkeypatch):
    for module in ("reading", "snapshot"):
        monkeypatch.setattr(f"headwater.spark.creek.{module}.CUT_PAGES", 128)


def _large(shop, rows=LARGE) -> None:
    shop.execute(
        "create table large (id int primary key, data text)",
        "alter table large alter column data set storage plain",
        f"alter publication {PUBLICATION} add table large",
    )
    shop.insert("insert into large select n, repeat('x', 1000) from generate_series(1, %s) as n", rows)


@pytest.fixture
def bundles(monkeypatch, small_cuts):
    """Stops the writers behind each bundle of rows: `stored` is set when one is there, and `goes_on` lets them go on."""

    class Gate:
        stored, goes_on = Event(), Event()

    write_rows = TopicWriter.write_rows

    def gated(self, bundle):
        write_rows(self, bundle)
        Gate.stored.set()
        assert Gate.goes_on.wait(60)

    monkeypatch.setattr(TopicWriter, "write_rows", gated)
    yield Gate
    Gate.goes_on.set()


@pytest.mark.parametrize("generation", Generation)
def test_a_snapshot_has_a_header_every_row_and_an_end(postgres18, nats, spark, generation):
    with _shop(postgres18.url, nats.url, generation) as shop, shop.service(spark) as service:
        before = datetime.now(UTC)
        topic = shop.topic("public.other")
        # Whoever reads at once finds it.
        assert shop.stored(topic)
        prefix = shop.names.snapshot("public", "other", "")
        assert topic.startswith(prefix)
        assert TOPIC.fullmatch(topic.removeprefix(prefix))
        header, rows = shop.read(topic)
        assert sorted(rows, key=lambda row: row["id"]) == [{"id": n, "data": f"row {n}"} for n in range(1, 101)]
        assert (header.topic, header.fingerprint, header.approx_rows) == ("", "tehSZhnhMvI=", -1)
        assert before < header.at < datetime.now(UTC)
        packets = shop.stored(topic)
        ids = [packet.headers["Nats-Msg-Id"] for packet in packets]
        rows_ids = [f"{topic}-row-{n}-seq-0" for n in range(1, 101)]
        assert ids == [f"{topic}-header-seq-0", *rows_ids, f"{topic}-eof-seq-0"]
        seen = Snapshot.parse(packets[0].headers["Headwater-Snapshot"])
        # Whoever knows positions alone may see a change again, and never misses one.
        assert header.lsn < Lsn.parse(packets[0].headers["Headwater-Until"])
        assert header.tx_id == seen.xmax % 2**32
        eventually(lambda: service.counts.completed)
        assert (service.counts.rows, service.counts.failed) == ({"public.other": 100}, {})
        assert service.counts.completed == {"public.other": 1}


def test_no_transaction_is_left_open_and_no_lock(shop, service):
    shop.read(shop.topic("public.other"))
    assert eventually(lambda: not shop.open_transactions())
    shop.execute("set lock_timeout = '2s'; truncate other")
    assert shop.rows("public.other") == []


def test_schemas_that_are_kept_are_told_and_no_others(shop, service):
    schema = SchemaMessage("9oTzOV2QDOA=", '{"type":"record"}', "public.other", datetime.now(UTC))

    async def ask(fingerprint):
        async with await nats_py.connect(shop.access.url) as client:
            return await client.request(shop.names.schema_requests[0], fingerprint.encode(), timeout=1)

    def is_silent(fingerprint):
        with pytest.raises(nats_py.errors.TimeoutError):
            asyncio.run(ask(fingerprint))
        return True

    assert is_silent(schema.fingerprint)
    with closing(connect_sync(shop.url)) as connection:
        prepare_creek(connection)
        save_schemas(connection, [schema])
    # Connections that were kept are gone, as after a restart of the server.
    shop.execute(
        "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    found = SchemaMessage.from_json(asyncio.run(ask(schema.fingerprint)).data)
    assert (found.fingerprint, found.schema, found.source) == (schema.fingerprint, schema.schema, schema.source)
    assert is_silent("AAAAAAAAAAA=")


def test_transaction_ids_beyond_32_bits_are_no_trouble(nats, spark):
    """Creek's snapshots fail for good once a server has seen so many."""
    with EmbeddedPostgres(postgres_settings(15)) as server:
        data = server.directory / "data"
        server.kill()
        (data / "postmaster.pid").unlink(missing_ok=True)
        owner = data.stat()
        user, group = (owner.st_uid, owner.st_gid) if os.geteuid() == 0 else (None, None)
        command = [str(server.bin_directory / "pg_resetwal"), "--force", "--epoch=3", str(data)]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", user=user, group=group)
        assert done.returncode == 0, done.stderr
        server.start()
        with _shop(server.url, nats.url) as shop, shop.service(spark):
            topic = shop.topic("public.other")
            header, rows = shop.read(topic)
            assert (len(rows), header.tx_id < 2**32) == (100, True)
            assert _seen(shop, topic).snapshot.xmax >= 3 * 2**32


def test_a_table_that_was_analysed_tells_about_how_many_rows_it_has(shop, service):
    shop.execute("analyze other")
    header, _ = shop.read(shop.topic("public.other"))
    assert header.approx_rows == 100


def test_names_of_any_kind_are_read(shop, service):
    shop.execute(
        """create table "Odd. ""Name"" %s {x}" ("Key" int primary key, "a b" text, "%s" text)""",
        """insert into "Odd. ""Name"" %s {x}" values (1, 'é', '%s')""",
        f"""alter publication {PUBLICATION} add table "Odd. ""Name"" %s {{x}}" """,
    )
    (row,) = shop.rows('public.Odd. "Name" %s {x}')
    assert list(row.values()) == [1, "é", "%s"]


def test_a_partitioned_table_is_read_as_one_and_its_partitions_are_not(shop, service):
    shop.execute(
        "create table prices (id int, at date, value float8, primary key (id, at)) partition by range (at)",
        "create table prices_2022 partition of prices for values from ('2022-01-01') to ('2023-01-01')",
        "create table prices_2023 partition of prices for values from ('2023-01-01') to ('2024-01-01')",
        "insert into prices values (1, '2022-05-01', 1.5), (1, '2023-05-01', 2.5)",
        f"alter publication {PUBLICATION} add table prices",
        f"alter publication {PUBLICATION} set (publish_via_partition_root = true)",
    )
    assert sorted(row["value"] for row in shop.rows("public.prices")) == [1.5, 2.5]
    _, error = shop.ask("public.prices_2022")
    assert "it is a partition" in error


def test_only_rows_and_columns_that_are_published_are_read(shop, service):
    shop.execute(
        "create table part (id int primary key, data text, secret text, twice int generated always as (id * 2) stored)",
        "insert into part values (1, 'a', 'x'), (2, 'b', 'y')",
        f"alter publication {PUBLICATION} add table part (id, data) where (id > 1)",
    )
    assert shop.rows("public.part") == [{"id": 2, "data": "b"}]


def test_whoever_asks_for_what_there_is_not_is_told_so(shop, service):
    shop.execute("create table hidden (id int primary key)", "create view seen as select 1 as id")
    for table, reason in {
        "public.missing": "it does not exist",
        "nowhere.other": "it does not exist",
        "public.hidden": f"publication '{PUBLICATION}' does not hold it",
        "public.seen": f"publication '{PUBLICATION}' does not hold it",
    }.items():
        body, error = shop.ask(table)
        assert body == error == f"there is no snapshot of {table}: {reason}"
    assert service.counts.failed == {}


def test_requests_can_be_limited_to_named_tables(shop, spark):
    shop.execute("create table item (id int primary key)", f"alter publication {PUBLICATION} add table item")
    with shop.service(spark, requests_tables=("public.i*",)):
        assert shop.rows("public.item") == []
        for table in ("public.other", "public.missing"):
            _, error = shop.ask(table)
            assert "requests for it are not allowed" in error


def test_a_table_that_may_not_be_read_is_refused(shop, spark):
    shop.execute(
        "do $$ begin create role creek_reader login password 'secret'; exception when duplicate_object then null; end $$",
        "alter table other owner to current_user",
    )
    parts = urlsplit(shop.url)
    reader = parts._replace(netloc=f"creek_reader:secret@{parts.hostname}:{parts.port}").geturl()
    with replace(shop, url=reader).service(spark):
        _, error = shop.ask("public.other")
    assert error == "there is no snapshot of public.other: role creek_reader may not read it"


def test_requests_of_other_databases_are_left_to_others(shop, service):
    with pytest.raises(nats_py.errors.Error):
        shop.ask("public.other", database="elsewhere", seconds=0.5)


def test_two_producers_on_one_server_each_answer_for_their_own_database(postgres18, nats, spark):
    with _shop(postgres18.url, nats.url) as one, _shop(postgres18.url, nats.url) as two:
        two = replace(two, names=replace(two.names, root=one.names.root))
        two.execute("update other set data = 'two'")
        with one.service(spark), two.service(spark):
            assert {row["data"] for row in two.rows("public.other")} == {"two"}
            assert "two" not in {row["data"] for row in one.rows("public.other")}
            # Both hear every request, and only one may say no.
            assert [shop.ask("public.none")[1] is None for shop in (one, two)] == [False, False]


@pytest.mark.parametrize(
    ("type_", "fit", "misfit", "read"),
    [
        ("numeric(10,5)", "1.5", "NaN", ["1.50000", "NaN"]),
        ("numeric", None, "1.50", ["1.50"]),
        ("int[]", "{1,2}", "{1,NULL}", ["[1, 2]", "[1, None]"]),
        ("text[]", "{}", "{{a},{b}}", ["[]", "[['a'], ['b']]"]),
        ("timestamptz", "2020-01-01", "294276-12-31 00:00+00", ["2020-01-01 00:00:00+00:00", "294276-12-31 00:00:00+00"]),
    ],
)
def test_rows_that_the_schema_cannot_hold_widen_the_whole_snapshot(shop, service, type_, fit, misfit, read):
    shop.execute(f"create table odd (id int primary key, value {type_})", f"alter publication {PUBLICATION} add table odd")
    if fit is not None:
        shop.insert("insert into odd values (1, %s)", fit)
    header, rows = shop.read(shop.topic("public.odd"))
    plain = header.fingerprint
    assert [str(row["value"]) for row in rows] == read[:-1]
    shop.insert("insert into odd values (2, %s), (3, null)", misfit)
    header, rows = shop.read(shop.topic("public.odd"))
    assert header.fingerprint != plain
    assert [str(row["value"]) for row in sorted(rows, key=lambda row: row["id"])] == [*read, "None"]
    shop.execute("delete from odd where id = 2")
    header, _ = shop.read(shop.topic("public.odd"))
    assert header.fingerprint == plain


def test_a_misfit_that_the_search_has_missed_breaks_the_snapshot_off_and_widens_the_next(shop, service, monkeypatch):
    shop.execute(
        "create table odd (id int primary key, value numeric(4,2))",
        "insert into odd values (1, 1.5), (2, 'NaN')",
        f"alter publication {PUBLICATION} add table odd",
    )
    monkeypatch.setattr(statements, "misfit", lambda *_: None)
    *_, last = shop.ended(shop.topic("public.odd"))
    assert "does not go into its plain schema" in last.headers["Headwater-Error"]
    assert sorted(str(row["value"]) for row in shop.rows("public.odd")) == ["1.50", "NaN"]


VALUES: dict[str, list[str | None]] = {
    "numeric(6,2)": ["1.5", "-9999.99", "NaN", None],
    "numeric(3,-2)": ["12300", "NaN", None],
    "numeric": ["1", "NaN", "Infinity", "-Infinity", None],
    "numeric(6,2)[]": ["{}", "{1.5}", "{NaN}", "{NULL}", "{{1},{2}}", "[0:1]={1,2}", None],
    "numeric[]": ["{}", "{1.5}", "{NULL}", None],
    "timestamp": ["infinity", "-infinity", "0044-03-15 BC", "294247-01-10 04:00:54.775807", "294247-01-10 04:00:54.775808"],
    "timestamptz": ["infinity", "-infinity", "294247-01-10 04:00:54.775807+00", "294247-01-10 04:00:54.775808+00", None],
    "timestamptz[]": ["{}", "{infinity,2020-01-01}", '{"294276-01-01 00:00+00"}', "{NULL}", None],
    "date": ["infinity", "5874897-12-31", "4713-01-01 BC", None],
    "date[]": ["{5874897-12-31,infinity}", "{NULL}", "{{2020-01-01}}"],
    "time": ["24:00", "00:00", None],
    "json": ["[1]", "null", '{"a": 1}', "1", None],
    "jsonb[]": ["{}", '{"null"}', "{NULL}", None],
    "text[]": ["{}", '{""}', '{"NULL"}', "{NULL}", "{{a,b},{c,d}}", "[2:3]={a,b}", None],
    "bytea": [r"\x00ff", None],
    "int4[]": ["{1}", "{}", "{NULL,1}"],
    "bool[]": ["{t,f}", "{NULL}"],
    "uuid[]": ["{d2719b1c-0000-4000-8000-000000000000}", "{NULL}"],
    "interval": ["1 year", None],
    "inet[]": ["{10.0.0.1,NULL}", "{{10.0.0.1}}"],
    "float8": ["NaN", "Infinity", "1.5", None],
}


@pytest.mark.parametrize("type_", VALUES)
def test_the_search_for_misfits_and_the_encoder_are_of_one_mind(shop, type_):
    """Without Spark: one row at a time, what the server's search says of it, and what the encoder does with it."""
    shop.execute(f"create table odd (value {type_}, id int)", "alter table odd replica identity full")
    shop.execute(f"alter publication {PUBLICATION} add table odd")
    with closing(connect_sync(shop.url)) as connection:
        for value in VALUES[type_]:
            connection.execute("truncate odd")
            connection.execute("insert into odd values (%s, 1)", [value])
            (readable,), _ = describe(connection, PUBLICATION, [("public", "odd")])
            types = Types.builtin().extended(readable.own_types)
            condition = statements.misfit(readable.relation, types)
            found = condition is not None and bool(
                fetch_sync(connection, statements.find_misfit(("public", "odd"), condition, "true"))
            )
            (text,) = connection.execute("select value::text, id::text from odd")
            rows = pa.RecordBatch.from_arrays([pa.array([one], pa.string()) for one in text], ["value", "id"])
            _, misfits = encode_rows(rows, readable.relation, types)
            assert found == bool(misfits.any()), value


@contextmanager
def _reading(shop, spark, table, **bounds):
    """A table at a snapshot, read by Spark without a topic."""
    with closing(open_snapshot(shop.url, [("public", table)], Event(), print)) as snapshot:
        ((readable,), _) = describe(snapshot.connection, PUBLICATION, [("public", table)], 16)
        task = RowTask(shop.url, snapshot.exported, 1024 * 1024, False, **bounds)
        yield readable, TableReading(spark, Cores(spark), task, readable.pieces)


def _ids(readable, bundles):
    decoder = Decoder(row_schema(readable.relation, Types.builtin()).text)
    return [decoder.row(packet[6:])["id"] for bundle in bundles for packet in bundle.packets.to_pylist()]


def test_what_would_not_fit_into_the_driver_is_read_in_smaller_parts(shop, spark):
    shop.execute(
        "create table wide (id int primary key, data text)",
        "insert into wide select n, string_agg(md5(m::text || n), '')"
        " from generate_series(1, 10) as n, generate_series(1, 1000) as m group by n",
        # Behind the large ones some that are small: one by one they would take for ever.
        "insert into wide select n, 'x' from generate_series(11, 4000) as n",
        f"alter publication {PUBLICATION} add table wide",
    )
    with _reading(shop, spark, "wide", most_bytes=100_000) as (readable, reading):
        bundles = list(reading.bundles())
    assert sorted(_ids(readable, bundles)) == list(range(1, 4001))
    assert max(sum(map(len, bundle.packets.to_pylist())) for bundle in bundles) < 100_000


def test_a_row_that_nobody_could_hold_is_refused_by_name(shop, spark):
    shop.execute(
        "create table wide (id int primary key, data text)",
        "insert into wide values (1, repeat('x', 3000000))",
        f"alter publication {PUBLICATION} add table wide",
    )
    with _reading(shop, spark, "wide", most_bytes=100_000, largest_bytes=1024 * 1024) as (_, reading):
        with pytest.raises(SourceError, match=r"a row of public\.wide has 2 MiB, more than the 1 of a snapshot"):
            list(reading.bundles())


def test_a_reading_that_is_cancelled_never_looks_complete(shop, spark):
    _large(shop, 3000)
    with _reading(shop, spark, "large") as (_, reading):
        bundles = reading.bundles()
        next(bundles)
        reading.cancel()
        with pytest.raises(ReadingCancelled):
            list(bundles)
    assert eventually(lambda: not shop.open_transactions())


def test_rows_that_are_larger_than_a_message_may_be_arrive_whole(shop, service):
    shop.execute(
        "create table wide (id int primary key, data text)",
        "insert into wide select n, repeat(md5(n::text), n * 40000) from generate_series(1, 3) as n",
        f"alter publication {PUBLICATION} add table wide",
    )
    topic = shop.topic("public.wide")
    _, rows = shop.read(topic)
    assert [len(row["data"]) for row in sorted(rows, key=lambda row: row["id"])] == [1_280_000, 2_560_000, 3_840_000]
    ids = [packet.headers["Nats-Msg-Id"] for packet in shop.stored(topic)]
    assert len(ids) == len(set(ids)) == 2 + 2 + 3 + 4


def test_many_snapshots_at_once_are_each_whole_and_of_one_moment(shop, service, small_cuts):
    _large(shop)

    async def ask_all():
        return await asyncio.gather(*(shop.asking(f"public.{table}") for table in ["large", "other"] * 3))

    replies = asyncio.run(ask_all())
    assert [error for _, error in replies] == [None] * 6
    topics = [topic for topic, _ in replies]
    assert len(set(topics)) == 6
    for topic, rows_there in zip(topics, [LARGE, 100] * 3, strict=True):
        _, rows = shop.read(topic)
        assert sorted(row["id"] for row in rows) == list(range(1, rows_there + 1))
    eventually(lambda: sum(service.counts.completed.values()) == 6)
    assert service.counts.rows == {"public.large": 3 * LARGE, "public.other": 300}


def test_a_snapshot_holds_what_was_committed_before_it_and_nothing_else(shop, service, bundles):
    """Rows that come and go while it is read: the header's visibility tells exactly which."""
    _large(shop)
    topic = shop.topic("public.large")
    assert bundles.stored.wait(60)
    shop.execute("update large set data = 'changed'", "delete from large where id % 2 = 0", "vacuum large")
    bundles.goes_on.set()
    _, rows = shop.read(topic)
    assert sorted(row["id"] for row in rows) == list(range(1, LARGE + 1))
    assert {row["data"] for row in rows} == {"x" * 1000}


def test_when_reading_breaks_off_the_topic_ends_in_an_error_and_not_in_eof(shop, service, bundles):
    _large(shop)
    topic = shop.topic("public.large")
    assert bundles.stored.wait(60)
    shop.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )
    bundles.goes_on.set()
    *_, last = shop.ended(topic)
    assert last.body == b"ERROR"
    assert "public.large" in last.headers["Headwater-Error"]
    assert last.headers["Nats-Msg-Id"] == f"{topic}-error-seq-0"
    eventually(lambda: service.counts.failed == {"public.large": 1})
    assert eventually(lambda: not shop.open_transactions())
    # The next one is not impaired.
    bundles.goes_on.set()
    assert len(shop.rows("public.large")) == LARGE


def test_a_stop_in_mid_snapshot_is_told_to_its_reader(shop, spark, bundles, monkeypatch):
    stop = SnapshotRun.stop

    def stop_and_go_on(self, reason):
        stop(self, reason)
        bundles.goes_on.set()

    monkeypatch.setattr(SnapshotRun, "stop", stop_and_go_on)
    _large(shop)
    with shop.service(spark) as service:
        topic = shop.topic("public.large")
        assert bundles.stored.wait(60)
    assert not service.is_listening.is_set()
    *_, last = whole(shop.stored(topic))
    assert (last.body, last.headers["Headwater-Error"]) == (b"ERROR", "the producer is stopping; ask again when it runs")
    assert eventually(lambda: not shop.open_transactions())


def test_a_stream_that_is_too_small_for_a_snapshot_never_makes_it_look_complete(shop, spark):
    with shop.service(spark, limits=StreamLimits(max_msgs=50)):
        *_, last = shop.ended(shop.topic("public.other"))
        assert last.headers["Headwater-Error"] == "the stream has kept 50 of 101 messages; raise its limits, and ask again"


def test_whoever_asks_for_more_than_is_bearable_is_told_to_come_back(shop, service, bundles, monkeypatch):
    monkeypatch.setattr(answering, "MOST_SNAPSHOTS", 1)
    topic = shop.topic("public.other")
    assert bundles.stored.wait(60)
    body, error = shop.ask("public.other")
    assert body == error == "the producer is busy: 1 snapshots are being taken; ask again later"
    bundles.goes_on.set()
    assert len(shop.read(topic)[1]) == 100
    eventually(lambda: service.counts.completed)
    assert len(shop.rows("public.other")) == 100


def test_an_old_transaction_is_waited_for_and_named_when_it_takes_too_long(shop, service, monkeypatch):
    monkeypatch.setattr(capture_snapshot, "_PATIENT_SECONDS", 0.1)
    monkeypatch.setattr(answering, "OPEN_PATIENCE", timedelta(seconds=1.5))
    with psycopg.connect(shop.url) as writer:
        writer.execute("insert into other values (101, 'late')")
        _, error = shop.ask("public.other")
        assert "waits for older transactions to end: process" in error
        assert str(writer.info.backend_pid) in error
    assert eventually(lambda: not shop.open_transactions())
    monkeypatch.setattr(answering, "OPEN_PATIENCE", timedelta(seconds=30))
    assert len(shop.rows("public.other")) == 101


def test_where_looking_for_misfits_takes_long_the_topic_is_told_before_the_header(shop, service, monkeypatch):
    looking, told = Event(), Event()
    is_widened = SnapshotRun._is_widened

    def look(self, *args):
        looking.set()
        assert told.wait(30)
        return is_widened(self, *args)

    monkeypatch.setattr(SnapshotRun, "_is_widened", look)
    topic = shop.topic("public.other")
    assert looking.is_set()
    assert shop.stored(topic) == []
    told.set()
    assert len(shop.read(topic)[1]) == 100


def test_requests_are_answered_again_after_nats_was_restarted(postgres18, own_nats, spark):
    with _shop(postgres18.url, own_nats.url) as shop, shop.service(spark) as service:
        assert len(shop.rows("public.other")) == 100
        own_nats.restart()
        eventually(service.is_listening.is_set)
        assert len(shop.rows("public.other")) == 100


def test_readers_are_told_of_a_failure_as_soon_as_nats_is_back(postgres18, own_nats, spark, bundles):
    with _shop(postgres18.url, own_nats.url, timeout=2) as shop, shop.service(spark) as service:
        _large(shop)
        topic = shop.topic("public.large")
        assert bundles.stored.wait(60)
        own_nats.kill()
        bundles.goes_on.set()
        eventually(lambda: service.counts.failed == {"public.large": 1}, seconds=30)
        assert eventually(lambda: not shop.open_transactions())
        own_nats.start()
        *_, last = shop.ended(topic)
        assert last.body == b"ERROR"
        assert str(own_nats.port) in last.headers["Headwater-Error"]


def test_a_service_that_starts_before_nats_answers_when_it_is_there(postgres18, own_nats, spark, monkeypatch):
    monkeypatch.setattr("headwater.spark.creek.service._START_SECONDS", 0.1)
    with _shop(postgres18.url, own_nats.url) as shop:
        own_nats.kill()
        with shop.service(spark) as service:
            assert not service.is_listening.is_set()
            own_nats.start()
            eventually(service.is_listening.is_set, seconds=30)
            assert len(shop.rows("public.other")) == 100


def test_a_snapshot_whose_producer_was_killed_is_closed_when_it_is_back(shop, spark, monkeypatch):
    monkeypatch.setattr(answering, "SILENT_SECONDS", 0.3)
    with shop.service(spark):
        complete = shop.topic("public.other")
        shop.ended(complete)
    abandoned = shop.names.snapshot("public", "other", "20230830120102_123456_ab12")
    with closing(Publisher(shop.access)) as publisher:
        TopicWriter(publisher, abandoned).write("header", b"{}", {})
    with shop.service(spark):
        *_, last = shop.ended(abandoned)
        assert last.headers["Headwater-Error"] == "its producer ended before it was complete; ask for another"
    assert len(shop.stored(complete)) == 102


@contextmanager
def _pipeline(shop, spark, checkpoint):
    """A pipeline that publishes changes, and answers requests meanwhile."""
    settings, sink = shop.settings()
    settings = replace(settings, checkpoint=str(checkpoint), source=replace(settings.source, snapshot=SnapshotRule.NEVER))
    stopping, reporter = Event(), Reporter(settings)
    sinks = build_sinks(settings)

    def beside():
        return RequestService(spark, settings, sink, shop.names.database)

    pipeline = Pipeline(spark, settings, sinks, stopping, reporter, beside)
    thread = Thread(target=pipeline.run)
    thread.start()
    try:
        eventually(lambda: reporter.report.phase is Phase.RUNNING, seconds=60)
        yield
    finally:
        stopping.set()
        thread.join(60)


def _changes(shop, table):
    return wal(shop.access, shop.names, table)


def test_changes_are_published_while_a_snapshot_is_taken(shop, spark, bundles, tmp_path):
    _large(shop)
    with _pipeline(shop, spark, tmp_path / "checkpoint"):
        shop.execute("insert into other values (101, 'before')")
        eventually(lambda: _changes(shop, "public.other"), seconds=120)
        topic = shop.topic("public.large")
        assert bundles.stored.wait(60)
        shop.execute("insert into other values (102, 'meanwhile')")
        eventually(lambda: len(_changes(shop, "public.other")) == 2, seconds=60)
        assert whole(shop.stored(topic))[-1].body != b"EOF"
        bundles.goes_on.set()
        assert len(shop.read(topic)[1]) == LARGE


def test_snapshot_and_changes_join_exactly(shop, spark, tmp_path):
    """Rows come, change and go all the time: what the header says of a snapshot leaves nothing out, and nothing twice."""
    stopping = Event()

    def write():
        with psycopg.connect(shop.url, autocommit=True) as connection:
            for number in count(1):
                if stopping.is_set():
                    return
                with connection.transaction():
                    connection.execute("insert into other values (%s, 'new')", [1000 + number])
                    connection.execute("update other set data = %s where id = %s", [str(number), number % 100 + 1])
                    connection.execute("delete from other where id = %s", [1000 + number - 50])

    with _pipeline(shop, spark, tmp_path / "checkpoint"):
        # Once a change has arrived, Spark has all its processes; without them the query fails, and its requests with it.
        shop.execute("insert into other values (-2, 'first')")
        eventually(lambda: _changes(shop, "public.other"), seconds=120)
        writers = [Thread(target=write)]
        for writer in writers:
            writer.start()
        topics = [shop.topic("public.other") for _ in range(3)]
        for topic in topics:
            shop.ended(topic)
        stopping.set()
        for writer in writers:
            writer.join()
        (expected,) = shop.fetch("select json_object_agg(id, data) from other")
        shop.execute("insert into other values (-1, 'last')")
        changes = eventually(lambda: _up_to_last(shop), seconds=120)
    for topic in topics:
        seen = _seen(shop, topic)
        rows = {row["id"]: row["data"] for row in shop.read(topic)[1]}
        skipped = [change for change in changes if seen.holds(change.source.tx_id, change.source.lsn)]
        assert skipped
        for change in changes[:-1]:
            if not seen.holds(change.source.tx_id, change.source.lsn):
                _apply(rows, change)
        assert rows == {int(id_): data for id_, data in expected[0].items()}


def _up_to_last(shop):
    found = _changes(shop, "public.other")
    return found if found and found[-1].after == {"id": -1, "data": "last"} else None


def _seen(shop, topic) -> SnapshotRead:
    headers = shop.stored(topic)[0].headers
    return SnapshotRead(Snapshot.parse(headers["Headwater-Snapshot"]), Lsn.parse(headers["Headwater-Until"]))


def _apply(rows, change) -> None:
    """A change that fits what is there: nothing is missing, and nothing comes twice."""
    match change.op:
        case "c":
            assert change.after["id"] not in rows
            rows[change.after["id"]] = change.after["data"]
        case "u":
            assert change.after["id"] in rows
            rows[change.after["id"]] = change.after["data"]
        case "d":
            del rows[change.before["id"]]
