"""Tables to take snapshots of while rows are written and deleted, and where the snapshot of each is."""

import random
from contextlib import closing
from threading import Event, Thread

import psycopg

from headwater.errors import HeadwaterError
from headwater.postgres.connect import Connection, connect_sync
from tests.support.stories.pipeline_process import execute, fetch
from tests.support.waiting import eventually

ADDED_ROWS = 3_000
# Pages that are mostly empty: several chunks, and so several batches, of a table that is quick to make and to compare.
_TABLE = "create table {} (id int primary key, version bigint not null, note text not null) with (fillfactor = 10)"
_FILL = "insert into {} select g, 0, repeat(md5(g::text), 4) from generate_series(1, {}) g"
_DELETE = "delete from {} where id = %(id)s"
_UPDATE = "update {} set version = %(version)s where id = %(id)s"
_INSERT = "insert into {} values (%(id)s, %(version)s, 'new') on conflict do nothing"
_SWEEP = "delete from {} where id % 40 = {}"
# Without a key, so that a row which is delivered twice is there twice.
_ENTRY = "create table entry (id bigint not null, amount numeric)"
# What a writer may be ahead of the target: more than it writes while a snapshot is taken on a quiet machine.
_MOST_AHEAD = 2_000
# Time itself is the subject: what is written has to be spread over the whole of a snapshot.
_PAUSE_SECONDS = 0.1


def create_tables(source: str, sizes: dict[str, int]) -> None:
    """Create tables of so many rows, and one of entries, which is empty."""
    execute(source, _ENTRY, "alter table entry replica identity full")
    for table, size in sizes.items():
        create_table(source, table, size)


def create_table(source: str, table: str, size: int) -> None:
    execute(source, _TABLE.format(table), _FILL.format(table, size))


def sweep(source: str, table: str, number: int) -> None:
    """Delete one row of forty: a dead attempt has loaded them, and the next one must not find them."""
    execute(source, _SWEEP.format(table, number % 40))


class SnapshotWriter:
    """Inserts, updates and deletes in all tables until told to stop; a transaction that was cut off is not tried again.

    Tables that are added to `sizes` meanwhile are written to as well.
    """

    def __init__(self, source: str, target: str, sizes: dict[str, int], choose: random.Random) -> None:
        self.deleted = self._entry = self._arrived = 0
        self._source, self._target, self._sizes, self._random = source, target, sizes, choose
        self._stop = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> "SnapshotWriter":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_entries(self, count: int) -> None:
        """Wait until so many more entries are written, or the target is so far behind that none are."""
        until = self._entry + count
        eventually(lambda: self._entry >= until or self._is_far_ahead, seconds=60)

    @property
    def _is_far_ahead(self) -> bool:
        return self._entry - self._arrived > _MOST_AHEAD

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_SECONDS):
            try:
                with closing(connect_sync(self._source)) as connection:
                    while not self._stop.wait(_PAUSE_SECONDS):
                        if self._is_far_ahead:
                            self._arrived = self._last_arrived()
                        else:
                            self._transaction(connection)
            except (psycopg.Error, HeadwaterError):
                continue

    def _last_arrived(self) -> int:
        try:
            ((found,),) = fetch(self._target, "select coalesce(max(id), 0) from entry")
        except (psycopg.Error, HeadwaterError):
            return self._arrived
        return int(str(found))

    def _transaction(self, connection: Connection) -> None:
        choose, deleted = self._random, 0
        with connection.transaction():
            for _ in range(choose.choice([1, 3, 20])):
                table, size = choose.choice(list(self._sizes.items()))
                self._entry += 1
                row = {"id": choose.randint(1, size), "version": self._entry}
                statement = choose.choice([_DELETE, _UPDATE, _INSERT])
                touched = connection.execute(statement.format(table).encode(), row).rowcount
                deleted += touched if statement == _DELETE else 0
                connection.execute("insert into entry values (%s, %s)", [self._entry, choose.random()])
            deleted += connection.execute("delete from entry where id = %s", [choose.randint(1, self._entry)]).rowcount
        self.deleted += deleted


def snapshot_state(source: str, table: str) -> tuple[object, object]:
    """Whether a table is wanted or streaming, and its last attempt; None for both while that cannot be known."""
    try:
        found = fetch(source, "select state, attempt from headwater.pipeline_table where table_name = %s", table)
    except (psycopg.Error, HeadwaterError):
        found = []
    return (found[0][0], found[0][1]) if found else (None, None)


def is_streaming(source: str, table: str) -> bool:
    """Whether the snapshot of a table is complete."""
    return snapshot_state(source, table)[0] == "streaming"


def wait_for_attempt(source: str, table: str, before: object) -> object:
    """Wait until another attempt at the snapshot of a table has begun, or it is complete; returns the attempt."""

    def found() -> object:
        state, attempt = snapshot_state(source, table)
        return attempt if attempt != before or (state == "streaming" and before is not None) else None

    return eventually(found, seconds=90)
