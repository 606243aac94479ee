"""What may happen between a capture and its server: each case either goes on without loss, or stops and says why."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

from headwater.capture import Capture, is_mark
from headwater.embedded import EmbeddedPostgres
from headwater.errors import ConnectionLost, PositionError, SourceError
from headwater.model import Lsn
from headwater.postgres.connect import connect_sync
from tests.support.capture.captured_database import (
    ask,
    changes_in,
    collect,
    confirmed_flush,
    count,
    decoded,
    ids,
    prepare,
    row_after,
    settings,
    take,
)
from tests.support.servers.embedded import fresh_database, postgres_settings, shared_place
from tests.support.servers.tcp_proxy import Proxy
from tests.support.waiting import eventually

QUICK = {"status_interval": timedelta(milliseconds=20)}


@pytest.mark.parametrize("how", ["dropped and made anew", "advanced"])
def test_a_slot_that_was_moved_while_disconnected_is_noticed(database, how):
    with prepare(database, "insert into item values (1)") as connection, Proxy(database) as proxy:
        with Capture(settings(proxy.url)) as capture:
            assert ids(collect(capture, count(1))) == [1]
            assert capture.report()
            proxy.refuse = True
            proxy.cut()
            connection.execute("insert into item values (2)")
            eventually(lambda: not connection.execute("select from pg_replication_slots where active").fetchall())
            if how == "advanced":
                connection.execute("select pg_replication_slot_advance('hw', pg_current_wal_lsn())")
            else:
                connection.execute("select pg_drop_replication_slot('hw')")
                connection.execute("select pg_create_logical_replication_slot('hw', 'pgoutput')")
            proxy.refuse = False
            with pytest.raises(SourceError, match="slot 'hw' was moved from"):
                capture.take(15)


@pytest.mark.timeout(60)
def test_a_connection_that_went_silent_is_given_up_and_opened_again(database):
    with prepare(database, "insert into item values (1)") as connection, Proxy(database) as proxy:
        connection.execute(f"alter database {connection.info.dbname} set wal_sender_timeout = '2s'".encode())
        with Capture(settings(proxy.url)) as capture:
            assert ids(collect(capture, count(1))) == [1]
            proxy.freeze()
            connection.execute("insert into item values (2)")
            assert ids(collect(capture, count(1))) == [2]


def test_a_quiet_server_that_answers_is_not_given_up(database):
    with prepare(database) as connection:
        connection.execute(f"alter database {connection.info.dbname} set wal_sender_timeout = '1s'".encode())
        with Capture(settings(database)) as capture:
            pid = eventually(lambda: _reader(connection))
            started = ask(connection, "select clock_timestamp()")
            eventually(lambda: ask(connection, "select clock_timestamp() - %s > '3s'", started))
            assert _reader(connection) == pid
            connection.execute("insert into item values (1)")
            assert ids(collect(capture, count(1))) == [1]


def _reader(connection):
    return connection.execute("select active_pid from pg_replication_slots where slot_name = 'hw'").fetchone()[0]


def test_stop_returns_while_the_server_leaves_a_command_unanswered(database):
    with prepare(database, "insert into item values (1)"), Proxy(database) as proxy:
        capture = Capture(settings(proxy.url))
        capture.start()
        collect(capture, count(1))
        proxy.swallow = b"START_REPLICATION"
        proxy.cut()
        eventually(lambda: capture._stream is None)
        stopper = Thread(target=capture.stop, daemon=True)
        stopper.start()
        stopper.join(15)
        assert not stopper.is_alive()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_tail_that_waits_for_an_open_transaction_can_be_ended(database, number, code):
    """A slot can only be made once all running transactions have ended; that may take for ever."""
    with prepare(database) as connection, connect_sync(database) as busy:
        busy.execute("begin")
        busy.execute("insert into item values (1)")
        command = [sys.executable, "-m", "headwater.cli", "tail", "item"]
        environment = {**os.environ, "HEADWATER_URL": database}
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as tail:
            assert tail.stderr is not None
            try:
                assert "transactions that are running" in tail.stderr.readline()
                tail.send_signal(number)
                assert tail.wait(10) == code
            finally:
                tail.kill()
        assert connection.execute("select pubname from pg_publication").fetchall() == [("pub",)]


def test_stopping_in_the_middle_of_a_spilled_transaction_keeps_the_memory_bound(database):
    with prepare(database) as connection:
        connection.execute(f"alter database {connection.info.dbname} set logical_decoding_work_mem = '64kB'".encode())
        with Capture(settings(database, batch_bytes=20_000, buffer_bytes=40_000)) as capture:
            connection.execute("insert into item select g, repeat('x', 1000) from generate_series(1, 5000) g")
            eventually(lambda: capture._buffer.is_full)
            capture.stop()
            assert capture._buffer._bytes < 100_000


def test_a_stop_at_any_moment_confirms_nothing_beyond_what_was_confirmed(database):
    with prepare(database) as connection:
        for turn in range(20):
            connection.execute("insert into item values (%s)", [2 * turn])
            connection.execute("insert into item values (%s)", [2 * turn + 1])
            with Capture(settings(database, batch_bytes=1, **QUICK)) as capture:
                found = collect(capture, lambda changes: bool(changes), confirm=True)
                while not (batch := take(capture)).changes:
                    capture.confirm(batch.end or capture._buffer.confirmed)
                found += changes_in(batch)
            assert ids(found) == [2 * turn, 2 * turn + 1]
            assert confirmed_flush(connection) <= found[1].position.commit_lsn
            with Capture(settings(database)) as capture:
                assert ids(collect(capture, count(1))) == [2 * turn + 1]
                assert capture.report()


def test_a_position_that_was_not_taken_cannot_be_confirmed(database):
    with prepare(database, "insert into item values (1)"), Capture(settings(database)) as capture:
        batch = take(capture)
        assert batch.end is not None
        with pytest.raises(PositionError, match="cannot be confirmed"):
            capture.confirm(Lsn(batch.end + 1))
        capture.confirm(batch.end)


def test_a_temporary_slot_does_not_go_on_after_a_break(database):
    with prepare(database) as connection:
        with Capture(settings(database, slot="passing", temporary=True)) as capture:
            pid = eventually(
                lambda: connection.execute("select active_pid from pg_replication_slots where temporary").fetchone()
            )
            connection.execute("select pg_terminate_backend(%s, 5000)", pid)
            with pytest.raises(ConnectionLost):
                capture.take(15)


def test_a_starting_capture_waits_for_a_slot_that_is_still_read(database):
    with prepare(database, "insert into item values (1)"):
        first, second = Capture(settings(database)), Capture(settings(database))
        first.start()
        starter = Thread(target=second.start, daemon=True)
        starter.start()
        starter.join(1)
        assert starter.is_alive()
        first.stop()
        starter.join(15)
        assert ids(collect(second, count(1))) == [1]
        second.stop()


def test_a_heartbeat_comes_when_the_wal_grows_and_nothing_of_ours_does(database):
    beats = {"heartbeat_interval": timedelta(milliseconds=50), "heartbeat_bytes": 50_000}
    with prepare(database, "create table noise (v text)", "insert into item values (1)") as connection:
        with Capture(settings(database, **beats)) as capture:
            # Something in flight keeps the position where it is, so the keepalives alone do not help.
            collect(capture, count(1), confirm=False)
            connection.execute("insert into noise select repeat('x', 1000) from generate_series(1, 500)")
            assert all(is_mark(change) for change in decoded(take(capture)))


@pytest.mark.timeout(60)
def test_a_server_can_shut_down_although_something_is_not_confirmed():
    with EmbeddedPostgres(postgres_settings(18)) as server, fresh_database(server.url) as url:
        with prepare(url, "insert into item values (1)") as connection:
            connection.close()
            with Capture(settings(url, heartbeat_interval=timedelta(milliseconds=100))) as capture:
                collect(capture, count(1), confirm=False)
                server.restart()
                with connect_sync(url) as connection:
                    connection.execute("insert into item values (2)")
                assert ids(collect(capture, count(1), confirm=False)) == [2]


def test_values_read_the_same_whatever_the_defaults_of_the_database_are(any_database):
    with prepare(any_database) as connection:
        odd = {
            "datestyle": "German",
            "intervalstyle": "postgres_verbose",
            "timezone": "Asia/Tokyo",
            "bytea_output": "escape",
        }
        for name, value in {**odd, "extra_float_digits": "-10", "client_encoding": "LATIN1"}.items():
            connection.execute(f"alter database {connection.info.dbname} set {name} = '{value}'".encode())
        connection.execute("alter table item add d date, add i interval, add t timestamptz, add b bytea, add f float8")
        connection.execute(
            "insert into item values (1, 'é', '2026-01-02', '1 day 2 hours', '2026-01-02 03:04:05+00', '\\x00ff', 0.1)"
        )
        with Capture(settings(any_database)) as capture:
            (change,) = collect(capture, count(1))
    row = row_after(change)
    assert (row["v"], str(row["d"]), row["i"], row["b"], row["f"]) == ("é", "2026-01-02", "P1DT2H", b"\x00\xff", 0.1)
    assert row["t"].isoformat() == "2026-01-02T03:04:05+00:00"


@pytest.fixture
def primary_and_standby():
    """Two servers with the same past, of which the second is a standby that gets nothing more until it is promoted."""
    base = Path(tempfile.mkdtemp(dir=shared_place()))
    base.chmod(0o711)
    common = replace(postgres_settings(18), root=base / "root")
    primary = EmbeddedPostgres(replace(common, directory=base / "primary")).start()
    prepare(primary.url, "create table noise (v text)", "insert into item values (1)").close()
    primary.stop()
    subprocess.run(["cp", "-a", str(base / "primary"), str(base / "standby")], check=True)
    data = base / "standby" / "data"
    (data / "standby.signal").touch()
    os.chown(data / "standby.signal", data.stat().st_uid, data.stat().st_gid)
    standby = EmbeddedPostgres(replace(common, directory=base / "standby"))
    try:
        yield primary.start(), standby.start()
    finally:
        primary.stop()
        standby.stop()
        shutil.rmtree(base)


def _both(primary, standby):
    parts = urlsplit(primary.url)
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    query = f"{parts.query}&target_session_attrs=read-write"
    return parts._replace(netloc=f"postgres:{parts.password}@{hosts}", query=query).geturl()


def _promote(primary, standby):
    primary.kill()
    connection = connect_sync(standby.url)
    connection.execute("select pg_promote()")
    eventually(lambda: not ask(connection, "select pg_is_in_recovery()"))
    return connection


@pytest.mark.timeout(60)
def test_a_promoted_standby_that_has_all_that_was_captured_is_followed(primary_and_standby):
    primary, standby = primary_and_standby
    with Capture(settings(_both(primary, standby), **QUICK)) as capture:
        before = collect(capture, count(1))
        id_before = capture.lineage.event_id(before[0].position)
        with connect_sync(primary.url) as connection:
            # Not ours, and never on the standby; the keepalive behind it moves what we have confirmed.
            connection.execute("insert into noise select repeat('x', 500) from generate_series(1, 500)")
            written = ask(connection, "select pg_current_wal_lsn()")
            eventually(lambda: confirmed_flush(connection) >= written)
        with _promote(primary, standby) as connection:
            for i in range(200, 260):
                connection.execute("insert into item values (%s)", [i])
        assert ids(collect(capture, count(60))) == list(range(200, 260))
        assert capture.lineage.timeline == 2
        assert capture.lineage.event_id(before[0].position) == id_before


@pytest.mark.timeout(60)
def test_a_promoted_standby_that_lacks_what_was_captured_ends_the_capture(primary_and_standby):
    primary, standby = primary_and_standby
    with Capture(settings(_both(primary, standby), **QUICK)) as capture:
        collect(capture, count(1))
        with connect_sync(primary.url) as connection:
            connection.execute("insert into item values (2)")
        collect(capture, count(1))
        with _promote(primary, standby) as connection:
            connection.execute("insert into item values (200)")
            with pytest.raises(SourceError, match="does not hold what was captured before"):
                capture.take(15)


def test_a_publication_dropped_while_running_ends_the_capture_on_every_version(any_database):
    beats = {"heartbeat_interval": timedelta(milliseconds=50)}
    with prepare(any_database, "insert into item values (1)") as connection:
        with Capture(settings(any_database, **beats)) as capture:
            assert ids(collect(capture, count(1))) == [1]
            connection.execute("drop publication pub")
            with pytest.raises(SourceError, match="publication"):
                capture.take(15)


@pytest.mark.parametrize("major", [15, 16])
def test_a_publication_younger_than_its_slot_is_told_with_the_remedy(major, request):
    server = request.getfixturevalue(f"postgres{major}")
    with fresh_database(server.url) as url, prepare(url, "insert into item values (1)") as connection:
        connection.execute("create publication younger for table item")
        with Capture(settings(url, publications=("younger",))) as capture:
            with pytest.raises(SourceError, match="drop the slot, and make it again after the publication"):
                capture.take(15)
