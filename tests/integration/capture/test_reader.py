"""Capture on real servers: order, confirmation, reconnection, and what goes wrong."""

from datetime import timedelta
from unittest.mock import patch

import pytest

from headwater.capture import Capture
from headwater.embedded import EmbeddedPostgres
from headwater.errors import SlotActive, SlotInvalidated, SlotMissing, SourceError
from headwater.model import Change, LogicalMessage, Lsn
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication.stream import ReplicationStream
from tests.support.capture.captured_database import (
    ask,
    collect,
    confirmed_flush,
    count,
    decoded,
    ids,
    open_files,
    prepare,
    settings,
    take,
)
from tests.support.servers.embedded import fresh_database, postgres_settings
from tests.support.servers.tcp_proxy import Proxy
from tests.support.waiting import eventually


def test_changes_come_in_commit_order_with_positions_that_only_grow(any_database):
    with prepare(any_database) as connection:
        with connect_sync(any_database) as early:
            early.execute("begin")
            early.execute("insert into item values (1, 'first written, last committed')")
            connection.execute("insert into item values (2, 'b'), (3, 'c')")
            connection.execute("update item set v = 'd' where id = 2")
            early.execute("commit")
        with Capture(settings(any_database)) as capture:
            changes = collect(capture, count(4))
    assert ids(changes) == [2, 3, 2, 1]
    assert [change.op for change in changes] == ["c", "c", "u", "c"]
    assert [change.position for change in changes] == sorted({change.position for change in changes})


def test_what_was_confirmed_does_not_come_again_and_what_was_not_does(any_database):
    with prepare(any_database, "insert into item values (1)", "insert into item values (2)") as connection:
        with Capture(settings(any_database, batch_bytes=1)) as capture:
            changes = collect(capture, count(2), confirm=False)
            capture.confirm(_end_of_first(capture, changes))
            assert capture.report()
        connection.execute("insert into item values (3)")
        with Capture(settings(any_database)) as capture:
            assert ids(collect(capture, count(2))) == [2, 3]


def _end_of_first(capture: Capture, changes: list[Change]) -> Lsn:
    # Between two commits every position will do; the start of the second commit record is one.
    return changes[1].position.commit_lsn


def test_nothing_is_confirmed_by_stopping(database):
    with prepare(database, "insert into item values (1)") as connection:
        before = confirmed_flush(connection)
        with Capture(settings(database, status_interval=timedelta(milliseconds=10))) as capture:
            collect(capture, count(1), confirm=False)
            assert capture.report()
        assert confirmed_flush(connection) == before


def test_event_ids_are_the_same_after_a_replay(database):
    with prepare(database) as connection:
        for n in range(3):
            connection.execute("insert into item values (%s), (%s)", [2 * n, 2 * n + 1])
        replays = []
        # Also when the changes come in other batches.
        for cut in ({}, {"batch_bytes": 1}):
            with Capture(settings(database, **cut)) as capture:
                changes = collect(capture, count(6), confirm=False)
                replays.append([capture.lineage.event_id(change.position) for change in changes])
    assert replays[0] == replays[1]
    assert len(set(replays[0])) == 6


def test_a_busy_table_that_is_not_published_does_not_hold_back_the_slot(any_database):
    with prepare(any_database, "create table noise (id int)") as connection:
        with Capture(settings(any_database, status_interval=timedelta(milliseconds=50))) as capture:
            connection.execute("insert into noise select generate_series(1, 20000)")
            written = ask(connection, "select pg_current_wal_lsn()")
            eventually(lambda: confirmed_flush(connection) >= written)
            assert capture.take(0) is None


def test_the_slot_stays_behind_an_unconfirmed_transaction_however_much_is_written_after_it(database):
    with prepare(database, "create table noise (id int)", "insert into item values (1)") as connection:
        with Capture(settings(database, status_interval=timedelta(milliseconds=20))) as capture:
            (change,) = collect(capture, count(1), confirm=False)
            for _ in range(3):
                connection.execute("insert into noise select generate_series(1, 1000)")
                assert capture.report()
            assert confirmed_flush(connection) <= change.position.commit_lsn


def test_a_consumer_slower_than_the_server_s_patience_keeps_its_connection(database):
    with prepare(database) as connection:
        name = connection.info.dbname
        connection.execute(f"alter database \"{name}\" set wal_sender_timeout = '1s'".encode())
        connection.execute("insert into item select g, repeat('x', 1000) from generate_series(1, 3000) g")
        small = settings(database, batch_bytes=50_000, buffer_bytes=100_000)
        with Capture(small) as capture:
            first = collect(capture, count(1))
            pid = _walsender(connection)
            # Nothing is taken for longer than the server waits for a sign of life; the socket is full meanwhile.
            started = ask(connection, "select clock_timestamp()")
            eventually(lambda: ask(connection, "select clock_timestamp() - %s > '2.5s'", started))
            assert _walsender(connection) == pid
            rest = collect(capture, count(3000 - len(first)))
    assert ids(first + rest) == list(range(1, 3001))


def _walsender(connection):
    row = connection.execute("select active_pid from pg_replication_slots where slot_name = 'hw'").fetchone()
    return row[0]


def test_the_buffer_holds_no_more_than_its_bound_and_a_batch(database):
    with prepare(database, "insert into item select g, repeat('x', 1000) from generate_series(1, 2000) g") as _:
        with Capture(settings(database, batch_bytes=20_000, buffer_bytes=60_000)) as capture:
            eventually(lambda: capture._buffer.is_full)
            assert capture._buffer._bytes <= 80_000 + 2_000
            assert len(collect(capture, count(2000))) == 2000


def test_status_updates_are_sent_once_an_interval_and_not_per_message(database):
    with (
        patch.object(ReplicationStream, "send_status", autospec=True, side_effect=ReplicationStream.send_status) as send,
        prepare(database) as connection,
        Capture(settings(database, status_interval=timedelta(minutes=5))) as capture,
    ):
        for i in range(200):
            connection.execute("insert into item values (%s)", [i])
        collect(capture, count(200))
    # One at the start; the rest only if the server asked, which it does once in half of wal_sender_timeout.
    assert send.call_count <= 2


def test_a_cut_connection_is_opened_again_and_nothing_is_lost_or_repeated(any_database):
    with prepare(any_database, "insert into item values (1)") as connection, Capture(settings(any_database)) as capture:
        found = collect(capture, count(1), confirm=False)
        for i in range(2, 6):
            pid = eventually(lambda: _walsender(connection))
            connection.execute("select pg_terminate_backend(%s, 5000)", [pid])
            connection.execute("insert into item values (%s)", [i])
            found += collect(capture, count(1), confirm=False)
    assert ids(found) == [1, 2, 3, 4, 5]


@pytest.mark.timeout(60)
def test_a_server_that_crashes_and_comes_back_is_followed_again():
    with EmbeddedPostgres(postgres_settings(18, fsync="on", full_page_writes="on")) as server:
        with fresh_database(server.url) as url:
            with prepare(url, "insert into item values (1)"), Capture(settings(url)) as capture:
                found = collect(capture, count(1))
                server.kill()
                server.start()
                with connect_sync(url) as connection:
                    connection.execute("insert into item values (2)")
                found += collect(capture, count(1))
    assert ids(found) == [1, 2]


def test_a_slot_that_somebody_else_reads_is_waited_for(database):
    with prepare(database, "insert into item values (1)"):
        first = Capture(settings(database))
        first.start()
        with pytest.raises(SlotActive, match="'hw' is in use"):
            Capture(settings(database, slot_patience=timedelta(0))).start()
        first.stop()
        with Capture(settings(database)) as second:
            assert ids(collect(second, count(1))) == [1]


def test_a_large_transaction_is_streamed_spilled_and_delivered_whole(any_database, tmp_path):
    with prepare(any_database) as connection:
        name = connection.info.dbname
        connection.execute(f"alter database \"{name}\" set logical_decoding_work_mem = '64kB'".encode())
        with Capture(settings(any_database, spill_directory=tmp_path, batch_bytes=30_000)) as capture:
            connection.execute("begin")
            connection.execute("insert into item select g, repeat('x', 100) from generate_series(1, 2000) g")
            connection.execute("savepoint s")
            connection.execute("insert into item select g, repeat('y', 100) from generate_series(2001, 4000) g")
            connection.execute("rollback to s")
            connection.execute("insert into item select g, repeat('z', 100) from generate_series(4001, 5000) g")
            with connect_sync(any_database) as other:
                other.execute("insert into item values (9999)")
            found = collect(capture, count(1))
            # By now it was sent, and waits on disk.
            assert eventually(lambda: open_files(tmp_path)) == 1
            connection.execute("commit")
            found += collect(capture, count(3000))
            eventually(lambda: open_files(tmp_path) == 0)
    assert ids(found) == [9999, *range(1, 2001), *range(4001, 5001)]
    assert [change.position.ordinal for change in found[1:]] == list(range(3000))


def test_an_aborted_streamed_transaction_leaves_neither_changes_nor_files(database, tmp_path):
    with prepare(database) as connection:
        connection.execute(f"alter database \"{connection.info.dbname}\" set logical_decoding_work_mem = '64kB'".encode())
        with Capture(settings(database, spill_directory=tmp_path)) as capture:
            connection.execute("begin")
            connection.execute("insert into item select g, repeat('x', 100) from generate_series(1, 5000) g")
            assert eventually(lambda: open_files(tmp_path)) == 1
            connection.execute("rollback")
            connection.execute("insert into item values (1)")
            assert ids(collect(capture, count(1))) == [1]
            assert open_files(tmp_path) == 0


def test_a_confirmed_message_outside_of_transactions_hides_nothing_that_follows_it_at_once(any_database):
    """The server gives such a message the position behind it, where the next commit record may begin."""
    with prepare(any_database) as connection:
        connection.execute("begin")
        connection.execute("insert into item values (1)")
        connection.execute("select pg_logical_emit_message(false, 'app', 'before the commit')")
        connection.execute("commit")
        with Capture(settings(any_database, batch_bytes=1)) as capture:
            batch = take(capture)
            (message,) = decoded(batch)
            assert isinstance(message, LogicalMessage)
            assert batch.end is not None
            capture.confirm(batch.end)
            assert capture.report()
        with Capture(settings(any_database)) as capture:
            again = decoded(take(capture))
    assert ids([change for change in again if isinstance(change, Change)]) == [1]
    assert not [change for change in again if isinstance(change, LogicalMessage)]


def test_a_missing_slot_is_named_at_the_start(database):
    with prepare(database) as connection:
        connection.execute("select pg_drop_replication_slot('hw')")
        with pytest.raises(SlotMissing, match="'hw' does not exist"):
            Capture(settings(database)).start()


def test_a_slot_dropped_while_running_is_reported_to_the_consumer(database):
    with prepare(database) as connection, Proxy(database) as proxy, Capture(settings(proxy.url)) as capture:
        eventually(lambda: _walsender(connection))
        proxy.refuse = True
        proxy.cut()
        eventually(lambda: _walsender(connection) is None)
        connection.execute("select pg_drop_replication_slot('hw')")
        proxy.refuse = False
        with pytest.raises(SlotMissing, match="'hw' does not exist"):
            capture.take(15)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("major", [15, 16, 18])
def test_a_slot_invalidated_while_running_is_reported_with_the_remedy(major):
    config = {"max_slot_wal_keep_size": "16MB", "max_wal_size": "32MB", "min_wal_size": "32MB"}
    with EmbeddedPostgres(postgres_settings(major, **config)) as server, fresh_database(server.url) as url:
        with prepare(url, "create table noise (v text)") as connection:
            # A consumer that confirms nothing holds the slot where it is, until the server gives it up.
            with Capture(settings(url, status_interval=timedelta(milliseconds=100))) as capture:
                connection.execute("insert into item values (1)")
                collect(capture, count(1), confirm=False)
                for _ in range(6):
                    connection.execute("insert into noise select repeat(md5(g::text), 30) from generate_series(1, 15000) g")
                    connection.execute("select pg_switch_wal()")
                    connection.execute("checkpoint")
                with pytest.raises(SlotInvalidated, match="max_slot_wal_keep_size"):
                    for _ in range(30):
                        capture.take(1)
            with pytest.raises(SlotInvalidated):
                Capture(settings(url)).start()


def test_a_slot_of_another_database_is_refused_with_both_names(database, postgres18):
    with prepare(database), pytest.raises(SourceError, match="belongs to database"):
        Capture(settings(postgres18.url)).start()


def test_a_missing_publication_is_refused_at_the_start(any_database):
    with prepare(any_database), pytest.raises(SourceError, match="publication 'nowhere' does not exist"):
        Capture(settings(any_database, publications=("pub", "nowhere"))).start()


def test_a_publication_dropped_while_running_is_reported_when_the_stream_is_opened_again(database):
    with prepare(database) as connection, Capture(settings(database)) as capture:
        pid = eventually(lambda: _walsender(connection))
        connection.execute("drop publication pub")
        connection.execute("select pg_terminate_backend(%s, 5000)", [pid])
        with pytest.raises(SourceError, match="publication 'pub' does not exist"):
            for _ in range(20):
                capture.take(1)
