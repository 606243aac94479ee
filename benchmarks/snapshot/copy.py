"""A table into a second server: a pipeline with a snapshot, against `copy ... to stdout` piped to `copy ... from stdin`.

Both end with an equal table that has its primary key and is durable; psql is that of the server. The clock of ours runs from
the start of the pipeline, on a Spark session that is there already, to the moment that the rows are seen in the target.
"""

import shlex
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from tempfile import TemporaryDirectory
from threading import Event, Thread

from pyspark.sql import SparkSession

from benchmarks.comparison import in_turns, rate, ratio
from benchmarks.databases import DURABLE, make_accounts, psql_environment, url_of
from benchmarks.report import Bar, Output
from benchmarks.snapshot import statements
from benchmarks.snapshot.sizes import QUICK, TABLE, Sizes
from benchmarks.spark_session import spark_session
from benchmarks.statements import checkpoint, create_accounts, create_database, drop_database
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.pipeline import Pipeline
from headwater.spark.settings import ChangesSettings, PipelineSettings, PostgresSinkSettings, SnapshotRule
from headwater.spark.sinks.build import build_sinks

_POLL_SECONDS = 0.02


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes, settings = QUICK if quick else Sizes(), PostgresSettings(config=DURABLE)
    with EmbeddedPostgres(settings) as source, EmbeddedPostgres(settings) as target, spark_session() as spark:
        with output.console.status(f"filling a table of {sizes.rows:,} rows"):
            make_accounts(source.url, sizes.rows)
        testbed = Testbed(source, target, spark, sizes.rows, count(1))
        arms = {"ours": testbed.turn(testbed.seconds_of_ours), "psql": testbed.turn(testbed.seconds_of_psql)}
        with output.console.status("warming up"):
            arms["ours"]()
        seconds = in_turns(arms, sizes.rounds, f"copying {sizes.rows:,} rows", output)
    output.figures["snapshot_to_postgres_rows_per_s"] = rate(sizes.rows, seconds["ours"])
    output.figures["snapshot_copy_rows_per_s"] = rate(sizes.rows, seconds["psql"])
    return [Bar("snapshot_to_postgres_over_copy", ratio(seconds["psql"], seconds["ours"]), at_least=0.6)]


@dataclass(frozen=True, slots=True)
class Testbed:
    """The source with its table, and the server to bring it to."""

    source: EmbeddedPostgres
    target: EmbeddedPostgres
    spark: SparkSession
    rows: int
    turns: "count[int]"

    def turn(self, arm: Callable[[str, str], float]) -> Callable[[], float]:
        """The arm on a database of its own, with the table, empty; all rows are there afterwards."""

        def run() -> float:
            name = f"snapshot_{next(self.turns)}"
            with connect_sync(self.target.url) as connection:
                execute_sync(connection, create_database(name))
                url = url_of(self.target, name)
                with closing(connect_sync(url)) as made:
                    execute_sync(made, create_accounts())
                    execute_sync(made, checkpoint())
                    seconds = arm(name, url)
                    (rows,) = fetch_sync(made, statements.count_accounts())
                assert rows == self.rows, f"{rows} of {self.rows} rows are in the target"
                execute_sync(connection, drop_database(name))
            return seconds

        return run

    def seconds_of_psql(self, _name: str, url: str) -> float:
        psql, environments = self.source.bin_directory / "psql", [psql_environment(self.source.url), psql_environment(url)]
        began = time.perf_counter()
        read = [str(psql), "--no-psqlrc", "--command", f"copy {TABLE} to stdout"]
        write = [str(psql), "--no-psqlrc", "--quiet", "--command", f"copy {TABLE} from stdin"]
        with subprocess.Popen(read, stdout=subprocess.PIPE, env=environments[0]) as reader:
            subprocess.run(write, stdin=reader.stdout, check=True, env=environments[1])
        if reader.returncode != 0:
            raise subprocess.CalledProcessError(reader.returncode, shlex.join(read))
        return time.perf_counter() - began

    def seconds_of_ours(self, name: str, url: str) -> float:
        with TemporaryDirectory() as checkpoints:
            settings = PipelineSettings(
                name=name,
                source=ChangesSettings(
                    url=self.source.url, tables=(TABLE,), slot=name, publication=name, snapshot=SnapshotRule.INITIAL
                ),
                sinks=(PostgresSinkSettings(name="postgres", url=url),),
                checkpoint=f"{checkpoints}/checkpoint",
                state_url=self.source.url,
            )
            with _sighted(url) as seen:
                began = time.perf_counter()
                Pipeline(self.spark, settings, build_sinks(settings), Event()).run(once=True)
            seconds = seen() - began
        with closing(connect_sync(self.source.url)) as connection:
            while fetch_sync(connection, statements.drop_free_slot(name)) == []:
                # Its reader goes a moment after the query.
                time.sleep(_POLL_SECONDS)
            execute_sync(connection, statements.drop_publication(name))
        return seconds


@contextmanager
def _sighted(url: str) -> Iterator[Callable[[], float]]:
    """Watch for the first row in the target within the block; afterwards the call says when it was seen."""
    times: list[float] = []
    leaving = Event()

    def watch() -> None:
        with closing(connect_sync(url)) as connection:
            while not times and not leaving.is_set():
                if fetch_sync(connection, statements.has_accounts()) == [True]:
                    times.append(time.perf_counter())
                leaving.wait(_POLL_SECONDS)

    thread = Thread(target=watch, name="target", daemon=True)
    thread.start()
    try:
        yield lambda: times[0]
    finally:
        leaving.set()
        thread.join()
