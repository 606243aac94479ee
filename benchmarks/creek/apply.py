"""A stream of mixed changes applied to a PostgreSQL, as `headwater creek apply serve --once` does it.

Each turn begins with a database that is as the source was before the changes, and ends with a comparison of source and
target, row by row. The target is durable. The clock runs from the moment that the stream is first read until all of it is
applied; what it takes with its start is among the figures. One Spark session for all turns; a first turn does not count.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Event

from pyspark.sql import SparkSession

from benchmarks.creek import statements
from benchmarks.creek.stream_clock import StreamClock
from benchmarks.creek.testbed import DATABASE, TABLE, Testbed, Turn, fill_stream, rate_of, start_testbed
from benchmarks.databases import DURABLE, url_of
from benchmarks.report import Bar, Output
from benchmarks.spark_session import spark_session
from benchmarks.statements import checkpoint, create_database, drop_database
from benchmarks.wal_bench import Bench
from headwater.cli.verify.run import verify_sink
from headwater.creek.consumer.mapping import TableMapping
from headwater.creek.consumer.statements import add_table
from headwater.creek.names import Kind, Names
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import execute_sync
from headwater.spark.creek_apply.counts import Counts
from headwater.spark.creek_apply.serve import Consumer
from headwater.spark.creek_apply.settings import ApplySettings
from headwater.spark.creek_apply.sink import prepare_target
from headwater.spark.settings import ChangesSettings, PipelineSettings, PostgresSinkSettings

AIM = 40_000
TEMPLATE = "filled"
_MAPPING = TableMapping.parse(f"{DATABASE}.{TABLE}:{TABLE}")


@dataclass(frozen=True, slots=True)
class Sizes:
    rows: int = 300_000
    changes: int = 300_000
    rounds: int = 3


QUICK = Sizes(rows=60_000, changes=60_000, rounds=2)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes, settings = QUICK if quick else Sizes(), PostgresSettings(config=DURABLE)
    with (
        start_testbed(output, DURABLE) as testbed,
        EmbeddedPostgres(settings) as target,
        output.console.status("starting Spark") as status,
        spark_session() as spark,
    ):
        status.stop()
        with output.console.status(f"filling two tables of {sizes.rows:,} rows"):
            execute_sync(testbed.bench.connection, statements.fill_orders(sizes.rows))
            make_template(target, sizes.rows)

        def write(bench: Bench, changes: int) -> None:
            execute_sync(bench.connection, statements.write_changes(changes, sizes.rows))

        with testbed.bench.loaded("apply", sizes.changes, write) as load:
            names = fill_stream(testbed, load)
        turns = []
        for turn in range(1 + sizes.rounds):
            what = "warming up" if turn == 0 else f"applying {sizes.changes:,} changes, turn {turn} of {sizes.rounds}"
            with output.console.status(what), database(target, f"turn_{turn}") as url:
                turns.append(turn_of(spark, testbed, url, names, sizes.changes))
                verify(testbed.bench.server.url, url)
    output.figures["apply_aim"] = AIM
    return [Bar("apply_changes_per_s", rate_of(turns[1:], "apply", sizes.changes, output), at_least=20_000)]


def make_template(target: EmbeddedPostgres, rows: int) -> None:
    with closing(connect_sync(target.url)) as connection:
        execute_sync(connection, create_database(TEMPLATE))
    with closing(connect_sync(url_of(target, TEMPLATE))) as connection:
        execute_sync(connection, statements.create_objects())
        execute_sync(connection, statements.fill_orders(rows))
        execute_sync(connection, statements.vacuum_orders())


@contextmanager
def database(target: EmbeddedPostgres, name: str) -> Iterator[str]:
    """The URL of a target that is as the source was before the changes."""
    with closing(connect_sync(target.url)) as connection:
        execute_sync(connection, create_database(name, TEMPLATE))
        execute_sync(connection, checkpoint())
        yield url_of(target, name)
        execute_sync(connection, drop_database(name))


def turn_of(spark: SparkSession, testbed: Testbed, url: str, names: Names, changes: int) -> Turn:
    """All changes, once."""
    prepare_target(url)
    with closing(connect_sync(url)) as connection:
        execute_sync(connection, add_table(_MAPPING))
    settings, counts = ApplySettings(access=testbed.access, url=url, namespace=names.root), Counts()
    with StreamClock(testbed.access, names.stream(Kind.WAL)) as clock:
        began = time.perf_counter()
        Consumer(spark, settings, Event(), counts).run(once=True)
        ended = time.perf_counter()
    assert counts.applied == changes, f"{counts.applied} of {changes} changes were applied"
    return Turn(ended - clock.started, ended - began)


def verify(source: str, target: str) -> None:
    """Raises unless both tables are equal."""
    sink = PostgresSinkSettings(name="postgres", url=target)
    changes = ChangesSettings(url=source, tables=(TABLE,), slot="verify", publication="verify")
    pipeline = PipelineSettings(name="verify", source=changes, sinks=(sink,), checkpoint="none", state_url=source)
    (table,) = verify_sink(pipeline, sink, [], 20, lambda _text, _done, _total: None).tables
    assert table.is_equal, f"the target differs: {table}"
