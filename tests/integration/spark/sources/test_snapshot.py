"""Tables read as a whole and then followed, by the source's reader as Spark's planner calls it."""

from contextlib import closing
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import Any

import psycopg
import pytest

from headwater.capture import snapshot
from headwater.capture.slots import SourceSlot, renew_slot
from headwater.capture.tables import TableStore, prepare_tables
from headwater.errors import ConnectionLost, SlotLost
from headwater.spark.sources import adbc as adbc_module
from tests.support.capture.change_streams import planned, position, reading
from tests.support.capture.memory_replica import Replica, follow
from tests.support.servers.embedded import prepared_database
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)


def _options(url: str, **more: object) -> dict[str, object]:
    return {"url": url, "slot": "hw", "tables": "public.*", "shape": "wire", "snapshot": "initial", "lanes": 1, **more}


def _rows(url: str, table: str) -> dict[str, dict[str, Any]]:
    with psycopg.connect(url) as connection:
        found = connection.execute(f"select id::text, v from {table}").fetchall()  # noqa: S608 - a table of the test
    return {key: {"id": key, "v": value} for key, value in found}


def _is_loaded(at: dict[str, Any]) -> bool:
    return at["load"] is None and not at["dropped"]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Tables of a few pages in several pieces, of which one at a time comes in a batch; nothing is waited for in vain."""
    monkeypatch.setattr("headwater.capture.pieces.PIECE_PAGES", 4)
    monkeypatch.setattr("headwater.spark.sources.loader._PIECES_ALONE", 1)
    monkeypatch.setattr("headwater.spark.sources.loader._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("headwater.spark.sources.changes._IDLE_SECONDS", 0.01)


@pytest.fixture
def shop(postgres18):
    with prepared_database(postgres18.url, _fill) as url:
        yield url


@pytest.fixture
def any_shop(any_postgres):
    """On each version in turn: for snapshots, slots and settings that are the server's own."""
    with prepared_database(any_postgres.url, _fill) as url:
        yield url


def _fill(url: str) -> None:
    prepare_tables(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table item (id int primary key, v text)")
        connection.execute("insert into item select g, 'item ' || g from generate_series(1, 5000) g")
        connection.execute("create table note (id int primary key, v text)")
        connection.execute("insert into note select g, null from generate_series(1, 10) g")
        connection.execute("create table nothing (id int primary key, v text)")


def test_rows_that_are_there_come_before_the_changes_that_follow(shop):
    replica = Replica()
    with reading(**_options(shop)) as reader, psycopg.connect(shop, autocommit=True) as connection:
        at = follow(reader, replica, reader.initialOffset(), _is_loaded)
        assert replica.tables[("public", "item")] == _rows(shop, "item")
        assert replica.tables[("public", "nothing")] == {}
        connection.execute("update item set v = 'changed' where id <= 10")
        connection.execute("delete from note where id = 3")
        connection.execute("insert into nothing values (1, 'one')")
        follow(reader, replica, at, lambda _: replica.tables[("public", "nothing")] == _rows(shop, "nothing"))
    for table in ("item", "note", "nothing"):
        assert replica.tables[("public", table)] == _rows(shop, table)
    assert (replica.repeated, replica.missed) == ([], [])


def test_what_is_written_while_a_table_is_read_is_neither_missed_nor_repeated(any_shop):
    replica = Replica()
    with reading(**_options(any_shop)) as reader, psycopg.connect(any_shop, autocommit=True) as connection:
        at, number = reader.initialOffset(), 10_000
        while not _is_loaded(at):
            number += 1
            connection.execute("insert into item values (%s, 'new')", [number])
            connection.execute("update item set v = v || '!' where id = %s", [number % 5000 + 1])
            connection.execute("delete from item where id = %s", [number % 1000 + 1])
            end = reader.latestOffset(at, reader.getDefaultReadLimit())
            if end != at:
                replica.deliver(reader, at, end)
                at = end
        follow(reader, replica, at, lambda _: replica.tables[("public", "item")] == _rows(any_shop, "item"))
    assert (replica.repeated, replica.missed) == ([], [])
    assert replica.swaps == 1


def test_an_attempt_dies_with_its_process_and_another_takes_its_place(shop):
    replica = Replica()
    with reading(**_options(shop)) as reader:
        at = follow(reader, replica, reader.initialOffset(), lambda at: at["load"] and at["load"]["delivered"])
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        assert 0 < at["load"]["delivered"] < end["load"]["delivered"] < end["load"]["pieces"]
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("delete from item where id <= 2500")
    with reading(**_options(shop)) as reader:
        replica.deliver(reader, at, end)
        at = follow(reader, replica, end, _is_loaded)
        assert replica.dead_batches == 1
        assert replica.tables[("public", "item")] == _rows(shop, "item")
    assert (replica.repeated, replica.missed) == ([], [])


def test_held_changes_survive_a_restart_after_the_swap(shop):
    replica = Replica()
    with reading(**_options(shop)) as reader, psycopg.connect(shop, autocommit=True) as connection:
        at = follow(reader, replica, reader.initialOffset(), lambda at: at["load"] and at["load"]["snapshot"])
        connection.execute("update item set v = 'held' where id <= 100")
        connection.execute("insert into note values (99, 'held')")
        # The stream moves past them, and then the attempt is complete.
        at = follow(
            reader, replica, at, lambda at: at["load"] and at["load"]["complete"] and position(at["load"]) < position(at)
        )
        assert replica.tables[("public", "note")] != _rows(shop, "note")
    with reading(**_options(shop)) as reader:
        follow(reader, replica, at, _is_loaded)
    for table in ("item", "note"):
        assert replica.tables[("public", table)] == _rows(shop, table)
    assert (replica.repeated, replica.missed) == ([], [])


def _ask(url: str, call: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"select headwater.{call}")


def _known(url: str) -> dict[str, Any]:
    with psycopg.connect(url) as connection:
        rows = connection.execute("select table_name, state, error from headwater.pipeline_table").fetchall()
    return {name: (state, error) for name, state, error in rows}


def _follow_until_equal(reader: Any, replica: Replica, at: dict[str, Any], url: str, *tables: str) -> dict[str, Any]:
    def is_equal(at: dict[str, Any]) -> bool:
        return _is_loaded(at) and all(replica.tables.get(("public", table)) == _rows(url, table) for table in tables)

    return follow(reader, replica, at, is_equal)


def test_a_table_that_is_added_while_running_is_read_and_followed_and_the_others_go_on(shop):
    replica = Replica()
    with reading(**_options(shop, tables="public.item")) as reader, psycopg.connect(shop, autocommit=True) as connection:
        at = follow(reader, replica, reader.initialOffset(), _is_loaded)
        # Somebody who writes keeps the newcomer's snapshot waiting; the others do not wait for it.
        writer = psycopg.connect(shop)
        writer.execute("insert into note values (77, 'in progress')")
        _ask(shop, "add_table('hw', 'public.note')")
        at = follow(reader, replica, at, lambda at: at["load"] is not None)
        connection.execute("insert into item values (7000, 'meanwhile')")
        at = follow(reader, replica, at, lambda _: "7000" in replica.tables[("public", "item")])
        assert at["load"]["snapshot"] is None
        writer.commit()
        connection.execute("update note set v = 'later' where id = 1")
        _follow_until_equal(reader, replica, at, shop, "item", "note")
        writer.close()
    assert (replica.repeated, replica.missed) == ([], [])
    assert _known(shop)["note"] == ("streaming", None)


def test_a_table_that_was_taken_out_sends_nothing_more(shop):
    replica = Replica()
    with reading(**_options(shop)) as reader, psycopg.connect(shop, autocommit=True) as connection:
        at = follow(reader, replica, reader.initialOffset(), _is_loaded)
        _ask(shop, "remove_table('hw', 'public.note')")
        at = follow(reader, replica, at, lambda at: ["public", "note"] in at["dropped"])
        connection.execute("delete from note")
        connection.execute("insert into item values (7000, 'later')")
        follow(reader, replica, at, lambda _: "7000" in replica.tables[("public", "item")])
    assert len(replica.tables[("public", "note")]) == 10


def test_a_table_is_read_again_on_request_and_what_it_lost_unseen_is_gone(shop):
    replica = Replica()
    with reading(**_options(shop)) as reader, psycopg.connect(shop, autocommit=True) as connection:
        at = follow(reader, replica, reader.initialOffset(), _is_loaded)
        replica.tables[("public", "item")]["999999"] = {"id": "999999", "v": "a ghost"}
        connection.execute("update item set v = 'again' where id < 50")
        _ask(shop, "snapshot_table('hw', 'public.item')")
        at = follow(reader, replica, at, lambda at: at["load"] is not None)
        _follow_until_equal(reader, replica, at, shop, "item", "note")
    assert (replica.repeated, replica.missed, replica.swaps) == ([], [], 2)


def test_a_table_that_may_not_be_read_is_told_and_the_others_go_on(shop):
    replica = Replica()
    role = f"reader_{abs(hash(shop))}"
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute(f"create role {role} login replication superuser password 'secret'")
        url = psycopg.conninfo.make_conninfo(shop, user=role, password="secret")
        with reading(**_options(url)) as reader:
            at = reader.initialOffset()
            connection.execute(f"alter role {role} nosuperuser")
            connection.execute(f"grant pg_read_all_data to {role}")
            for statement in (
                f"revoke pg_read_all_data from {role}",
                f"grant usage on schema headwater to {role}",
                f"grant all on all tables in schema headwater to {role}",
                f"grant select on item, nothing to {role}",
            ):
                connection.execute(statement)
            at = follow(reader, replica, at, lambda at: at["load"] is None and len(replica.tables) == 2)
            assert at["dropped"] == [["public", "note"]]
            state, error = _known(shop)["note"]
            assert state == "wanted"
            assert f"role {role} may not read it" in error
            connection.execute("insert into note values (50, 'left out until it can be read')")
            connection.execute(f"grant select on note to {role}")
            connection.execute("update headwater.pipeline_table set retry_at = now()")
            _follow_until_equal(reader, replica, at, shop, "item", "note")
        connection.execute(f"drop owned by {role}")
        connection.execute(f"drop role {role}")
    assert (replica.repeated, replica.missed) == ([], [])


def test_a_table_that_is_locked_is_told_and_the_others_go_on(shop, monkeypatch):
    monkeypatch.setattr(snapshot, "_LOCK_TIMEOUT", timedelta(milliseconds=200))
    pass_fence = snapshot._pass_fence
    with psycopg.connect(shop) as locker, reading(**_options(shop)) as reader:

        def lock_then(*arguments: Any) -> None:
            # Whoever locks a table so has a transaction id, and would be waited for.
            pass_fence(*arguments)
            locker.execute("lock table note in access exclusive mode")

        monkeypatch.setattr(snapshot, "_pass_fence", lock_then)
        replica = Replica()
        at = follow(reader, replica, reader.initialOffset(), lambda at: at["load"] is None and len(replica.tables) == 2)
        assert "another session has locked it" in _known(shop)["note"][1]
        locker.rollback()
        monkeypatch.setattr(snapshot, "_pass_fence", pass_fence)
        with psycopg.connect(shop, autocommit=True) as connection:
            connection.execute("update headwater.pipeline_table set retry_at = now()")
        _follow_until_equal(reader, replica, at, shop, "item", "note", "nothing")


def test_who_keeps_a_snapshot_waiting_is_told(shop, monkeypatch):
    monkeypatch.setattr(snapshot, "_PATIENT_SECONDS", 0.1)
    replica = Replica()
    with reading(**_options(shop)) as reader, psycopg.connect(shop) as writer:
        at = reader.initialOffset()
        writer.execute("insert into note values (500, 'not committed')")
        at = follow(reader, replica, at, lambda _: _known(shop)["note"][1])
        told = _known(shop)["note"][1]
        assert f"waits for older transactions to end: process {writer.info.backend_pid}" in told
        writer.commit()
        _follow_until_equal(reader, replica, at, shop, "note")
    assert _known(shop)["note"] == ("streaming", None)


def test_a_table_whose_rows_the_server_cannot_read_is_left_out_of_the_next_attempt_and_the_others_go_on(any_shop):
    """A row filter that divides by zero for a row that was there before fails like a damaged page: in the midst of it."""
    replica = Replica()
    with psycopg.connect(any_shop, autocommit=True) as connection:
        connection.execute("insert into note values (0, 'fails')")
        connection.execute("create publication hw for table item, nothing, note where (100 / id > 0)")
        with reading(**_options(any_shop)) as reader:
            at = reader.initialOffset()
            with pytest.raises(ConnectionLost, match=r"table public\.note cannot be read at its snapshot"):
                follow(reader, replica, at, _is_loaded)
        state, error = _known(any_shop)["note"]
        assert (state, "division by zero" in error) == ("wanted", True)
        with reading(**_options(any_shop)) as reader:
            at = follow(reader, replica, reader.initialOffset(), lambda at: at["load"] is None and len(replica.tables) == 2)
            assert at["dropped"] == [["public", "note"]]
            connection.execute("alter publication hw set table item, nothing, note")
            connection.execute("update headwater.pipeline_table set retry_at = now()")
            _follow_until_equal(reader, replica, at, any_shop, "item", "note", "nothing")
    assert (replica.repeated, replica.missed) == ([], [])


def test_a_table_that_vanishes_is_told_and_the_others_go_on(shop):
    replica = Replica()
    with reading(**_options(shop)) as reader, psycopg.connect(shop, autocommit=True) as connection:
        at = reader.initialOffset()
        connection.execute("drop table note")
        follow(reader, replica, at, lambda at: at["load"] is None and len(replica.tables) == 2)
        assert "it does not exist" in _known(shop)["note"][1]


def test_a_table_that_somebody_took_out_of_the_publication_is_published_and_read_again(any_shop, monkeypatch):
    monkeypatch.setattr("headwater.spark.sources.loader._FIND_SECONDS", 0.0)
    replica = Replica()
    with reading(**_options(any_shop)) as reader, psycopg.connect(any_shop, autocommit=True) as connection:
        at = follow(reader, replica, reader.initialOffset(), _is_loaded)
        connection.execute("alter publication hw drop table note")
        connection.execute("insert into note values (60, 'unpublished')")
        _follow_until_equal(reader, replica, at, any_shop, "note")


def test_a_table_that_is_made_anew_is_read_anew(shop, monkeypatch):
    monkeypatch.setattr("headwater.spark.sources.loader._FIND_SECONDS", 0.0)
    replica = Replica()
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("create publication hw for all tables with (publish_via_partition_root = true)")
        with reading(**_options(shop)) as reader:
            at = follow(reader, replica, reader.initialOffset(), _is_loaded)
            connection.execute("drop table note")
            connection.execute("create table note (id int primary key, v text)")
            connection.execute("insert into note values (1000, 'of the new one')")
            _follow_until_equal(reader, replica, at, shop, "note")


def test_a_table_that_comes_to_match_a_pattern_is_added_by_itself(shop, monkeypatch):
    monkeypatch.setattr("headwater.spark.sources.loader._FIND_SECONDS", 0.0)
    replica = Replica()
    with reading(**_options(shop)) as reader, psycopg.connect(shop, autocommit=True) as connection:
        at = follow(reader, replica, reader.initialOffset(), _is_loaded)
        connection.execute("create table late (id int primary key, v text)")
        connection.execute("insert into late values (1, 'before')")
        _follow_until_equal(reader, replica, at, shop, "late")


def test_a_slot_that_is_not_the_one_we_knew_is_noticed(any_shop):
    replica = Replica()
    with reading(**_options(any_shop)) as reader:
        at = follow(reader, replica, reader.initialOffset(), _is_loaded)
    with psycopg.connect(any_shop, autocommit=True) as connection:
        eventually(lambda: connection.execute("select not active from pg_replication_slots").fetchone() == (True,))
        connection.execute("insert into note values (88, 'in the gap')")
        for trouble in (
            "select pg_replication_slot_advance('hw', pg_current_wal_lsn())",
            "select pg_drop_replication_slot('hw')",
            "select pg_create_logical_replication_slot('hw', 'pgoutput')",
        ):
            connection.execute(trouble)
            with reading(**_options(any_shop)) as reader, pytest.raises(SlotLost):
                reader.latestOffset(at, reader.getDefaultReadLimit())


def test_after_the_loss_of_the_slot_all_tables_are_read_again_and_nothing_of_the_gap_is_missing(any_shop):
    _lose_slot(any_shop, keeps_checkpoint=True)


def test_after_the_loss_of_the_slot_and_the_checkpoint_directory_all_tables_are_read_again(shop):
    _lose_slot(shop, keeps_checkpoint=False)


def _lose_slot(url: str, *, keeps_checkpoint: bool) -> None:
    """Lose the slot with changes in it that Spark has logged, and make another; the replica must end equal to the source."""
    replica = Replica()
    with reading(**_options(url)) as reader, psycopg.connect(url, autocommit=True) as connection:
        at = follow(reader, replica, reader.initialOffset(), _is_loaded)
        connection.execute("update item set v = 'logged, and not delivered' where id = 7")
        pending = eventually(lambda: _another(reader, at))
    with psycopg.connect(url, autocommit=True) as connection:
        eventually(lambda: connection.execute("select not active from pg_replication_slots").fetchone() == (True,))
        connection.execute("select pg_drop_replication_slot('hw')")
        connection.execute("delete from item where id > 4000")
        connection.execute("insert into note values (88, 'in the gap')")
    with closing(TableStore(url, "hw")) as store:
        renew_slot(SourceSlot(url, "hw", "hw", ("public.*",)), store, "the slot is lost")
    with reading(**_options(url)) as reader:
        if keeps_checkpoint:
            assert reader.partitions(at, pending) == []
            at = pending
        else:
            at = reader.initialOffset()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("update note set v = 'after the gap' where id = 88")
        follow(reader, replica, at, lambda at: at["generation"] != pending["generation"] and _is_loaded(at))
        for table in ("item", "note", "nothing"):
            assert replica.tables[("public", table)] == _rows(url, table)
    assert (replica.repeated, replica.missed) == ([], [])


def _another(reader: Any, at: dict[str, Any]) -> dict[str, Any] | None:
    end = reader.latestOffset(at, reader.getDefaultReadLimit())
    return None if end == at else end


def test_changes_of_a_table_that_could_not_be_read_stay_out_and_replay_alike(shop, monkeypatch):
    monkeypatch.setattr(snapshot, "_LOCK_TIMEOUT", timedelta(milliseconds=200))
    pass_fence = snapshot._pass_fence
    with psycopg.connect(shop) as locker, psycopg.connect(shop, autocommit=True) as connection:

        def lock_then(*arguments: Any) -> None:
            pass_fence(*arguments)
            locker.execute("lock table note in access exclusive mode")

        monkeypatch.setattr(snapshot, "_pass_fence", lock_then)
        replica = Replica()
        with reading(**_options(shop)) as reader:
            at = follow(reader, replica, reader.initialOffset(), lambda at: at["load"] and at["load"]["snapshot"])
            assert at["dropped"] == [["public", "note"]]
            locker.rollback()
            connection.execute("update note set v = 'of a table that is not there yet'")
            connection.execute("insert into item values (8000, 'held')")
            at = follow(reader, replica, at, lambda at: at["load"] and position(at["load"]) < position(at))
            at = follow(reader, replica, at, lambda at: at["load"] and at["load"]["complete"])
            last = eventually(lambda: _another(reader, at))
            first_time = [partition.changes for partition in planned(reader, at, last).partitions]
        with reading(**_options(shop)) as reader:
            assert [partition.changes for partition in planned(reader, at, last).partitions] == first_time == [(1,)]
            replica.deliver(reader, at, last)
    assert ("public", "note") not in replica.tables
    assert (replica.repeated, replica.missed) == ([], [])


def test_the_partitions_of_a_table_are_locked_while_it_is_read(any_database):
    replica = Replica()
    with psycopg.connect(any_database, autocommit=True) as connection:
        connection.execute("create table item (id int primary key, v text) partition by range (id)")
        connection.execute("create table low partition of item for values from (0) to (1000)")
        connection.execute("create table high partition of item for values from (1000) to (9000)")
        connection.execute("insert into item select g, 'row' from generate_series(1, 5000) g")
        with reading(**_options(any_database, tables="public.item")) as reader:
            at = follow(reader, replica, reader.initialOffset(), lambda at: at["load"] and at["load"]["snapshot"])
            connection.execute("set lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                connection.execute("truncate high")
            follow(reader, replica, at, _is_loaded)
    assert len(replica.tables[("public", "item")]) == 5000


def test_timeouts_of_the_server_do_not_end_a_reading(any_shop):
    replica = Replica()
    with psycopg.connect(any_shop, autocommit=True) as connection:
        timeouts = ["idle_in_transaction_session_timeout", "statement_timeout"]
        timeouts += ["transaction_timeout"] if connection.info.server_version >= 170000 else []
        for name in timeouts:
            connection.execute(f"alter role postgres in database {connection.info.dbname} set {name} = '300ms'")
        with reading(**_options(any_shop)) as reader:
            at = follow(reader, replica, reader.initialOffset(), lambda at: at["load"] and at["load"]["snapshot"])
            # Longer than each timeout: whether the reading outlasts that is the subject.
            connection.execute("select pg_sleep(0.5)")
            follow(reader, replica, at, _is_loaded)
    assert replica.tables[("public", "item")] == _rows(any_shop, "item")


def test_a_slot_of_another_name_is_a_loss_and_nothing_is_skipped(shop):
    replica = Replica()
    with reading(**_options(shop)) as reader:
        follow(reader, replica, reader.initialOffset(), _is_loaded)
    with reading(**_options(shop, slot="other", publication="hw", pipeline="hw")) as reader:
        with pytest.raises(SlotLost, match="was delivered from slot 'hw', and slot 'other' knows nothing of that"):
            reader.initialOffset()
    with closing(TableStore(shop, "hw")) as store:
        renew_slot(SourceSlot(shop, "other", "hw", ("public.*",)), store, "renamed")
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute("delete from note where id = 2")
    with reading(**_options(shop, slot="other", publication="hw", pipeline="hw")) as reader:
        follow(reader, replica, reader.initialOffset(), _is_loaded)
    assert replica.tables[("public", "note")] == _rows(shop, "note")


def test_a_load_that_holds_nothing_back_ends_before_the_stream_moves_on(shop):
    """A sink that keeps one position for all tables would otherwise take what follows for delivered."""
    replica = Replica()
    with reading(**_options(shop)) as reader, psycopg.connect(shop, autocommit=True) as connection:
        at = follow(reader, replica, reader.initialOffset(), _is_loaded)
        for _ in range(2):
            _ask(shop, "snapshot_table('hw', 'public.item')")
            at = follow(reader, replica, at, lambda at: at["load"] and at["load"]["complete"])
            assert position(at["load"]) == position(at)
            connection.execute("update item set v = v || '+' where id = 1")
            connection.execute("update note set v = 'other' where id = 1")
            end = eventually(partial(_another, reader, at))
            assert (end["load"], position(end)) == (None, position(at))
            replica.deliver(reader, at, end)
            at = _follow_until_equal(reader, replica, end, shop, "item", "note")
    assert (replica.repeated, replica.missed) == ([], [])


def test_somebody_who_waits_to_lock_a_table_gets_his_turn_and_the_table_is_begun_anew(shop, monkeypatch):
    """The readers would stand behind him, he behind the snapshot's lock, and that waits for the readers."""
    monkeypatch.setattr(adbc_module, "_LOCK_MILLISECONDS", 200)
    replica = Replica()
    with reading(**_options(shop)) as reader, psycopg.connect(shop, autocommit=True) as connection:
        at = follow(reader, replica, reader.initialOffset(), lambda at: at["load"] and at["load"]["snapshot"])
        waits = Thread(target=connection.execute, args=("truncate item",))
        waits.start()
        with psycopg.connect(shop, autocommit=True) as other:
            query = "select 1 from pg_locks where not granted and relation = 'item'::regclass"
            eventually(lambda: other.execute(query).fetchall())
        with pytest.raises(ConnectionLost, match=r"cannot be read|broke off"):
            follow(reader, replica, at, _is_loaded)
        reader.stop()
        waits.join()
    with reading(**_options(shop)) as reader:
        follow(reader, replica, at, _is_loaded)
    assert replica.tables[("public", "item")] == _rows(shop, "item") == {}
