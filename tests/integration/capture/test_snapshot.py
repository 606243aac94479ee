"""What a snapshot tells besides its rows: up to where the WAL is in it for certain, and where it can be no more."""

from contextlib import closing
from threading import Event, Thread

import psycopg

from headwater.capture.snapshot import open_snapshot

WRITERS, SNAPSHOTS = 3, 15


def test_whoever_has_committed_before_its_beginning_is_in_a_snapshot_however_busy_the_server_is(database):
    """Clients that know a position alone leave out what lies before it: what is not in the rows must lie behind."""
    stopping, seen = Event(), list[tuple[int, int]]()

    def write() -> None:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("set synchronous_commit = off")
            while not stopping.is_set():
                (xid,) = connection.execute(
                    "insert into item default values returning pg_current_xact_id()::text::bigint"
                ).fetchall()[0]
                # Behind its commit, so that this one is further left.
                (lsn,) = connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchall()[0]
                seen.append((int(xid), int(lsn)))

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table item (id bigint generated always as identity primary key)")
    writers = [Thread(target=write) for _ in range(WRITERS)]
    for writer in writers:
        writer.start()
    taken = []
    for _ in range(SNAPSHOTS):
        with closing(open_snapshot(database, [("public", "item")], Event(), print)) as snapshot:
            taken.append((int(snapshot.since), snapshot.read))
    stopping.set()
    for writer in writers:
        writer.join()

    missed = [xid for since, read in taken for xid, lsn in seen if lsn <= since and not read.snapshot.sees(xid)]
    early = [xid for _, read in taken for xid, lsn in seen if lsn <= read.until and not read.snapshot.sees(xid)]
    assert missed == []
    # The bound of the exact join is too late for that, or the test would show nothing.
    assert early != []
