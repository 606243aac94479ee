"""Changes applied to a second server, against PostgreSQL's own `create subscription` between the same two servers.

Each turn writes the same changes, from a copy of the same slot, into a database made from the same template, and ends with
a comparison of source and target. Both arms are durable. The clock runs from the moment that the slot is read until it is
confirmed behind the last change. Ours run on one Spark session for all turns, after a first one that does not count.
"""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from threading import Event

from pyspark.sql import SparkSession

from benchmarks.comparison import ratio
from benchmarks.databases import DURABLE, make_accounts, url_of
from benchmarks.pipeline import statements
from benchmarks.report import Bar, Output
from benchmarks.slot_clock import SlotClock
from benchmarks.spark_session import spark_session
from benchmarks.statements import checkpoint, create_database, drop_database
from benchmarks.wal_bench import Bench, Load
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.pipeline import Pipeline
from headwater.spark.settings import ChangesSettings, LaneRule, PipelineSettings, PostgresSinkSettings
from headwater.spark.sinks.build import build_sink

PUBLICATION = "bench"
TABLE = "public.account"
TEMPLATE = "filled"
KEY_LANES = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int = 1_000_000
    changes: int = 1_000_000
    rounds: int = 3


QUICK = Sizes(rows=100_000, changes=100_000, rounds=1)


@dataclass(frozen=True, slots=True)
class Testbed:
    """The source with its changes, and the server to apply them to."""

    source: Bench
    target: EmbeddedPostgres
    load: Load

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """The URL of a target database as it was before the changes."""
        with connect_sync(self.target.url) as connection:
            execute_sync(connection, create_database(name, TEMPLATE))
            execute_sync(connection, checkpoint())
            execute_sync(self.source.connection, checkpoint())
            yield url_of(self.target, name)
            execute_sync(connection, drop_database(name))

    def verify(self, url: str) -> None:
        with connect_sync(url) as connection:
            found = fetch_sync(connection, statements.content())
        wanted = fetch_sync(self.source.connection, statements.content())
        assert found == wanted, f"the target holds {found}, the source {wanted}"


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    settings = PostgresSettings(config=DURABLE)
    with (
        EmbeddedPostgres(settings) as source,
        EmbeddedPostgres(settings) as target,
        connect_sync(source.url) as connection,
        output.console.status("starting Spark") as status,
        spark_session() as spark,
    ):
        status.stop()
        bench = Bench(source, connection, output.console, output.figures)
        with output.console.status(f"filling two tables of {sizes.rows:,} rows"):
            make_accounts(source.url, sizes.rows)
            make_template(target, sizes.rows)
            execute_sync(connection, statements.create_writer(PUBLICATION))

        def write(bench: Bench, changes: int) -> None:
            execute_sync(bench.connection, statements.write_changes(changes, sizes.rows))

        with bench.loaded("apply", sizes.changes, write) as load:
            return compare(Testbed(bench, target, load), spark, sizes.rounds)


def compare(testbed: Testbed, spark: SparkSession, rounds: int) -> list[Bar]:
    arms: dict[str, Callable[[str, str], float]] = {
        "native": lambda slot, url: seconds_of_native(testbed, slot, url),
        "lane_by_table": lambda slot, url: seconds_of_ours(testbed, spark, slot, url, LaneRule.TABLE),
        "lane_by_key": lambda slot, url: seconds_of_ours(testbed, spark, slot, url, LaneRule.KEY),
    }
    with testbed.source.console.status("warming up"):
        turn_of(testbed, "warm_up", arms["lane_by_key"])
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds):
        for name, arm in arms.items():
            with testbed.source.console.status(
                f"applying {testbed.load.rows:,} changes, {name}, turn {turn + 1} of {rounds}"
            ):
                seconds[name].append(turn_of(testbed, name, arm))
    for name, found in seconds.items():
        testbed.source.figures[f"apply_changes_per_s_{name}"] = round(testbed.load.rows / statistics.median(found))
    testbed.source.figures["apply_over_native_lane_by_key"] = ratio(seconds["native"], seconds["lane_by_key"])
    return [Bar("apply_over_native", ratio(seconds["native"], seconds["lane_by_table"]), at_least=0.8)]


def turn_of(testbed: Testbed, database: str, arm: Callable[[str, str], float]) -> float:
    """All changes, once, to a database of this name; both sides are equal afterwards."""
    with testbed.source.copied(testbed.load) as slot, testbed.database(database) as url:
        seconds = arm(slot, url)
        testbed.verify(url)
    return seconds


def make_template(target: EmbeddedPostgres, rows: int) -> None:
    with connect_sync(target.url) as connection:
        execute_sync(connection, create_database(TEMPLATE))
    make_accounts(url_of(target, TEMPLATE), rows)


def seconds_of_native(testbed: Testbed, slot: str, url: str) -> float:
    source = testbed.source.server.url
    with connect_sync(url) as connection, SlotClock(source, slot, testbed.load.end) as clock:
        execute_sync(connection, statements.subscribe(source, PUBLICATION, slot))
        seconds = clock.wait_until_confirmed() - clock.started
        for statement in statements.unsubscribe():
            execute_sync(connection, statement)
    return seconds


def seconds_of_ours(testbed: Testbed, spark: SparkSession, slot: str, url: str, rule: LaneRule) -> float:
    source = testbed.source.server.url
    with TemporaryDirectory() as checkpoint, SlotClock(source, slot, testbed.load.end) as clock:
        settings = pipeline(source, slot, url, checkpoint, rule)
        sink = build_sink(settings.sinks[0], pipeline=slot, source_url=source, state_url=source, tables=[TABLE])
        run = Pipeline(spark, settings, [sink], Event())
        run.run(once=True)
        seconds = clock.wait_until_confirmed() - clock.started
    assert run.report.rows == testbed.load.rows, f"{run.report.rows} of {testbed.load.rows} changes were delivered"
    return seconds


def pipeline(source: str, slot: str, target: str, checkpoint: str, rule: LaneRule) -> PipelineSettings:
    """As a pipeline file gives it, with no more said than whence, where to, and by which lanes."""
    changes = ChangesSettings(url=source, tables=(TABLE,), slot=slot, publication=PUBLICATION)
    if rule is LaneRule.KEY:
        changes = replace(changes, lane_by=rule, lanes=KEY_LANES)
    sinks = (PostgresSinkSettings(name="postgres", url=target),)
    return PipelineSettings(name=slot, source=changes, sinks=sinks, checkpoint=f"{checkpoint}/checkpoint", state_url=source)
