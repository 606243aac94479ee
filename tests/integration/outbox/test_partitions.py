"""Partitions of the outbox: made ahead, dropped when all was delivered, and neither at the cost of those who write."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from threading import Barrier, Event

import psycopg
import pytest

from headwater import outbox
from headwater.errors import ConnectionLost, SettingsError
from headwater.outbox import Partition, drop_partitions, ensure_partitions
from headwater.outbox.partitions import is_unused
from headwater.outbox.statements import create_partition
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.statements import execute_sync
from tests.support.waiting import eventually

DAY = timedelta(days=1)
OLD = datetime(2026, 1, 10, tzinfo=UTC)
LATER = OLD + 30 * DAY
OLD_PARTITION = Partition("headwater", "outbox_message_20260110_0000", OLD, OLD + DAY)
INSERT = "insert into headwater.outbox_message (topic, type, payload, created_at) values ('t', 'y', '1', %s)"


def places(connection):
    """How many rows are in each partition that has some."""
    query = "select tableoid::regclass::text, count(*)::int from headwater.outbox_message group by 1 order by 1"
    return {name.removeprefix("headwater.outbox_message_"): count for name, count in connection.execute(query)}


def partitions(connection):
    query = "select inhrelid::regclass::text from pg_inherits where inhparent = 'headwater.outbox_message'::regclass"
    return sorted(name.removeprefix("headwater.outbox_message_") for (name,) in connection.execute(query))


def add_partition(connection, lower=OLD, length=DAY):
    partition = Partition("headwater", f"outbox_message_{lower:%Y%m%d}", lower, lower + length)
    execute_sync(connection, create_partition(partition))
    return partition


def save_checkpoint(
    connection, pipeline="shop", *, snapshot=None, table="headwater.outbox_message", timeline=1, system=None
):
    """All that is visible by now, or in a snapshot, is delivered."""
    connection.execute(
        """insert into headwater.outbox_checkpoint
               (pipeline, table_name, epoch, phase, system_identifier, timeline, snapshot, lsn)
           select %(pipeline)s, %(table)s, 1, 'streaming', coalesce(%(system)s, system_identifier::text), %(timeline)s,
                  coalesce(%(snapshot)s::pg_snapshot, pg_current_snapshot()), '0/1'
             from pg_control_system()
               on conflict (pipeline) do update set snapshot = excluded.snapshot""",
        {"pipeline": pipeline, "table": table, "timeline": timeline, "system": system, "snapshot": snapshot},
    )


@pytest.fixture
def old(connection):
    """A database whose outbox has a partition of long ago with a row in it."""
    add_partition(connection)
    connection.execute(INSERT, [OLD])
    return connection


@pytest.fixture
def writer(outbox_url):
    """A transaction of an application; nothing that it does may take long."""
    with closing(psycopg.connect(outbox_url, options="-c statement_timeout=5s")) as connection:
        yield connection


def test_rows_go_to_the_partition_of_their_day_and_what_is_far_off_to_the_default_one(any_connection):
    made = ensure_partitions(any_connection, 2 * DAY)
    assert (len(made.made), made.missing) == (3, ())
    assert ensure_partitions(any_connection, 2 * DAY).made == ()
    with any_connection.transaction():
        outbox.publish_sync(any_connection, "t", "y", 1)
    for days in (-4000, 1, 4000):
        any_connection.execute(INSERT, [datetime.now(UTC) + timedelta(days=days)])
    today, tomorrow = (one.name.removeprefix("outbox_message_") for one in made.made[:2])
    assert places(any_connection) == {"default": 2, today: 1, tomorrow: 1}


def test_without_any_partition_of_its_day_a_row_is_written_all_the_same(any_connection):
    with any_connection.transaction():
        outbox.publish_sync(any_connection, "t", "y", 1)
    assert places(any_connection) == {"default": 1}


def test_a_partition_has_the_key_the_checks_and_the_defaults_of_the_outbox(any_connection):
    made = ensure_partitions(any_connection, timedelta(0)).made[0]
    facts = any_connection.execute(
        """select (select count(*) from pg_constraint where conrelid = class.oid and contype = 'c')::int,
                  (select count(*) from pg_index where indrelid = class.oid)::int,
                  (select bool_and(relispartition) from pg_class where oid = index.indexrelid),
                  class.reloptions
             from pg_class as class join pg_index as index on index.indrelid = class.oid and index.indisprimary
            where class.relname = %s""",
        [made.name],
    ).fetchone()
    assert facts == (4, 4, True, ["autovacuum_vacuum_insert_threshold=-1"])


def test_partitions_may_be_of_another_length_from_some_day_on(any_connection):
    ensure_partitions(any_connection, DAY, DAY)
    made = ensure_partitions(any_connection, 3 * DAY, timedelta(hours=6))
    assert made.missing == ()
    assert {one.upper - one.lower for one in made.made} == {timedelta(hours=6)}
    assert ensure_partitions(any_connection, 3 * DAY, timedelta(days=30)).missing == ()
    for hours in range(0, 72, 5):
        any_connection.execute(INSERT, [datetime.now(UTC) + timedelta(hours=hours)])
    assert "default" not in places(any_connection)


def test_a_day_of_which_rows_are_in_the_default_partition_gets_none_and_the_next_day_does(connection):
    now = datetime.now(UTC)
    connection.execute(INSERT, [now])
    ensured = ensure_partitions(connection, DAY)
    assert len(ensured.made) == 1
    assert ensured.made[0].lower > now
    assert "are in the default partition" in ensured.missing[0].reason


def test_processes_that_start_at_once_make_each_partition_once(outbox_url):
    barrier = Barrier(4)

    def start(_):
        with closing(connect_sync(outbox_url)) as connection:
            barrier.wait()
            return ensure_partitions(connection, 5 * DAY)

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(start, range(4)))
    names = [one.name for ensured in done for one in ensured.made]
    assert sorted(names) == sorted(set(names))
    assert len(names) == 6
    assert [ensured.missing for ensured in done] == [()] * 4


def test_partitions_are_made_beside_transactions_that_write(connection, writer):
    ensure_partitions(connection, timedelta(0))
    outbox.publish_sync(writer, "t", "y", 1)
    assert len(ensure_partitions(connection, 2 * DAY).made) == 2
    outbox.publish_sync(writer, "t", "y", 2)
    writer.commit()
    assert sum(places(connection).values()) == 2


def test_a_partition_that_cannot_be_made_now_is_made_the_next_time_and_writers_go_on(connection, writer):
    writer.execute(INSERT, [OLD])
    ensured = ensure_partitions(connection, timedelta(0))
    assert (ensured.made, "did not end in time" in ensured.missing[0].reason) == ((), True)
    outbox.publish_sync(writer, "t", "y", 1)
    writer.rollback()
    assert len(ensure_partitions(connection, timedelta(0)).made) == 1


def test_a_writer_who_comes_while_partitions_are_made_is_not_failed_by_them(connection, writer, outbox_url, monkeypatch):
    """Its row is for the default partition when it begins to wait, and still is when it goes on."""
    for name in ("LOCK_TIMEOUT", "_SEARCH_TIMEOUT"):
        monkeypatch.setattr(f"headwater.outbox.partitions.{name}", timedelta(seconds=30))

    def write():
        with psycopg.connect(outbox_url) as other:
            outbox.publish_sync(other, "t", "y", 1)

    def waiting():
        query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        with psycopg.connect(outbox_url) as other:
            return other.execute(query).fetchall()[0][0]

    writer.execute(INSERT, [OLD])
    with ThreadPoolExecutor(2) as pool:
        making = pool.submit(ensure_partitions, connection, DAY, spares_present=True)
        eventually(lambda: waiting() == 1)
        writing = pool.submit(write)
        eventually(lambda: waiting() == 2)
        writer.commit()
        writing.result()
        ensured = making.result()
    assert (len(ensured.made), ensured.missing) == (1, ())
    assert ensured.made[0].lower > datetime.now(UTC)
    assert places(connection) == {"default": 2}


def test_an_outbox_is_unused_until_it_has_a_row_or_a_partition(connection):
    assert is_unused(connection)
    connection.execute(INSERT, [OLD])
    assert not is_unused(connection)
    connection.execute("truncate headwater.outbox_message")
    ensure_partitions(connection, timedelta(0))
    assert not is_unused(connection)


def test_a_role_without_the_right_to_make_partitions_is_told_so(connection):
    connection.execute("grant usage on schema headwater to pg_monitor")
    connection.execute("grant select on all tables in schema headwater to pg_monitor")
    connection.execute("set role pg_monitor")
    ensured = ensure_partitions(connection, timedelta(0))
    assert (ensured.made, ensured.missing[0].reason) == ((), "permission denied for schema headwater")


@pytest.mark.parametrize(("ahead", "every"), [(-DAY, DAY), (DAY, timedelta(minutes=1))])
def test_lengths_without_sense_are_refused(connection, ahead, every):
    with pytest.raises(SettingsError, match="one hour or longer"):
        ensure_partitions(connection, ahead, every)


def test_in_a_transaction_partitions_are_neither_made_nor_dropped(writer):
    writer.execute("select 1")
    with pytest.raises(SettingsError, match="not in a transaction"):
        ensure_partitions(writer)
    with pytest.raises(SettingsError, match="not in a transaction"):
        drop_partitions(writer, LATER)


def test_a_partition_is_dropped_when_the_checkpoint_sees_all_of_it(any_connection):
    partition = add_partition(any_connection)
    any_connection.execute(INSERT, [OLD])
    save_checkpoint(any_connection)
    purged = drop_partitions(any_connection, LATER)
    assert [one.name for one in purged.dropped] == [partition.name]
    assert (purged.kept, purged.deleted) == ((), 0)
    assert partitions(any_connection) == ["default"]


def test_a_partition_that_ends_later_is_left_alone(old):
    save_checkpoint(old)
    assert drop_partitions(old, OLD + DAY - timedelta(microseconds=1)) == outbox.Purged((), (), 0)
    assert partitions(old) == ["20260110", "default"]


def test_a_row_that_was_written_after_the_checkpoint_is_kept_whatever_its_time(old):
    save_checkpoint(old)
    old.execute(INSERT, [OLD])
    purged = drop_partitions(old, LATER)
    assert (purged.dropped, places(old)) == ((), {"20260110": 2})
    assert purged.kept[0].reason == "pipeline shop has not delivered all of it, by its saved checkpoint"


def test_a_row_whose_transaction_was_open_at_the_checkpoint_is_kept(old, writer):
    writer.execute(INSERT, [OLD])
    save_checkpoint(old)
    writer.commit()
    assert drop_partitions(old, LATER).dropped == ()
    save_checkpoint(old)
    assert len(drop_partitions(old, LATER).dropped) == 1


def test_every_pipeline_has_to_have_delivered_it(old):
    (before,) = old.execute("select pg_current_snapshot()::text").fetchone()
    old.execute(INSERT, [OLD])
    save_checkpoint(old, "shop")
    save_checkpoint(old, "audit", snapshot=before)
    purged = drop_partitions(old, LATER)
    assert (purged.dropped, purged.kept[0].reason.split(" has ")[0]) == ((), "pipeline audit")
    save_checkpoint(old, "audit")
    assert len(drop_partitions(old, LATER).dropped) == 1


@pytest.mark.parametrize("foreign", [{"timeline": 2}, {"system": "1"}])
def test_a_checkpoint_of_another_server_or_history_covers_nothing(old, foreign):
    save_checkpoint(old, **foreign)
    purged = drop_partitions(old, LATER)
    assert (purged.dropped, places(old)) == ((), {"20260110": 1})
    assert purged.kept[0].reason == "pipeline shop has no checkpoint of this server's history"


def test_a_pipeline_that_has_not_saved_a_checkpoint_yet_keeps_everything(old):
    old.execute(
        "insert into headwater.outbox_checkpoint (pipeline, table_name, epoch) values ('new', 'headwater.outbox_message', 1)"
    )
    save_checkpoint(old, "shop")
    assert [kept.reason for kept in drop_partitions(old, LATER).kept] == [
        "pipeline new has no checkpoint of this server's history"
    ]
    assert places(old) == {"20260110": 1}


def test_checkpoints_of_other_tables_do_not_count(old):
    save_checkpoint(old, table="public.outbox")
    assert drop_partitions(old, LATER).dropped == ()


def test_without_any_checkpoint_only_what_is_marked_as_published_is_dropped(old):
    add_partition(old, OLD + DAY)
    for _ in range(2):
        old.execute(INSERT, [OLD + DAY])
    old.execute("update headwater.outbox_message set status = 'published' where created_at >= %s", [OLD + DAY])
    purged = drop_partitions(old, LATER)
    assert [one.lower for one in purged.dropped] == [OLD + DAY]
    assert "no pipeline has a checkpoint" in purged.kept[0].reason
    assert places(old) == {"20260110": 1}


def test_marks_of_a_relay_do_not_stand_in_for_a_checkpoint(old):
    (before,) = old.execute("select pg_current_snapshot()::text").fetchone()
    old.execute(INSERT, [OLD])
    old.execute("update headwater.outbox_message set status = 'published'")
    save_checkpoint(old, snapshot=before)
    assert drop_partitions(old, LATER).dropped == ()


def test_a_transaction_that_still_writes_to_a_partition_keeps_it_and_is_not_held_up(old, writer):
    save_checkpoint(old)
    writer.execute(INSERT, [OLD])
    purged = drop_partitions(old, LATER)
    assert (purged.dropped, "did not end in time" in purged.kept[0].reason) == ((), True)
    writer.execute(INSERT, [OLD])
    writer.commit()
    assert (drop_partitions(old, LATER).dropped, places(old)) == ((), {"20260110": 3})


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_a_row_that_is_committed_while_the_drop_waits_for_it_is_kept(old, writer, outbox_url, isolation):
    save_checkpoint(old)
    writer.execute(INSERT, [OLD])
    options = f"-c default_transaction_isolation={isolation.replace(' ', chr(92) + ' ')}"
    with ThreadPoolExecutor(1) as pool, closing(psycopg.connect(outbox_url, autocommit=True, options=options)) as purging:
        dropping = pool.submit(drop_partitions, purging, LATER)
        eventually(lambda: dropping.done() or is_waiting(old, purging))
        writer.commit()
        assert dropping.result().dropped == ()
    assert places(old) == {"20260110": 2}


def is_waiting(connection, other):
    query = "select wait_event_type from pg_stat_activity where pid = %s"
    return connection.execute(query, [other.info.backend_pid]).fetchone() == ("Lock",)


def test_a_transaction_that_writes_elsewhere_delays_a_drop_and_is_not_held_up(old, writer):
    ensure_partitions(old, timedelta(0))
    save_checkpoint(old)
    outbox.publish_sync(writer, "t", "y", 1)
    assert drop_partitions(old, LATER).dropped == ()
    outbox.publish_sync(writer, "t", "y", 2)
    writer.commit()
    assert len(drop_partitions(old, LATER).dropped) == 1
    assert sum(places(old).values()) == 2


def test_writers_behind_a_drop_that_waits_wait_no_longer_than_it(old, writer, outbox_url):
    save_checkpoint(old)
    outbox.publish_sync(writer, "t", "y", 1)
    with ThreadPoolExecutor(1) as pool, closing(psycopg.connect(outbox_url, options="-c statement_timeout=10s")) as third:
        dropping = pool.submit(drop_partitions, old, LATER)
        while not dropping.done():
            outbox.publish_sync(third, "t", "y", 2)
            third.commit()
        assert dropping.result().dropped == ()


def test_old_rows_of_the_default_partition_are_deleted_when_they_are_delivered(connection):
    for days in (0, 1, 40):
        connection.execute(INSERT, [OLD + days * DAY])
    save_checkpoint(connection)
    connection.execute(INSERT, [OLD])
    assert drop_partitions(connection, LATER).deleted == 2
    assert places(connection) == {"default": 2}
    save_checkpoint(connection)
    assert drop_partitions(connection, LATER).deleted == 1


def test_rows_of_the_default_partition_are_deleted_by_their_marks_where_there_is_no_checkpoint(connection):
    for days in (0, 1):
        connection.execute(INSERT, [OLD + days * DAY])
    assert drop_partitions(connection, LATER).deleted == 0
    connection.execute("update headwater.outbox_message set status = 'published' where created_at = %s", [OLD])
    assert drop_partitions(connection, LATER).deleted == 1


def test_many_rows_of_the_default_partition_are_deleted_piece_by_piece(connection):
    connection.execute(
        """insert into headwater.outbox_message (topic, type, payload, created_at)
           select 't', 'y', '1', %s from generate_series(1, 25000)""",
        [OLD],
    )
    save_checkpoint(connection)
    assert drop_partitions(connection, LATER).deleted == 25_000


def test_a_dry_run_tells_and_changes_nothing(old):
    add_partition(old, OLD + DAY)
    save_checkpoint(old)
    old.execute(INSERT, [OLD + DAY])
    old.execute(INSERT, [OLD - DAY])
    purged = drop_partitions(old, LATER, dry_run=True)
    assert ([one.lower for one in purged.dropped], len(purged.kept), purged.deleted) == ([OLD], 1, 1)
    assert places(old) == {"20260110": 1, "20260111": 1, "default": 1}


def test_all_partitions_are_published_under_the_name_of_the_outbox(any_connection):
    add_partition(any_connection)
    any_connection.execute(
        """create publication outbox for table headwater.outbox_message
           with (publish = 'insert', publish_via_partition_root = true)"""
    )
    any_connection.execute("select pg_create_logical_replication_slot('parts', 'pgoutput')")
    try:
        ensure_partitions(any_connection, timedelta(0))
        for at in (OLD, datetime.now(UTC), OLD - DAY):
            any_connection.execute(INSERT, [at])
        assert len(places(any_connection)) == 3
        save_checkpoint(any_connection)
        assert len(drop_partitions(any_connection, LATER).dropped) == 1
        query = """select data from pg_logical_slot_get_binary_changes('parts', null, null, 'proto_version', '1',
                       'publication_names', 'outbox')"""
        sent = [bytes(row[0]) for row in any_connection.execute(query)]
    finally:
        any_connection.execute("select pg_drop_replication_slot('parts')")
    # A partition is described too, before the outbox is; its rows are the outbox's.
    names = {message[1:5]: message[5:].split(b"\0")[1] for message in sent if message[:1] == b"R"}
    changes = [(message[:1], names[message[1:5]]) for message in sent if message[:1] in (b"I", b"U", b"D")]
    assert changes == [(b"I", b"outbox_message")] * 3
    assert [message for message in sent if message[:1] == b"T"] == []


def test_a_client_that_stalls_while_it_makes_a_partition_does_not_hold_up_those_who_write(
    connection, outbox_url, monkeypatch
):
    """As one that is stopped, or whose network is cut: the server ends its session, and its locks with it."""
    stalled, released = Event(), Event()

    def execute_and_stall(client, statement):
        execute_sync(client, statement)
        if client.execute("select to_regclass('headwater.outbox_message_20260110_0000') is not null").fetchone() == (True,):
            stalled.set()
            released.wait(20)

    monkeypatch.setattr("headwater.outbox.partitions.execute_sync", execute_and_stall)
    monkeypatch.setattr("headwater.postgres.latest.IDLE_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr("headwater.outbox.partitions.missing_partitions", lambda *_: [OLD_PARTITION])
    connection.execute("set lock_timeout = '10s'")
    with ThreadPoolExecutor() as threads, closing(connect_sync(outbox_url)) as client:
        making = threads.submit(ensure_partitions, client)
        try:
            assert stalled.wait(10)
            connection.execute(INSERT, [OLD])
        finally:
            released.set()
        # Whether the client finds its connection gone, or reads first what the server has said of it.
        assert making.exception() is not None or making.result().made == ()
    assert places(connection) == {"default": 1}
    assert "20260110_0000" not in partitions(connection)


def test_a_client_that_stalls_while_it_drops_a_partition_does_not_hold_up_those_who_write(old, outbox_url, monkeypatch):
    old.execute("set lock_timeout = '10s'")

    def stall(*_arguments):
        old.execute(INSERT, [OLD])

    monkeypatch.setattr("headwater.outbox.partitions._hindrance", stall)
    monkeypatch.setattr("headwater.postgres.latest.IDLE_TIMEOUT", timedelta(seconds=1))
    with closing(connect_sync(outbox_url)) as client, pytest.raises(ConnectionLost), translated(outbox_url):
        drop_partitions(client, LATER)
    assert places(old) == {"20260110": 2}


def test_a_limit_of_the_role_for_statements_keeps_no_old_partition(old, outbox_url, monkeypatch):
    def take_a_while(connection, _partition):
        connection.execute("select pg_sleep(0.3)")

    monkeypatch.setattr("headwater.outbox.partitions._hindrance", take_a_while)
    with closing(connect_sync(outbox_url, options="-c statement_timeout=200")) as client:
        assert len(drop_partitions(client, LATER).dropped) == 1
