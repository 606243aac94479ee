"""Snapshot and stream joined under load: what a replica has at the end is what the source has, and no change came twice.

The randomized checker writes in all the ways that make the join hard. The tests after it take one step of the procedure away
and show what is lost then; with all of them, nothing is.
"""

import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any

import psycopg
import pytest

from headwater.capture import snapshot
from headwater.embedded import EmbeddedPostgres
from tests.support.capture.change_streams import reading
from tests.support.capture.memory_replica import Replica, follow
from tests.support.servers.embedded import postgres_settings
from tests.support.stories.snapshot_join import (
    TABLES,
    create_join_tables,
    is_loaded,
    join_options,
    keyed_rows,
    play_join,
    set_standby,
    small_chunks,
)

pytestmark = pytest.mark.timeout(240)


@contextmanager
def _server(**config: str) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(postgres_settings(18, **config)) as server:
        yield server


@pytest.fixture(autouse=True)
def small_pieces() -> Iterator[None]:
    with small_chunks():
        yield


@pytest.mark.parametrize(("hanging", "seed"), [(False, 1), (True, 2)], ids=["plain", "hanging commits"])
def test_a_snapshot_and_the_stream_join_without_a_row_missed_or_twice(
    hanging: bool, seed: int, record_property: Callable[[str, object], None]
) -> None:
    with _server(synchronous_standby_names="") as server:
        create_join_tables(server.url)
        transactions, replica = play_join(server.url, random.Random(seed), hanging=hanging)
        assert (replica.repeated, replica.missed) == ([], [])
        for table in TABLES:
            assert replica.tables[("public", table)] == keyed_rows(server.url, table)
    kind = "hanging commits" if hanging else "plain commits"
    record_property("counts", f"join, {kind}: {transactions} transactions, missed 0, twice 0")


@pytest.mark.parametrize("has_fence", [True, False])
def test_without_the_fence_a_commit_that_hangs_is_lost(has_fence: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is streamed, and delivered, and then a snapshot that does not see it takes the table's place."""
    if not has_fence:
        monkeypatch.setattr(snapshot, "_pass_fence", lambda *_: None)
    replica = Replica()
    with _server() as server, psycopg.connect(server.url, autocommit=True) as connection:
        create_join_tables(server.url)
        connection.execute("set synchronous_commit = local")
        with reading(**join_options(server.url)) as reader:
            at = follow(reader, replica, reader.initialOffset(), is_loaded)
            set_standby(connection, "nobody")
            hangs = Thread(target=_insert, args=(server.url,))
            hangs.start()
            at = follow(reader, replica, at, lambda _: "777777" in replica.tables[("public", "item")])
            connection.execute("select headwater.snapshot_table('hw', 'public.item')")
            at = follow(reader, replica, at, lambda at: at["load"] is not None)
            if has_fence:
                for _ in range(20):
                    at = follow(reader, replica, at, lambda _: True)
                assert at["load"]["snapshot"] is None, "the snapshot waits for the commit that hangs"
            else:
                at = follow(reader, replica, at, is_loaded)
            set_standby(connection, "")
            hangs.join()
            follow(reader, replica, at, is_loaded)
            assert "777777" in keyed_rows(server.url, "item")
            assert ("777777" in replica.tables[("public", "item")]) is has_fence


def _insert(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("insert into item values (777777, 'hangs')")


@pytest.mark.parametrize("has_lock", [True, False])
def test_without_the_lock_a_table_that_is_rewritten_is_read_as_empty(
    has_lock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_lock:
        monkeypatch.setattr(snapshot, "_lock", _begin_alone)
    replica = Replica()
    with _server() as server, psycopg.connect(server.url, autocommit=True) as connection:
        create_join_tables(server.url)
        with reading(**join_options(server.url, lanes=1)) as reader:
            at = follow(reader, replica, reader.initialOffset(), lambda at: at["load"] and at["load"]["snapshot"])
            connection.execute("set lock_timeout = '300ms'")
            with suppress(psycopg.errors.LockNotAvailable):
                connection.execute("alter table item alter column v type text using v || '!'")
            follow(reader, replica, at, is_loaded)
        assert (set(replica.tables[("public", "item")]) == set(keyed_rows(server.url, "item"))) is has_lock


def _begin_alone(connection: Any, _tables: Any) -> dict[Any, str]:
    connection.execute("begin transaction isolation level repeatable read, read only")
    return {}


@pytest.mark.parametrize("has_flush", [True, False])
def test_without_the_flush_a_crash_of_the_server_makes_later_transactions_pass_for_seen(
    has_flush: bool, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State is kept elsewhere here: on the same server, writing it flushes too."""
    if not has_flush:
        monkeypatch.setattr(snapshot, "emit_mark", lambda _connection: None)
    replica = Replica()
    with _server(wal_writer_delay="10s", synchronous_commit="off", full_page_writes="on") as server:
        create_join_tables(server.url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("checkpoint")
        options = join_options(server.url, stateUrl=database)
        with reading(**options) as reader, psycopg.connect(server.url, autocommit=True) as connection:
            at = reader.initialOffset()
            for number in range(50):
                connection.execute("insert into item values (%s, 'never flushed')", [500_000 + number])
            at = follow(reader, replica, at, lambda at: at["load"] and at["load"]["complete"])
        server.kill()
        server.start()
        with psycopg.connect(server.url, autocommit=True) as connection:
            # What is not flushed is not streamed.
            connection.execute("set synchronous_commit = on")
            for number in range(50):
                connection.execute("insert into item values (%s, 'after the crash')", [600_000 + number])
            # More than there were before the crash, so that the last change passes for seen in neither case.
            for _ in range(200):
                connection.execute("select pg_current_xact_id()")
            connection.execute("update note set v = 'last' where id = 1")
        with reading(**options) as reader:
            follow(reader, replica, at, lambda _: replica.tables[("public", "note")]["1"]["v"] == "last")
        assert (replica.tables[("public", "item")] == keyed_rows(server.url, "item")) is has_flush


def test_transaction_ids_that_come_round_are_not_mixed_up() -> None:
    """The 32 bits of a streamed id overflow between the snapshot and what follows it."""
    with EmbeddedPostgres(postgres_settings(15)) as server:
        create_join_tables(server.url)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("vacuum freeze")
        _set_next_xid(server, 2**32 - 400)
        replica = Replica()
        with reading(**join_options(server.url)) as reader, psycopg.connect(server.url, autocommit=True) as connection:
            at = reader.initialOffset()
            number = 0
            while not is_loaded(at) or number < 800:
                number += 1
                connection.execute("insert into item values (%s, 'new')", [10_000 + number])
                connection.execute("update note set v = %s where id = %s", [f"{number}", number % 3000 + 1])
                if number == 300:
                    connection.execute("select headwater.snapshot_table('hw', 'public.item')")
                end = reader.latestOffset(at, reader.getDefaultReadLimit())
                if end != at:
                    replica.deliver(reader, at, end)
                    at = end
            ((last,),) = connection.execute("select pg_current_xact_id()::text::bigint")
            assert last > 2**32
            follow(
                reader,
                replica,
                at,
                lambda _: all(replica.tables[("public", t)] == keyed_rows(server.url, t) for t in TABLES),
            )
        assert (replica.repeated, replica.missed) == ([], [])


def _set_next_xid(server: EmbeddedPostgres, xid: int) -> None:
    """As a server has it that has seen many transactions."""
    data = server.directory / "data"
    owner = data.stat()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("checkpoint")
    server.kill()
    (data / "postmaster.pid").unlink(missing_ok=True)
    # Were the oldest one further back, the server itself would take rows for gone that a snapshot still sees.
    ids = ["--epoch=1", f"--next-transaction-id={xid}", f"--oldest-transaction-id={xid - 1000}"]
    command = [str(server.bin_directory / "pg_resetwal"), "--force", *ids, str(data)]
    user, group = (owner.st_uid, owner.st_gid) if os.geteuid() == 0 else (None, None)
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", user=user, group=group)
    assert done.returncode == 0, done.stderr
    segment = data / "pg_xact" / f"{xid // (32 * 32768):04X}"
    if not segment.exists():
        segment.write_bytes(bytes(256 * 1024))
        os.chown(segment, owner.st_uid, owner.st_gid)
    server.start()
