"""`headwater creek produce`: from Creek's environment alone, in the place of a Creek producer."""

import os
import re
import socket
import urllib.request
from contextlib import closing
from datetime import timedelta

import pytest

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import StreamLimits
from headwater.cli.creek.environment import read_environment
from headwater.cli.creek.produce import settings_of
from headwater.creek.names import Generation, Kind, Names
from headwater.embedded.process import free_port
from headwater.postgres.connect import connect_sync
from headwater.spark.settings import ChangesSettings, NatsSinkSettings, SnapshotRule
from tests.support.brokers.nats_streams import fresh_namespace, known_stream, schemas, wal
from tests.support.servers.shared_spark import planners_heard
from tests.support.stories.command_run import run_until_told
from tests.support.waiting import eventually

INSERTED = (
    'creek_producer_pg_reads{creek_pg_source="public.other",creek_producer_pg_op="insert",creek_stream_type="wal"} 1.0'
)


@pytest.fixture
def environ(database, nats, tmp_path):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "NATS", "CREEK", "HEADWATER"))}
    return own | {
        "PG_URI": database,
        "PG_PUBLICATION_NAME": "creek pub",
        "PG_PUBLICATION_SLOT": f"creek_{database.rpartition('_')[2][:16]}",
        "NATS_URI": nats.url,
        "NATS_NAMESPACE": fresh_namespace(),
        "PROMETHEUS_PORT": str(free_port()),
        "HOME": str(tmp_path),
    }


@pytest.fixture
def source(database):
    with closing(connect_sync(database)) as connection:
        connection.execute("create table other (id int primary key, data text)")
        connection.execute('create table "Order Items" (id int primary key)')
        connection.execute("create table prices (id int, at date, primary key (id, at)) partition by range (at)")
        connection.execute("create table prices_2023 partition of prices for values from ('2023-01-01') to ('2024-01-01')")
        yield connection


@pytest.fixture
def only(monkeypatch):
    """Give this process an environment, and nothing else."""

    def give(environ):
        for name in os.environ.keys() - environ.keys():
            monkeypatch.delenv(name)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)

    return give


@pytest.fixture
def produce(headwater, only):
    """Run the command with an environment, in this process: it ends before anything starts. Gives exit code and errors."""

    def call(environ):
        only(environ)
        code, _, errors = headwater("creek", "produce")
        return code, errors

    return call


@pytest.mark.timeout(300)
def test_a_producer_takes_over_from_creek_and_serves_its_metrics_until_it_is_told_to_stop(
    environ, source, nats, spark, only, capsys
):
    # As Creek leaves them: a publication that lacks a table of PG_TABLES, and has one more.
    source.execute('create publication "creek pub" for table other with (publish_via_partition_root = true)')
    only(
        environ
        | {
            "PG_TABLES": 'public.other, public.prices public."Order Items"',
            "PG_MESSAGE_TIMEOUT": "9s",
            "NATS_TIMEOUT": "20s",
            "NATS_MAX_PENDING": "100",
            "NATS_RETENTION_MAX_AGE": "24h",
            "NATS_RETENTION_MAX_MSGS": "5000",
            "NATS_REPLICAS": "1",
            "LOG_LEVEL": "warn",
            "CREEK_GENERATION": "2",
        }
    )
    access = NatsAccess(url=nats.url)
    names = Names(environ["NATS_NAMESPACE"], source.info.dbname, Generation.TWO)
    figures = []

    def follow(producer):
        producer.wait_until(lambda: len(published_schemas(access, names)) == 3)
        source.execute("insert into other values (1, 'test')")
        source.execute("insert into prices values (1, '2023-05-05')")
        source.execute('insert into "Order Items" values (1)')
        producer.wait_until(lambda: len(wal(access, names)) == 3)
        figures.append(eventually(lambda: metrics_with(environ, INSERTED), seconds=60))

    # Other tests kill a producer that is a process of its own; this one gets all that a process is told by.
    with planners_heard(spark) as said:
        code = run_until_told(spark, ("creek", "produce"), follow)
    log = capsys.readouterr().err + said()
    assert code == 0, log
    # Nothing below the level that was asked for.
    assert '"level": "info"' not in log
    assert {message.source.table for message in wal(access, names)} == {"other", "prices", "Order Items"}
    with closing(Link(access)) as link:
        config = known_stream(link, names.stream(Kind.WAL)).config
    assert (config["max_age"], config["max_msgs"]) == (24 * 3600 * 10**9, 5000)
    (text,) = figures
    assert "# TYPE creek_producer_pg_reads counter" in text
    assert "creek_producer_wal_subscriptions 3.0" in text
    assert "creek_producer_lsn " in text and "creek_producer_pg_behind_bytes " in text
    assert "headwater_rows_total" in text


def published_schemas(access, names):
    return [one.source for one in schemas(access, names)]


def metrics_with(environ, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{environ['PROMETHEUS_PORT']}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return text if name in text else ""


def test_every_variable_has_its_effect_on_the_pipeline(environ, source, database):
    environ |= {
        "PG_TABLES": "public.other",
        "PG_MESSAGE_TIMEOUT": "1m30s",
        "NATS_TIMEOUT": "500ms",
        "NATS_MAX_PENDING": "77",
        "NATS_REPLICAS": "3",
        "NATS_RETENTION_POLICY": "1",
        "NATS_RETENTION_MAX_AGE": "24h",
        "NATS_RETENTION_MAX_BYTES": "1000000",
        "NATS_RETENTION_MAX_MSGS": "10",
        "CREEK_GENERATION": "2",
    }

    settings = settings_of(read_environment(environ))

    with closing(connect_sync(settings.source.url)) as connection:
        assert connection.execute("show wal_sender_timeout").fetchall() == [("90s",)]
        assert connection.info.dbname == source.info.dbname
    assert isinstance(settings.source, ChangesSettings)
    assert settings.source.status_interval == timedelta(seconds=90)
    assert (settings.source.slot, settings.source.publication) == (environ["PG_PUBLICATION_SLOT"], "creek pub")
    assert settings.source.snapshot is SnapshotRule.NEVER
    (sink,) = settings.sinks
    assert isinstance(sink, NatsSinkSettings)
    assert (sink.access.timeout, sink.access.max_pending) == (timedelta(milliseconds=500), 77)
    assert sink.limits == StreamLimits(
        replicas=3, max_age=timedelta(days=1), max_bytes=1_000_000, max_msgs=10, retention="interest"
    )
    assert (sink.namespace, sink.generation) == (environ["NATS_NAMESPACE"], Generation.TWO)
    assert settings.listen == f"0.0.0.0:{environ['PROMETHEUS_PORT']}"
    (older,) = settings_of(read_environment(environ), generation=1).sinks
    assert isinstance(older, NatsSinkSettings)
    assert older.generation is Generation.ONE


def test_without_pg_tables_those_of_the_publication_are_followed(environ, source):
    source.execute('create publication "creek pub" for table other, "Order Items"')

    settings = settings_of(read_environment(environ))

    assert settings.source.tables == ('"public"."Order Items"', '"public"."other"')


def test_a_publication_keeps_what_else_it_has_and_gets_what_it_lacks(environ, source):
    source.execute('create publication "creek pub" for table other')

    settings_of(read_environment(environ | {"PG_TABLES": "prices"}))

    query = "select prrelid::regclass::text from pg_publication_rel order by 1"
    assert source.execute(query).fetchall() == [("other",), ("prices",)]


def test_everything_that_is_missing_or_wrong_is_named_at_once(environ, produce):
    for name in ("PG_URI", "NATS_URI"):
        del environ[name]
    environ |= {"PG_MESSAGE_TIMEOUT": "10", "NATS_RETENTION_POLICY": "3", "PROMETHEUS_PORT": "0"}

    code, errors = produce(environ)

    assert code == 2
    lines = errors.splitlines()
    assert lines[0] == "error: the environment has 5 faults:"
    told = [line.strip().partition(" ")[0] for line in lines[1:]]
    assert told == ["PG_URI", "PG_MESSAGE_TIMEOUT", "NATS_URI", "PROMETHEUS_PORT", "NATS_RETENTION_POLICY"]
    assert all("set it to" in line or "must be" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"PG_TABLES": ""}, "PG_TABLES is empty, and there is no publication 'creek pub' that names tables"),
        ({"PG_TABLES": "public.othr"}, "PG_TABLES: table public.othr does not exist; did you mean public.other"),
        ({"PG_TABLES": "public.keyless"}, "PG_TABLES: table public.keyless has no replica identity"),
        ({"PG_TABLES": "public.other", "PG_URI": "postgresql://u:p@ss@host/db"}, "PG_URI: the PostgreSQL connection string"),
        ({"PG_TABLES": "public.other", "NATS_URI": "http://nats:4222"}, "NATS_URI: a NATS url must look like"),
        ({"PG_TABLES": "public.other", "NATS_NAMESPACE": "a.b"}, "NATS_NAMESPACE: 'a.b' cannot be a NATS namespace"),
        ({"PG_TABLES": "public.other", "PG_PUBLICATION_SLOT": "Bad-Slot"}, "PG_PUBLICATION_SLOT: "),
    ],
)
def test_what_is_wrong_is_said_of_its_variable_before_anything_is_made(environ, source, produce, changed, said):
    source.execute("create table keyless (id int)")

    code, errors = produce(environ | changed)

    assert (code, errors.startswith(f"error: {said}")) == (2, True), errors
    assert source.execute("select count(*) from pg_publication").fetchall() == [(0,)]
    source.execute("insert into keyless values (1); update keyless set id = 2")


def test_a_login_that_nats_refuses_is_said_before_a_slot_is_made(environ, source, produce):
    wrong = re.sub(r"//[^@]*@", "//headwater:wrong@", environ["NATS_URI"])

    code, errors = produce(environ | {"PG_TABLES": "public.other", "NATS_URI": wrong})

    assert (code, errors.startswith("error: NATS_URI: the NATS server at ")) == (2, True), errors
    assert "wrong" not in errors
    assert source.execute("select count(*) from pg_replication_slots where database = current_database()").fetchall() == [
        (0,)
    ]


def test_a_port_that_is_taken_is_said_of_its_variable(environ, source, produce):
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        code, errors = produce(environ | {"PG_TABLES": "public.other", "PROMETHEUS_PORT": str(port)})

    assert code == 2
    assert errors.startswith(f"error: PROMETHEUS_PORT: port {port} is taken")
