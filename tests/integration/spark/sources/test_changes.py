"""The source's reader on real servers, called as Spark's planner calls it: where ranges end, and what they hold."""

import json
from typing import Any

import pytest

from headwater.capture import CaptureSettings
from headwater.embedded import EmbeddedPostgres
from headwater.errors import PositionError, SlotLost, SlotMissing, SourceError
from headwater.model import Lsn, Position
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication.columnar import decode_columns
from headwater.spark.sources import changes
from headwater.spark.sources.changes import ChangesReader
from tests.support.capture.captured_database import confirmed_flush, open_files, prepare
from tests.support.capture.change_streams import (
    Range,
    frame_in,
    log_of,
    new_reader,
    next_range,
    planned,
    position,
    ranges,
    reading,
)
from tests.support.capture.slot_drop import drop_free_slot
from tests.support.servers.embedded import fresh_database, postgres_settings
from tests.support.servers.tcp_proxy import Proxy
from tests.support.waiting import eventually

KIB = 1024


def _options(url: str, **more: object) -> dict[str, object]:
    return {"url": url, "slot": "hw", "publication": "pub", **more}


def _ids(found: list[Range]) -> list[int]:
    return [int(change["after"]["id"]) for each in found for change in each.changes()]


def _fast_ids(found: Range) -> list[int]:
    """The same for many inserts into one table."""
    frames = (frame_in(frame) for partition in found.partitions for frame in partition.frames)
    groups = (group for frame in frames for group in decode_columns(frame.batch, frame.types))
    return [id for group in groups if group.after is not None for id in group.after["id"].to_pylist()]


def test_ranges_end_at_commits_and_hold_whole_transactions(any_database):
    with prepare(any_database) as connection:
        connection.execute("insert into item select g from generate_series(1, 10) g")
        connection.execute("insert into item select g from generate_series(11, 13) g")
        connection.execute("insert into item select g from generate_series(14, 20) g")
        with reading(**_options(any_database, maxRowsPerTrigger=12)) as reader:
            found = list(ranges(reader, 20))
    # The last two may come one after the other.
    assert [len(each.changes()) for each in found] in ([10, 10], [10, 3, 7])
    assert all(position(each.end).ordinal == 0 for each in found)
    assert _ids(found) == list(range(1, 21))
    assert all(position(each.start) < position(each.end) for each in found)


@pytest.mark.parametrize("rows", [7, 100, 5000])
def test_a_transaction_of_more_rows_than_the_limit_is_cut_by_ordinal_and_comes_whole(database, rows):
    with prepare(database, "insert into item select g, repeat('x', 50) from generate_series(1, 1000) g") as connection:
        connection.execute("insert into item values (1001)")
        with reading(**_options(database, maxRowsPerTrigger=rows)) as reader:
            found = list(ranges(reader, 1001))
    assert all(len(each.changes()) <= rows for each in found)
    assert _ids(found) == list(range(1, 1002))
    places = [tuple(change["position"]) for each in found for change in each.changes()]
    assert places == sorted(set(places))
    # The transactions may come one after the other.
    assert -(-1001 // rows) <= len(found) <= -(-1000 // rows) + 1


def test_ranges_have_a_limit_in_bytes_and_smaller_transactions_are_not_cut(database):
    with prepare(database) as connection:
        for first in range(0, 1000, 100):
            connection.execute(
                "insert into item select g, repeat('x', 300) from generate_series(%s::int, %s::int) g", [first, first + 99]
            )
        with reading(**_options(database, maxBytesPerTrigger=100 * KIB)) as reader:
            found = list(ranges(reader, 1000))
    sizes = [sum(len(frame) for partition in each.partitions for frame in partition.frames) for each in found]
    # Each transaction has about 34 KB, and a frame some for itself.
    assert all(size < 120 * KIB for size in sizes), sizes
    assert len(found) >= 4
    assert all(position(each.end).ordinal == 0 for each in found)
    assert _ids(found) == list(range(1000))


def test_a_transaction_within_the_limit_is_never_cut_however_slowly_it_comes(database):
    """It is read in pieces, and Spark asks while only some of them are there."""
    with prepare(database) as connection, Proxy(database) as proxy:
        connection.execute("insert into item select g, repeat('x', 1000) from generate_series(1, 12000) g")
        with reading(**_options(proxy.url, maxBytesPerTrigger=32 * KIB * KIB, streaming="false")) as reader:
            found = list(ranges(reader, 12000))
    assert [len(each.changes()) for each in found] == [12000]


@pytest.mark.parametrize("streaming", ["true", "false"])
def test_a_transaction_that_ends_with_much_that_is_no_change_ends_where_it_ends(database, streaming):
    """Its last pieces hold nothing to deliver, and still say that it is whole."""
    with prepare(database) as connection:
        connection.execute(f"alter database \"{connection.info.dbname}\" set logical_decoding_work_mem = '64kB'".encode())
        connection.execute("begin")
        connection.execute("insert into item select generate_series(1, 10)")
        connection.execute("select pg_logical_emit_message(true, 'app', repeat('x', 50000)) from generate_series(1, 20)")
        connection.execute("commit")
        with reading(**_options(database, maxBytesPerTrigger=128 * KIB, streaming=streaming)) as reader:
            (found,) = ranges(reader, 10)
            assert position(found.end).ordinal == 0

            def has_moved() -> bool:
                assert reader.latestOffset(found.end, reader.getDefaultReadLimit()) == found.end
                return confirmed_flush(connection) >= position(found.end).commit_lsn

            eventually(has_moved)


@pytest.mark.timeout(120)
def test_a_transaction_larger_than_memory_goes_through_disk_and_comes_whole(database, tmp_path):
    rows = 200_000
    with prepare(database) as connection:
        connection.execute(f"alter database \"{connection.info.dbname}\" set logical_decoding_work_mem = '64kB'".encode())
        options = _options(database, maxBytesPerTrigger=512 * KIB, spillDirectory=tmp_path)
        with reading(**options) as reader:
            start = reader.initialOffset()
            reader.latestOffset(start, reader.getDefaultReadLimit())
            connection.execute("begin")
            connection.execute("insert into item select g, 'x' from generate_series(1, %s) g", [rows])
            assert eventually(lambda: open_files(tmp_path), seconds=60) == 1
            connection.execute("commit")
            ids: list[int] = []
            held, log = 0, reader._log
            assert log is not None
            for each in ranges(reader, rows, start):
                ids += _fast_ids(each)
                held = max(held, log._bytes_after(Position(Lsn(0), 0)) + log._capture._buffer._bytes)
    assert ids == list(range(1, rows + 1))
    assert position(each.end).ordinal == 0
    # What is in flight, what is read behind it, and what the capture holds, each with a piece more than its limit.
    assert held < 3 * 1024 * KIB


def test_a_range_is_planned_again_before_anything_else_after_a_restart(any_database):
    with prepare(any_database, "insert into item values (1), (2)", "insert into item values (3)"):
        with reading(**_options(any_database, maxRowsPerTrigger=2)) as reader:
            first = next_range(reader, reader.initialOffset())
        with reading(**_options(any_database)) as reader:
            assert planned(reader, first.start, first.end).lanes() == first.lanes()
            second = next_range(reader, first.end)
        with reading(**_options(any_database)) as reader:
            assert planned(reader, second.start, second.end).lanes() == second.lanes()
    assert (_ids([first]), _ids([second])) == ([1, 2], [3])


def test_a_range_in_mid_transaction_is_planned_again_after_a_restart(database):
    with prepare(database, "insert into item select generate_series(1, 100)"):
        with reading(**_options(database, maxRowsPerTrigger=30)) as reader:
            found = list(ranges(reader, 100))
        assert [position(each.end).ordinal for each in found] == [30, 60, 90, 0]
        for each in found:
            with reading(**_options(database)) as again:
                assert planned(again, each.start, each.end).lanes() == each.lanes()
        # And the stream goes on behind it.
        with reading(**_options(database)) as again:
            assert _ids(list(ranges(again, 40, found[1].end))) == list(range(61, 101))


def test_the_initial_offset_is_stable_and_nothing_is_delivered_before_it(database):
    with prepare(database, "insert into item values (1)") as connection:
        with reading(**_options(database)) as reader:
            first = reader.initialOffset()
            connection.execute("create table noise (v int)")
            connection.execute("insert into noise select generate_series(1, 1000)")
            found = next_range(reader, first)
            assert reader.initialOffset() == first
        assert position(first) == Position(confirmed_flush(connection), 0)
        assert _ids([found]) == [1]


def test_an_empty_range_has_no_partitions_and_needs_no_server(database):
    with prepare(database):
        with reading(**_options(database)) as reader:
            start = reader.initialOffset()
        with reading(**_options(database.replace("127.0.0.1", "127.0.0.2"))) as reader:
            assert reader.partitions(start, start) == []


def test_a_range_that_the_slot_is_past_is_empty_and_does_not_wait(database):
    """After a power loss Spark's checkpoint may be behind the slot: what it asks for was delivered."""
    with prepare(database, "insert into item values (1)", "insert into item values (2)") as connection:
        with reading(**_options(database, maxRowsPerTrigger=1)) as reader:
            first, second = ranges(reader, 2)
            reader.latestOffset(second.end, reader.getDefaultReadLimit())
            log_of(reader).report()
        eventually(lambda: confirmed_flush(connection) >= position(second.end).commit_lsn)
        connection.execute("insert into item values (3)")
        with reading(**_options(database)) as reader:
            assert reader.partitions(first.start, first.end) == []
            assert reader.partitions(second.start, second.end) == []
            assert _ids([next_range(reader, first.end)]) == [3]


def test_nothing_new_makes_no_batch_also_after_a_restart_behind_the_slot(database):
    with prepare(database, "insert into item values (1)", "create table noise (v int)") as connection:
        with reading(**_options(database)) as reader:
            (found,) = ranges(reader, 1)
            connection.execute("insert into noise select generate_series(1, 1000)")
            for _ in range(5):
                log_of(reader).mark()
                assert reader.latestOffset(found.end, reader.getDefaultReadLimit()) == found.end
            log_of(reader).report()
        assert eventually(lambda: confirmed_flush(connection) > position(found.end).commit_lsn)
        with reading(**_options(database)) as reader:
            for _ in range(3):
                assert reader.latestOffset(found.end, reader.getDefaultReadLimit()) == found.end


def _logged(database: str) -> dict[str, Any]:
    with reading(**_options(database)) as reader:
        (found,) = ranges(reader, 1)
        return found.end


def _refused(reader: ChangesReader, offset: dict[str, Any], said: str, *, also_start: bool = True) -> None:
    """Both ways in which a restarted query may begin."""
    error = (PositionError, SlotLost)
    with pytest.raises(error, match=said):
        reader.latestOffset(offset, reader.getDefaultReadLimit())
    reader.stop()
    start = offset if also_start else {**offset, "lsn": "0/1"}
    with pytest.raises(error, match=said):
        reader.partitions(start, {**offset, "ordinal": offset["ordinal"] + 1})
    reader.stop()


def test_a_checkpoint_ahead_of_the_server_is_refused_and_confirms_nothing(database):
    with prepare(database, "insert into item values (1)") as connection:
        end = _logged(database)
        before = confirmed_flush(connection)
        ahead = {**end, "lsn": str(Lsn(Lsn.parse(end["lsn"]) + (1 << 30)))}
        reader = new_reader(**_options(database))
        _refused(reader, ahead, "and the server only at .*name the right server")
        assert confirmed_flush(connection) == before
        with pytest.raises(SlotLost, match="and the server only at"):
            reader.partitions(end, ahead)
        reader.stop()
        connection.execute("insert into item values (2)")
        with reading(**_options(database)) as reader:
            assert _ids(list(ranges(reader, 1, end))) == [2]


def test_a_checkpoint_of_another_slot_or_server_or_history_is_refused(database):
    with prepare(database, "insert into item values (1)"):
        end = _logged(database)
        reader = new_reader(**_options(database))
        _refused(reader, {**end, "slot": "other"}, "is of slot 'other' on server .* and this is slot 'hw'")
        _refused(reader, {**end, "system": "5"}, "on server 5, and this is slot 'hw'")
        _refused(reader, {**end, "timeline": 3}, "on timeline 3, which is not part of this server's history")
        _refused(reader, {**end, "version": 7}, "written by another release", also_start=False)


def test_a_missing_slot_with_a_checkpoint_is_an_error_and_never_made_anew(database):
    with prepare(database, "insert into item values (1)") as connection:
        end = _logged(database)
        drop_free_slot(connection, "hw")
        _refused(new_reader(**_options(database, tables="item")), end, "slot 'hw' does not exist")
        assert connection.execute("select count(*) from pg_replication_slots where slot_name = 'hw'").fetchone() == (0,)


def test_a_slot_made_anew_does_not_hide_that_the_first_batch_was_lost(database):
    """Without a committed batch Spark asks for the initial offset, as it does at the very first start."""
    with prepare(database, "insert into item values (1)") as connection:
        end = _logged(database)
        drop_free_slot(connection, "hw")
        with reading(**_options(database, tables="item")) as reader:
            start = reader.initialOffset()
            with pytest.raises(PositionError, match="'hw' was missing and is made anew"):
                reader.partitions(start, end)


def test_a_slot_without_tables_must_be_there(database):
    with pytest.raises(SlotMissing, match="'hw' does not exist"), reading(**_options(database)) as reader:
        reader.initialOffset()


def test_slot_and_publication_are_made_for_the_tables_that_are_named(any_database):
    with connect_sync(any_database) as connection:
        connection.execute("create table item (id int primary key, v text)")
        connection.execute("create table other (id int primary key)")
        with reading(url=any_database, slot="hw", tables="item") as reader:
            start = reader.initialOffset()
            connection.execute("insert into other values (7)")
            connection.execute("insert into item values (1)")
            assert _ids([next_range(reader, start)]) == [1]
        published = connection.execute("select pubname, tablename from pg_publication_tables").fetchall()
        assert published == [("hw", "item")]


def test_a_publication_that_lacks_a_table_is_refused(database):
    with prepare(database, "create table other (id int primary key)"):
        with pytest.raises(SourceError, match=r"does not hold all that is wanted \(add public\.other\)"):
            new_reader(**_options(database, tables="item,other")).initialOffset()


def test_only_the_wanted_tables_come_from_a_publication_of_all(any_database):
    with connect_sync(any_database) as connection:
        connection.execute("create table item (id int primary key, v text)")
        connection.execute("create table other (id int primary key, v text)")
        connection.execute("create publication pub for all tables")
        connection.execute("select pg_create_logical_replication_slot('hw', 'pgoutput')")
        connection.execute("begin")
        connection.execute("insert into other values (1)")
        connection.execute("insert into item values (2)")
        connection.execute("truncate other, item")
        connection.execute("insert into other values (3)")
        connection.execute("insert into item values (4)")
        connection.execute("commit")
        with reading(**_options(any_database, tables="item")) as reader:
            found = next_range(reader, reader.initialOffset())
    changes = found.changes()
    assert {change["table"] for change in changes} == {"item"}
    assert [change["op"] for change in changes] == ["c", "t", "c"]
    # Ordinals count what was left out, so that ids do not depend on what is wanted.
    assert [change["position"][1] for change in changes][0::2] == [1, 5]
    assert found.end["holds"]["tables"] == {"public.item": 3}


def test_lanes_and_their_rule_are_those_of_the_offset_whatever_the_options_say(database):
    with prepare(database, "insert into item select generate_series(1, 100)"):
        with reading(**_options(database, lanes=5, laneBy="key")) as reader:
            (first,) = ranges(reader, 100)
            assert len(first.partitions) == 5
        with reading(**_options(database, lanes=2, laneBy="table")) as reader:
            again = planned(reader, first.start, first.end)
            assert again.lanes() == first.lanes()
            later = reader.latestOffset(first.start, reader.getDefaultReadLimit())
    assert (later["lanes"], later["by"]) == (5, "key")


def test_the_slot_follows_what_spark_has_committed_and_is_never_ahead_of_it(database):
    with prepare(database, "insert into item values (1)", "insert into item values (2)") as connection:
        with reading(**_options(database, maxRowsPerTrigger=1)) as reader:
            first, second = ranges(reader, 2)
            # Asking for the second range told that the first one is committed.
            assert log_of(reader)._capture.report()
            assert eventually(lambda: confirmed_flush(connection) >= position(first.end).commit_lsn)
            assert confirmed_flush(connection) <= Lsn(second.changes()[0]["position"][0])
            reader.latestOffset(second.end, reader.getDefaultReadLimit())
            assert eventually(lambda: confirmed_flush(connection) >= position(second.end).commit_lsn)


def test_a_range_in_mid_transaction_confirms_no_more_than_what_came_before_it(database):
    with prepare(database, "insert into item select generate_series(1, 100)") as connection:
        with reading(**_options(database, maxRowsPerTrigger=30)) as reader:
            found = list(ranges(reader, 100))[:3]
        for each in found:
            with reading(**_options(database)) as again:
                again.latestOffset(each.end, again.getDefaultReadLimit())
                assert log_of(again)._capture.report()
            assert confirmed_flush(connection) <= Lsn(each.changes()[-1]["position"][0])
        with reading(**_options(database)) as again:
            assert _ids(list(ranges(again, 10, found[-1].end))) == list(range(91, 101))


def test_a_busy_table_that_is_not_published_does_not_hold_back_the_slot(any_database):
    with prepare(any_database, "insert into item values (1)", "create table noise (v text)") as connection:
        with reading(**_options(any_database)) as reader:
            (found,) = ranges(reader, 1)
            for _ in range(3):
                connection.execute("insert into noise select md5(g::text) from generate_series(1, 20000) g")
                ((written,),) = connection.execute("select pg_current_wal_lsn()").fetchall()

                def has_moved(written: Lsn = written) -> bool:
                    assert reader.latestOffset(found.end, reader.getDefaultReadLimit()) == found.end
                    return confirmed_flush(connection) >= written

                eventually(has_moved)


def test_an_unconfirmed_range_holds_the_slot_however_busy_another_table_is(database):
    with prepare(database, "insert into item values (1)", "create table noise (v text)") as connection:
        with reading(**_options(database)) as reader:
            start = reader.initialOffset()
            found = next_range(reader, start)
            for _ in range(3):
                connection.execute("insert into noise select md5(g::text) from generate_series(1, 5000) g")
                log_of(reader).mark()
                assert reader.latestOffset(start, reader.getDefaultReadLimit()) == found.end
                assert log_of(reader)._capture.report()
            assert confirmed_flush(connection) <= Lsn(found.changes()[0]["position"][0])


@pytest.mark.parametrize("streaming", ["true", "false"])
def test_a_connection_cut_in_mid_transaction_loses_and_repeats_nothing(database, streaming):
    with prepare(database) as connection, Proxy(database) as proxy:
        connection.execute(f"alter database \"{connection.info.dbname}\" set logical_decoding_work_mem = '64kB'".encode())
        connection.execute("insert into item select g, repeat('x', 500) from generate_series(1, 5000) g")
        connection.execute("insert into item select g, repeat('x', 500) from generate_series(5001, 10000) g")
        with reading(**_options(proxy.url, maxBytesPerTrigger=64 * KIB, streaming=streaming)) as reader:
            found: list[Range] = []
            for number, each in enumerate(ranges(reader, 10000)):
                found.append(each)
                if number % 8 == 3:
                    proxy.cut()
    assert len(found) > 60
    assert _ids(found) == list(range(1, 10001))


def test_what_a_reconnected_stream_repeats_of_a_transaction_is_there_only_once(database, monkeypatch):
    monkeypatch.setattr(changes, "_IDLE_SECONDS", 0)
    with prepare(database) as connection, Proxy(database) as proxy:
        connection.execute("insert into item select g, repeat('x', 1000) from generate_series(1, 25000) g")
        with reading(**_options(proxy.url, maxBytesPerTrigger=64 * KIB * KIB, streaming="false")) as reader:
            start = reader.initialOffset()

            def has_a_part() -> bool:
                assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
                return reader._log is not None and reader._log.end.ordinal > 0

            eventually(has_a_part)
            proxy.cut()
            found = next_range(reader, start)
    assert _fast_ids(found) == list(range(1, 25001))


def test_a_slot_that_goes_away_is_the_error_of_the_next_call(database):
    with prepare(database, "insert into item values (1)") as connection, Proxy(database) as proxy:
        with reading(**_options(proxy.url)) as reader:
            (found,) = ranges(reader, 1)
            proxy.refuse = True
            proxy.cut()
            eventually(lambda: connection.execute("select active_pid from pg_replication_slots").fetchone() == (None,))
            connection.execute("select pg_drop_replication_slot('hw')")
            proxy.refuse = False
            with pytest.raises(SlotMissing, match="'hw' does not exist"):
                for _ in range(200):
                    reader.latestOffset(found.end, reader.getDefaultReadLimit())


def test_a_publication_that_goes_away_is_the_error_of_the_next_call(database):
    with prepare(database, "insert into item values (1)") as connection:
        with reading(**_options(database)) as reader:
            (found,) = ranges(reader, 1)
            connection.execute("drop publication pub")
            connection.execute("select pg_terminate_backend(active_pid, 5000) from pg_replication_slots")
            with pytest.raises(SourceError, match="publication 'pub' does not exist"):
                for _ in range(200):
                    reader.latestOffset(found.end, reader.getDefaultReadLimit())


def test_a_wait_for_a_logged_range_ends_with_the_error_of_the_stream(database):
    """Whatever is waited for, the capture thread may have died."""
    with prepare(database, "insert into item values (1)") as connection:
        with reading(**_options(database)) as reader:
            (found,) = ranges(reader, 1)
            assert reader._log is not None
            connection.execute("drop publication pub")
            connection.execute("select pg_terminate_backend(active_pid, 5000) from pg_replication_slots")
            with pytest.raises(SourceError, match="publication 'pub' does not exist"):
                reader.partitions(found.end, {**found.end, "lsn": str(reader._log.mark())})


def test_stopping_frees_the_slot_at_once(database):
    with prepare(database, "insert into item select g, repeat('x', 1000) from generate_series(1, 20000) g") as connection:
        for _ in range(3):
            reader = new_reader(**_options(database, maxBytesPerTrigger=64 * KIB))
            next_range(reader, reader.initialOffset())
            # The server is in the middle of sending, and blocked by a full socket.
            reader.stop()
            # It notices so at its next write.
            eventually(
                lambda: connection.execute("select active from pg_replication_slots").fetchone() == (False,), seconds=5
            )


def test_nothing_is_confirmed_by_stopping(database):
    with prepare(database, "insert into item values (1)") as connection:
        before = confirmed_flush(connection)
        reader = new_reader(**_options(database))
        found = next_range(reader, reader.initialOffset())
        reader.stop()
        assert before <= confirmed_flush(connection) <= Lsn(found.changes()[0]["position"][0])


def test_all_that_has_committed_is_delivered_by_available_now_and_nothing_is_awaited(database):
    with prepare(database, "insert into item values (1)", "insert into item values (2)") as connection:
        with reading(**_options(database, maxRowsPerTrigger=1)) as reader:
            reader.prepareForTriggerAvailableNow()
            found = list(ranges(reader, 2))
            connection.execute("insert into item values (3)")
            assert reader.latestOffset(found[-1].end, reader.getDefaultReadLimit()) == found[-1].end
        # Spark is told that there is no more, and ends: what it had committed is confirmed by then.
        assert confirmed_flush(connection) >= position(found[-1].end).commit_lsn
        with reading(**_options(database)) as reader:
            assert _ids(list(ranges(reader, 1, found[-1].end))) == [3]


def test_a_standby_that_commits_wait_for_holds_up_no_reader():
    with EmbeddedPostgres(postgres_settings(18)) as server, fresh_database(server.url) as database:
        with prepare(database, "insert into item values (1)") as connection:
            end = _logged(database)
            # What this connection commits waits for nobody.
            connection.execute("set synchronous_commit = local")
            connection.execute("alter system set synchronous_standby_names = 'nobody'")
            connection.execute("select pg_reload_conf()")
            eventually(lambda: connection.execute("show synchronous_standby_names").fetchone() == ("nobody",))
            with reading(**_options(database)) as reader:
                assert len(reader.partitions(reader.initialOffset(), end)) == 1
                reader.prepareForTriggerAvailableNow()
            connection.execute("alter system reset synchronous_standby_names")
            connection.execute("select pg_reload_conf()")


def test_the_content_of_a_range_is_logged_with_its_end(database):
    statements = ("begin", "insert into item select generate_series(1, 5)", "truncate item", "commit")
    with prepare(database, *statements) as connection:
        with reading(**_options(database)) as reader:
            (found,) = ranges(reader, 6)
        ((now,),) = connection.execute("select now()").fetchall()
    holds = found.end["holds"]
    assert (holds["changes"], holds["tables"]) == (6, {"public.item": 6})
    assert holds["committed_at"] < now.isoformat()
    assert json.loads(json.dumps(found.end)) == found.end


def test_the_settings_of_the_capture_are_those_of_the_options(database, tmp_path):
    options = _options(database, maxBytesPerTrigger=128 * KIB, streaming="false", spillDirectory=tmp_path)
    settings = new_reader(**options)._capture_settings()
    assert isinstance(settings, CaptureSettings)
    assert (settings.buffer_bytes, settings.streaming, settings.spill_directory) == (128 * KIB, False, tmp_path)
