"""What monitors get over HTTP, from a watch on a real server."""

import json
import logging
import socket
import urllib.error
import urllib.request
from contextlib import ExitStack, closing
from dataclasses import replace
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headwater.embedded import EmbeddedPostgres
from headwater.errors import SettingsError
from headwater.http import bind
from headwater.model import Position
from headwater.postgres.connect import connect_sync
from headwater.postgres.migrate import Component, migrate
from headwater.spark.monitor import Listener, Watch
from headwater.spark.reporter import Delivered, Reporter
from headwater.spark.settings import ChangesSettings, NoopSinkSettings, PipelineSettings
from headwater.spark.sinks.sink import Written
from headwater.spark.sources.content import Content
from headwater.spark.state import Phase, Report, fetch_server_position, save_report
from tests.support.servers.embedded import postgres_settings
from tests.support.servers.tcp_proxy import Proxy


def slot_of(url):
    return urlsplit(url).path[1:]


@pytest.fixture
def connection(database):
    with closing(connect_sync(database)) as opened:
        migrate(opened, Component.of("headwater.spark"))
        migrate(opened, Component.of("headwater.capture.tables"))
        opened.execute("select pg_create_logical_replication_slot(current_database(), 'pgoutput')")
        yield opened


def settings_of(url, state_url=None):
    return PipelineSettings(
        name="shop",
        source=ChangesSettings(url=url, tables=("orders",), slot=slot_of(url), publication="shop"),
        sinks=(NoopSinkSettings(name="none"),),
        checkpoint="checkpoint",
        state_url=state_url or url,
        listen="127.0.0.1:0",
    )


@pytest.fixture
def listening():
    """Starts a listener, and gives its watch, whose looks the test takes, its reporter, and a way to ask."""
    with ExitStack() as stack:

        def start(settings):
            reporter = Reporter(settings)
            watch = Watch(settings, reporter)
            stack.callback(watch.close)
            place = bind(settings.listen)
            port = place.getsockname()[1]
            stack.enter_context(Listener(place, settings.name, reporter, watch))

            def ask(path):
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                        return answer.status, answer.read().decode()
                except urllib.error.HTTPError as exc:
                    with exc:
                        return exc.code, exc.read().decode()

            return watch, reporter, ask

        yield start


def samples(text):
    """All samples by name and labels, without that of the pipeline, which all have."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("pipeline") == "shop"
            found[sample.name, *sorted(labels.items())] = sample.value
    return found


def deliver(reporter, connection):
    now = fetch_server_position(connection)
    content = Content(3, now.now, {"public.orders": 3})
    reporter.add(Delivered(Position(now.flush_lsn, 0), content, {"none": (Written(2, 0, 1), 0.2)}, 0.3))


def test_metrics_tell_rows_batches_lag_and_what_the_slot_keeps(connection, database, listening):
    watch, reporter, ask = listening(settings_of(database))
    reporter.enter(Phase.RUNNING)
    deliver(reporter, connection)
    connection.execute("create table much as select generate_series(1, 10000) as id")
    connection.execute(
        "insert into headwater.pipeline_table (pipeline, schema_name, table_name, reason, pieces_done, pieces_total, "
        "rows_estimate) values ('shop', 'public', 'orders', 'new', 2, 8, 1000)"
    )
    watch.look()

    code, text = ask("/metrics")

    found = samples(text)
    assert code == 200
    assert found["headwater_rows_total", ("table", "public.orders")] == 3
    assert found["headwater_sink_rows_total", ("outcome", "letter"), ("sink", "none")] == 1
    assert found["headwater_batches_total",] == 1
    assert found["headwater_batch_seconds_count",] == 1
    assert found["headwater_batch_seconds_sum",] == pytest.approx(0.3)
    assert found["headwater_batch_seconds_bucket", ("le", "0.25")] == 0
    assert found["headwater_batch_seconds_bucket", ("le", "0.5")] == 1
    assert found["headwater_phase", ("phase", "running")] == 1
    assert found["headwater_phase", ("phase", "paused")] == 0
    assert found["headwater_lag_bytes",] > 100_000
    assert found["headwater_slot_retained_bytes",] >= found["headwater_lag_bytes",]
    assert found["headwater_slot_active",] == 0
    assert found["headwater_dead_letters_open", ("sink", "none")] == 0
    assert found["headwater_snapshot_pieces_done", ("table", "public.orders")] == 2
    assert found["headwater_snapshot_pieces", ("table", "public.orders")] == 8
    assert found["headwater_snapshot_rows_estimate", ("table", "public.orders")] == 1000
    assert found["headwater_database_up", ("database", "source")] == 1
    assert any(name[0] == "headwater_build_info" for name in found)


def test_a_source_that_is_away_makes_no_answer_slow_or_wrong(connection, database, listening):
    with Proxy(database) as proxy:
        watch, reporter, ask = listening(settings_of(proxy.url, database))
        reporter.enter(Phase.RUNNING)
        watch.look()
        assert samples(ask("/metrics")[1])["headwater_database_up", ("database", "source")] == 1
        proxy.refuse = True
        proxy.cut()
        watch.look()

        found = samples(ask("/metrics")[1])

        assert found["headwater_database_up", ("database", "source")] == 0
        assert found["headwater_database_up", ("database", "state")] == 1
        assert ("headwater_lag_bytes",) not in found
        assert ask("/health")[0] == 200


def test_a_table_that_could_not_be_read_is_warned_of_once_by_its_name(connection, database, listening, caplog):
    watch, _, _ = listening(settings_of(database))
    connection.execute(
        "insert into headwater.pipeline_table (pipeline, schema_name, table_name, reason, error) "
        "values ('shop', 'public', 'orders', 'new', 'somebody holds a lock')"
    )
    watch.look()
    watch.look()

    (record,) = caplog.records
    assert (record.table, record.pipeline, record.slot) == ("public.orders", "shop", slot_of(database))
    assert record.getMessage() == "table public.orders could not be read as a whole: somebody holds a lock"


def test_the_status_is_that_of_the_command(connection, database, listening):
    watch, _, ask = listening(settings_of(database))
    assert ask("/status")[0] == 503
    save_report(connection, "shop", slot_of(database), Report(phase=Phase.STOPPED, rows=7))
    watch.look()

    code, text = ask("/status")

    found = json.loads(text)
    assert (code, found["phase"], found["rows"], found["slot"]["exists"]) == (200, "stopped", 7, True)


@pytest.mark.parametrize(
    ("phase", "health", "ready"),
    [
        (Phase.STARTING, 200, 503),
        (Phase.STANDING_BY, 200, 503),
        (Phase.RUNNING, 200, 200),
        (Phase.RETRYING, 200, 503),
        (Phase.PAUSED, 200, 503),
        (Phase.FAILED, 503, 503),
    ],
)
def test_each_phase_is_healthy_and_ready_or_not(database, listening, phase, health, ready):
    _, reporter, ask = listening(settings_of(database))
    reporter.enter(phase)

    assert (ask("/health")[0], ask("/ready")[0]) == (health, ready)


def test_no_answer_holds_a_secret(connection, database, listening):
    password = urlsplit(database).password
    assert password
    watch, reporter, ask = listening(settings_of(database))
    reporter.enter(Phase.RUNNING)
    watch.look()

    assert not any(password in ask(path)[1] for path in ("/metrics", "/health", "/ready", "/status"))


def test_an_address_that_is_taken_is_one_clear_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(SettingsError, match=rf"cannot listen on {address}: address already in use; name another"):
            bind(address)


@pytest.mark.parametrize("listen", ["9464", "localhost:", "localhost:http", "localhost:70000", "::1:9464", ":9464"])
def test_what_is_no_address_is_refused(listen):
    with pytest.raises(SettingsError, match="is no address to listen on"):
        replace(settings_of("postgresql:///x"), listen=listen)


@pytest.mark.timeout(60)
def test_a_slot_that_nears_its_limit_is_warned_of_once_before_it_is_lost(caplog):
    caplog.set_level(logging.WARNING)
    config = {"max_slot_wal_keep_size": "64MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedPostgres(postgres_settings(18, **config)))
        connection = stack.enter_context(closing(connect_sync(server.url)))
        connection.execute("select pg_create_logical_replication_slot('shop', 'pgoutput')")
        settings = replace(settings_of(server.url), source=replace(settings_of(server.url).source, slot="shop"))
        reporter = Reporter(settings)
        watch = stack.enter_context(closing(Watch(settings, reporter)))
        reporter.enter(Phase.RUNNING)
        watch.look()
        assert caplog.records == []
        while (used := max((record.used for record in caplog.records), default=0)) < 0.95:
            connection.execute("select pg_logical_emit_message(false, 'fill', repeat('x', 4000000))")
            watch.look()
            watch.look()
            assert watch.seen.slot is not None
            assert watch.seen.slot.wal_status != "lost", used
    warned = [record for record in caplog.records if getattr(record, "setting", "") == "max_slot_wal_keep_size"]
    assert len(warned) == 3
    assert [record.slot for record in warned] == ["shop"] * 3
    assert "raise the setting" in warned[0].getMessage()
