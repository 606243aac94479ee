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
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from benchmarks.capture import Bench, Load
from benchmarks.pipelines import statements
from benchmarks.pipelines.output import Output
from benchmarks.pipelines.session import spark_session
from benchmarks.pipelines.slot_clock import SlotClock
from benchmarks.report import Bar
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.pipeline import Pipeline
from headwater.spark.settings import ChangesSettings, LaneRule, PipelineSettings, PostgresSinkSettings
from headwater.spark.sinks.build import build_sink

# Durable, and without checkpoints or vacuums that would fall into one arm and not the other.
SERVER = {
    "fsync": "on",
    "synchronous_commit": "on",
    "max_wal_size": "32GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "512MB",
    "autovacuum": "off",
}
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
class Stage:
    """The source with its changes, and the server to apply them to."""

    source: Bench
    target: EmbeddedPostgres
    load: Load

    @contextmanager
    def database(self, name: str) -> Iterator[str]:
        """The URL of a target database as it was before the changes."""
        with connect_sync(self.target.url) as connection:
            execute_sync(connection, statements.create_database(name, TEMPLATE))
            execute_sync(connection, statements.checkpoint())
            execute_sync(self.source.connection, statements.checkpoint())
            yield url_of(self.target, name)
            execute_sync(connection, statements.drop_database(name))

    def verify(self, url: str) -> None:
        with connect_sync(url) as connection:
            found = fetch_sync(connection, statements.content())
        wanted = fetch_sync(self.source.connection, statements.content())
        assert found == wanted, f"the target holds {found}, the source {wanted}"


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    settings = PostgresSettings(config=SERVER)
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
            fill(source.url, sizes.rows)
            make_template(target, sizes.rows)
            execute_sync(connection, statements.create_writer(PUBLICATION))

        def write(bench: Bench, changes: int) -> None:
            execute_sync(bench.connection, statements.write_changes(changes, sizes.rows))

        with bench.loaded("apply", sizes.changes, write) as load:
            return compare(Stage(bench, target, load), spark, sizes.rounds)


def compare(stage: Stage, spark: SparkSession, rounds: int) -> list[Bar]:
    arms: dict[str, Callable[[str, str], float]] = {
        "native": lambda slot, url: seconds_of_native(stage, slot, url),
        "lane_by_table": lambda slot, url: seconds_of_ours(stage, spark, slot, url, LaneRule.TABLE),
        "lane_by_key": lambda slot, url: seconds_of_ours(stage, spark, slot, url, LaneRule.KEY),
    }
    with stage.source.console.status("warming up"):
        turn_of(stage, "warm_up", arms["lane_by_key"])
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds):
        for name, arm in arms.items():
            with stage.source.console.status(f"applying {stage.load.rows:,} changes, {name}, turn {turn + 1} of {rounds}"):
                seconds[name].append(turn_of(stage, name, arm))
    for name, found in seconds.items():
        stage.source.figures[f"apply_changes_per_s_{name}"] = round(stage.load.rows / statistics.median(found))
    stage.source.figures["apply_over_native_lane_by_key"] = ratio(seconds["native"], seconds["lane_by_key"])
    return [Bar("apply_over_native", ratio(seconds["native"], seconds["lane_by_table"]), at_least=0.8)]


def turn_of(stage: Stage, database: str, arm: Callable[[str, str], float]) -> float:
    """All changes, once, to a database of this name; both sides are equal afterwards."""
    with stage.source.copied(stage.load) as slot, stage.database(database) as url:
        seconds = arm(slot, url)
        stage.verify(url)
    return seconds


def ratio(theirs: list[float], ours: list[float]) -> float:
    return round(statistics.median(their / our for their, our in zip(theirs, ours, strict=True)), 3)


def fill(url: str, rows: int) -> None:
    with connect_sync(url) as connection:
        execute_sync(connection, statements.create_accounts())
        execute_sync(connection, statements.fill_accounts(rows))
        execute_sync(connection, statements.vacuum_accounts())


def make_template(target: EmbeddedPostgres, rows: int) -> None:
    with connect_sync(target.url) as connection:
        execute_sync(connection, statements.create_database(TEMPLATE))
    fill(url_of(target, TEMPLATE), rows)


def url_of(server: EmbeddedPostgres, database: str) -> str:
    return urlsplit(server.url)._replace(path=f"/{database}").geturl()


def seconds_of_native(stage: Stage, slot: str, url: str) -> float:
    source = stage.source.server.url
    with connect_sync(url) as connection, SlotClock(source, slot, stage.load.end) as clock:
        execute_sync(connection, statements.subscribe(source, PUBLICATION, slot))
        seconds = clock.wait_until_confirmed() - clock.started
        for statement in statements.unsubscribe():
            execute_sync(connection, statement)
    return seconds


def seconds_of_ours(stage: Stage, spark: SparkSession, slot: str, url: str, rule: LaneRule) -> float:
    source = stage.source.server.url
    with TemporaryDirectory() as checkpoint, SlotClock(source, slot, stage.load.end) as clock:
        settings = pipeline(source, slot, url, checkpoint, rule)
        sink = build_sink(settings.sinks[0], pipeline=slot, source_url=source, state_url=source, tables=[TABLE])
        run = Pipeline(spark, settings, [sink], Event())
        run.run(once=True)
        seconds = clock.wait_until_confirmed() - clock.started
    assert run.report.rows == stage.load.rows, f"{run.report.rows} of {stage.load.rows} changes were delivered"
    return seconds


def pipeline(source: str, slot: str, target: str, checkpoint: str, rule: LaneRule) -> PipelineSettings:
    """As a pipeline file gives it, with no more said than whence, where to, and by which lanes."""
    changes = ChangesSettings(url=source, tables=(TABLE,), slot=slot, publication=PUBLICATION)
    if rule is LaneRule.KEY:
        changes = replace(changes, lane_by=rule, lanes=KEY_LANES)
    sinks = (PostgresSinkSettings(name="postgres", url=target),)
    return PipelineSettings(name=slot, source=changes, sinks=sinks, checkpoint=f"{checkpoint}/checkpoint", state_url=source)
