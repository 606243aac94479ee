"""Heartbeats: written when the WAL grows unseen, and never on a server where nothing happens."""

from datetime import timedelta

from headwater.capture import Capture, emit_mark, is_mark
from headwater.capture.heartbeat import Heartbeat
from headwater.model import LogicalMessage, Lsn
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication.batch import Batch
from tests.support.capture.captured_database import ask, confirmed_flush, decoded, prepare, settings, take
from tests.support.servers.embedded import fresh_database
from tests.support.waiting import eventually


def test_a_heartbeat_is_written_only_after_the_wal_has_grown(any_database):
    with prepare(any_database, "create table noise (v text)") as connection:
        arrived = Lsn(ask(connection, "select pg_current_wal_insert_lsn()"))
        heartbeat = Heartbeat(settings(any_database, heartbeat_bytes=100_000), lambda: arrived, lambda trouble: None)
        assert not heartbeat.beat(connection)
        connection.execute("insert into noise select repeat('x', 1000) from generate_series(1, 200)")
        assert heartbeat.beat(connection)
        # Its own traces in the WAL are no reason for another one.
        assert not heartbeat.beat(connection)


def test_a_busy_neighbour_database_does_not_hold_back_the_slot_of_a_quiet_one(database, postgres18):
    quick = {"status_interval": timedelta(milliseconds=50), "heartbeat_interval": timedelta(milliseconds=50)}
    with prepare(database) as connection, fresh_database(postgres18.url) as neighbour, connect_sync(neighbour) as busy:
        busy.execute("create table noise (v text)")
        with Capture(settings(database, heartbeat_bytes=50_000, **quick)):
            busy.execute("insert into noise select repeat('x', 1000) from generate_series(1, 2000)")
            written = ask(busy, "select pg_current_wal_lsn()")
            eventually(lambda: confirmed_flush(connection) >= written)


def test_the_batch_that_reaches_a_mark_holds_all_that_committed_before_it(database):
    with prepare(database) as connection, Capture(settings(database)) as capture:
        connection.execute("insert into item select generate_series(1, 100)")
        mark = emit_mark(connection)
        found: list[Batch] = []
        while not found or found[-1].end is None or found[-1].end < mark:
            found.append(take(capture))
    assert sum(batch.changes for batch in found) == 100
    messages = [change for batch in found for change in decoded(batch) if isinstance(change, LogicalMessage)]
    assert [is_mark(message) for message in messages] == [True]
