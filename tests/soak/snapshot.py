"""Snapshots under writers while parts are killed, at failpoints and at random; in some rounds, their join with the stream.

The initial snapshot of all tables comes first, then tables are added, or their snapshots are taken again.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from headwater.embedded import EmbeddedPostgres
from tests.soak.story import Counts, Round
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import fresh_database, postgres_settings
from tests.support.stories.pipeline_process import execute, kill, running, settle, write_file
from tests.support.stories.snapshot_join import TABLES, Join, create_join_tables, keyed_rows, play, small_chunks
from tests.support.stories.snapshot_writer import (
    ADDED_ROWS,
    SnapshotWriter,
    create_table,
    create_tables,
    is_streaming,
    snapshot_state,
    sweep,
    wait_for_attempt,
)
from tests.support.waiting import eventually

# With the largest hit to draw: small tables share a snapshot, and the large one has its own.
POINTS = {"snapshot.opened": 2, "snapshot.loaded": 1, "snapshot.swap": 2}
OF_DRIVER = "snapshot.swap"
VICTIMS = ("driver", "worker", "planner", "source", "target")
LARGE_ROWS = 50_000
JOINS = 3


@dataclass(frozen=True)
class Request:
    """A snapshot that is asked for, and what is killed meanwhile, after how many more entries."""

    table: str
    is_new: bool
    kills: tuple[tuple[str, int], ...]

    def begin(self, source: str) -> None:
        if self.is_new:
            create_table(source, self.table, ADDED_ROWS)
        function = "add_table" if self.is_new else "snapshot_table"
        execute(source, f"select headwater.{function}('crash', 'public.{self.table}')")


def run(round: Round) -> Counts:
    return _join(round) if round.random.random() < 0.25 else _kill_parts(round)


def _draw_requests(choose: random.Random) -> Sequence[Request]:
    found = []
    for number in range(2):
        is_new = choose.random() < 0.4
        table = f"added_{number}" if is_new else choose.choice(["small", "large"])
        kills = tuple((choose.choice(VICTIMS), choose.randint(1, 200)) for _ in range(choose.randint(1, 2)))
        found.append(Request(table, is_new, kills))
    return found


def _kill_parts(round: Round) -> Counts:
    choose, sizes = round.random, {"small": 300, "large": LARGE_ROWS}
    point = choose.choice(list(POINTS))
    term, seed, requests = (
        f"{point}=kill@{choose.randint(1, POINTS[point])}",
        choose.randrange(2**31),
        _draw_requests(choose),
    )
    points, faults = Failpoints(round.directory, term), [term]
    with EmbeddedPostgres(postgres_settings(18)) as source, EmbeddedPostgres(postgres_settings(18)) as target:
        create_tables(source.url, sizes)
        urls, tables = {"source": source.url, "target": target.url}, [f"public.{name}" for name in ("entry", *sizes)]
        write_file(round.directory, "crash", **urls, tables=tables, lanes=1, max_bytes="1MiB")
        with running(round.directory, points.environment) as runner:
            with SnapshotWriter(source.url, target.url, sizes, random.Random(seed)) as writer:
                points.wait_for(point)
                if point == OF_DRIVER:
                    runner.wait_for_kill()
                    runner.start()
                for table in ("small", "large"):
                    sweep(source.url, table, 0)
                for each in requests:
                    for table in ("small", "large"):
                        eventually(partial(is_streaming, source.url, table), seconds=180)
                    _, attempt = snapshot_state(source.url, each.table)
                    each.begin(source.url)
                    sizes.setdefault(each.table, ADDED_ROWS)
                    for victim, entries in each.kills:
                        attempt = wait_for_attempt(source.url, each.table, attempt)
                        writer.wait_for_entries(entries)
                        kill(victim, runner, source, target)
                        faults.append(f"{victim}+{entries}({each.table})")
                        sweep(source.url, each.table, len(faults))
                    eventually(partial(is_streaming, source.url, each.table), seconds=180)
            found = settle(runner, source.url, target.url, ["entry", *sizes])
            assert runner.stop() == 0
    return Counts(found.rows, found.lost + found.ghosts, found.twice, faults=tuple(faults))


def _join(round: Round) -> Counts:
    """Follow snapshots and stream into a replica in memory, time and again."""
    committed = lost = repeated = 0
    faults, variant = [], []
    with EmbeddedPostgres(postgres_settings(18, synchronous_standby_names="")) as server, small_chunks():
        for _ in range(JOINS):
            hanging, join = round.random.random() < 0.5, Join.draw(round.random)
            with fresh_database(server.url) as url:
                create_join_tables(url)
                transactions, replica = play(url, join, hanging=hanging)
                committed += transactions
                lost += len(replica.missed)
                lost += sum(replica.tables[("public", table)] != keyed_rows(url, table) for table in TABLES)
                repeated += len(replica.repeated)
            faults.append("join:reader-restarted,hanging-commits" if hanging else "join:reader-restarted")
            variant.append(str(join))
    return Counts(committed, lost, repeated, faults=tuple(faults), variant=tuple(variant))
