"""A hundred logged ranges of a mixed load, read again in another process, give the same rows in the same lanes."""

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from threading import Condition, Event, Thread

import psycopg
import pytest

from headwater.model import Lsn
from headwater.postgres.connect import Connection, connect_sync
from headwater.spark.settings import LaneRule
from tests.support.capture.change_streams import Range, digest, next_range, position, reading
from tests.support.waiting import eventually

RANGES = 100
SEED = 5
# Some twenty ranges.
MOST_AHEAD_BYTES = 1 << 20
SCHEMA = """
create table event (id bigserial primary key, v text);
create table account (id int primary key, balance int, v text);
create table pair (a int, b text, v int, primary key (a, b));
create table doc (id int primary key, v int, big text);
create table whole (id int, v int);
create table note (v text);
create table scratch (id int);
create table scratch_too (id int);
alter table doc alter big set storage external;
alter table whole replica identity full;
alter table scratch replica identity full;
alter table scratch_too replica identity full;
insert into account select g, 0, 'v' from generate_series(1, 300) g;
insert into doc select g, 0, repeat(md5(g::text), 100) from generate_series(1, 50) g;
create publication pub for table event, account, pair, doc, whole, note, scratch, scratch_too;
"""
REPLAY = """
import json, sys
from tests.support.capture.change_streams import replay
print(json.dumps(replay(*json.load(sys.stdin))))
"""
ACTIONS = {
    "insert into event (v) select md5(g::text) from generate_series(1, %(few)s) g": 30,
    "insert into event (v) select repeat(md5(g::text), 3) from generate_series(1, 700) g": 2,
    "update account set balance = balance + 1 where id = %(key)s": 25,
    "delete from account where id = %(key)s": 8,
    "insert into account values (%(key)s, 1, 'again') on conflict (id) do update set v = excluded.v": 15,
    "insert into pair values (%(few)s, md5(%(key)s::text), 1) on conflict (a, b) do update set v = pair.v + 1": 12,
    "delete from pair where a = %(few)s": 3,
    "update doc set v = v + 1 where id = %(few)s": 8,
    "insert into whole values (%(key)s, 1)": 6,
    "update whole set v = v + 1 where id = %(key)s": 4,
    "insert into note values (%(key)s)": 4,
    "insert into scratch select g from generate_series(1, 5) g": 3,
    # In key lanes each of these makes a range one lane, so they are rare.
    "update account set id = id + 1000000 where id = %(key)s": 1,
    "truncate scratch, scratch_too": 1,
}
ONE_OF_EACH_RARE_KIND = """
begin;
insert into account values (2000000, 0, 'moves');
update account set id = 2000001 where id = 2000000;
truncate scratch, scratch_too;
commit;
"""


class MixedLoad:
    """Writers beside each other, with transactions of one to many changes, some of them rolled back in part or whole.

    They stay a bounded amount of WAL ahead of what was `reached`.
    """

    def __init__(self, url: str, seed: int, writers: int) -> None:
        self._url, self._stop, self._reached, self._change = url, Event(), Lsn(0), Condition()
        self._threads = [Thread(target=self._run, args=(random.Random(seed + number),)) for number in range(writers)]

    def __enter__(self) -> "MixedLoad":
        for thread in self._threads:
            thread.start()
        return self

    def reached(self, lsn: Lsn) -> None:
        """Tell the writers how far a reader is."""
        with self._change:
            self._reached = lsn
            self._change.notify_all()

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        with self._change:
            self._change.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self, chance: random.Random) -> None:
        with connect_sync(self._url) as connection:
            while self._keep_pace(connection):
                try:
                    self._transaction(connection, chance)
                except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
                    connection.execute("rollback")

    def _keep_pace(self, connection: Connection) -> bool:
        """Wait until the reader is close enough; False if told to stop."""
        ((written,),) = connection.execute("select pg_current_wal_lsn()::text").fetchall()
        with self._change:
            self._change.wait_for(lambda: self._stop.is_set() or Lsn.parse(written) - self._reached < MOST_AHEAD_BYTES)
        return not self._stop.is_set()

    def _transaction(self, connection: Connection, chance: random.Random) -> None:
        connection.execute("begin")
        for action in chance.choices(list(ACTIONS), list(ACTIONS.values()), k=chance.choice([1, 1, 2, 8])):
            values = {"few": chance.randint(1, 30), "key": chance.randint(1, 300)}
            connection.execute("savepoint s")
            connection.execute(action.encode(), values)
            if chance.random() < 0.1:
                connection.execute("rollback to s")
        connection.execute("rollback" if chance.random() < 0.1 else "commit")


def _options(url: str, slot: str, **more: object) -> dict[str, object]:
    return {"url": url, "slot": slot, "publication": "pub", **more}


def _record(url: str, slot: str, rule: LaneRule, load: MixedLoad) -> list[tuple[Range, dict[str, tuple[int, str]]]]:
    """Ranges as Spark would log them, each with what its lanes gave."""
    with reading(
        **_options(url, slot, lanes=5, laneBy=rule.value, maxRowsPerTrigger=150, maxBytesPerTrigger=65536)
    ) as reader:
        start = reader.initialOffset()
        load.reached(position(start).commit_lsn)
        found: list[tuple[Range, dict[str, tuple[int, str]]]] = []
        while len(found) < RANGES:
            each = next_range(reader, start)
            found.append((each, digest(reader, each)))
            start = each.end
            load.reached(position(each.end).commit_lsn)
    return found


@pytest.mark.timeout(300)
def test_a_hundred_ranges_of_a_mixed_load_read_again_by_another_process_are_identical(
    database: str, record_property: Callable[[str, object], None]
) -> None:
    recorded = {}
    with connect_sync(database) as connection:
        connection.execute(f"alter database \"{connection.info.dbname}\" set logical_decoding_work_mem = '64kB'".encode())
        connection.execute(SCHEMA.encode())
        connection.execute("select pg_create_logical_replication_slot('kept', 'pgoutput')")
        for rule in LaneRule:
            connection.execute("select pg_copy_logical_replication_slot('kept', %s)", [f"by_{rule}"])
        with MixedLoad(database, SEED, writers=3) as load:
            # Rare actions may not come up by chance; each kind of change is in every slot's stream for certain.
            connection.execute(ONE_OF_EACH_RARE_KIND.encode())
            for rule in LaneRule:
                recorded[rule] = _record(database, f"by_{rule}", rule, load)
        for rule in LaneRule:
            # The slot of a position is part of it, so the one that was read is put back to where it began.
            is_active = "select active from pg_replication_slots where slot_name = %s"
            eventually(lambda: connection.execute(is_active, [f"by_{rule}"]).fetchone() == (False,))  # noqa: B023 - at once
            connection.execute("select pg_drop_replication_slot(%s)", [f"by_{rule}"])
            connection.execute("select pg_copy_logical_replication_slot('kept', %s)", [f"by_{rule}"])

    counts = []
    for rule, ranges in recorded.items():
        logged = [(each.start, each.end) for each, _ in ranges]
        options = _options(database, f"by_{rule}", lanes=2, laneBy="table", maxBytesPerTrigger=1 << 20, streaming="false")
        again = _replayed_elsewhere(options, logged)
        different = [
            number for number, ((_, before), after) in enumerate(zip(ranges, again, strict=True)) if before != after
        ]
        rows = sum(size for _, lanes in ranges for size, _ in lanes.values())
        inside = sum(position(end).ordinal > 0 for _, end in logged)
        used = Counter(len(lanes) for _, lanes in ranges)
        counts.append(f"by {rule}: {rows} rows, {inside} ends inside of transactions, different {len(different)}")
        assert not different, f"ranges {different} by {rule} are not what they were"
        # It was a test of something: large transactions were cut, and ranges were split.
        assert inside
        assert max(used) >= 4
    _assert_mixed([each for each, _ in recorded[LaneRule.TABLE]])
    record_property("counts", f"{RANGES} ranges read again; {'; '.join(counts)}")


def _replayed_elsewhere(options: dict[str, object], logged: Sequence[object]) -> list[dict[str, tuple[int, str]]]:
    """What the lanes of logged ranges give in another process."""
    done = subprocess.run(
        [sys.executable, "-c", REPLAY], input=json.dumps([options, logged, 10]), capture_output=True, text=True, check=True
    )
    return [{lane: (size, found) for lane, (size, found) in lanes.items()} for lanes in json.loads(done.stdout)]


def _assert_mixed(ranges: list[Range]) -> None:
    changes = [change for each in ranges for change in each.changes()]
    assert {change["op"] for change in changes} == {"c", "u", "d", "t", "u_pk"}
    assert any(change["unchanged"] for change in changes)
    assert len({change["table"] for change in changes}) >= 7
