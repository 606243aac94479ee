"""A table to Spark's noop sink, with all columns typed: `headwater.changes` with a snapshot, against Spark's JDBC reader.

Both read the same columns with the same types, in as many partitions. Ours is a whole query, with a slot of its own: from
the start of its first batch to its end, when all rows are committed and the slot follows the changes. What it takes with the
start of the query is among the figures. A first turn of each does not count.
"""

import statistics
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from pyspark.sql import SparkSession

from benchmarks.comparison import in_turns, rate, ratio
from benchmarks.databases import DURABLE, make_accounts
from benchmarks.report import Bar, Output
from benchmarks.snapshot import statements
from benchmarks.snapshot.sizes import QUICK, TABLE, Sizes
from benchmarks.spark_session import spark_session
from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.spark.sources import register
from headwater.spark.sources.table import table_schema

# Enough to keep the connection busy; by default the driver of PostgreSQL fetches a whole partition before the first row.
FETCHED_ROWS = 10_000
JDBC_JAR = Path("/usr/share/java/postgresql.jar")


def measure(quick: bool, output: Output) -> list[Bar]:
    if not JDBC_JAR.exists():
        raise SystemExit(f"there is no {JDBC_JAR}; install it with: apt-get install libpostgresql-jdbc-java")
    sizes = QUICK if quick else Sizes()
    with EmbeddedPostgres(PostgresSettings(config=DURABLE)) as server, spark_session({"spark.jars": str(JDBC_JAR)}) as spark:
        register(spark)
        with output.console.status(f"filling a table of {sizes.rows:,} rows"):
            make_accounts(server.url, sizes.rows)
        testbed = Testbed(server.url, spark, sizes.rows, count(1), [])
        with output.console.status("warming up"):
            testbed.seconds_of_ours()
            testbed.seconds_of_jdbc()
        arms = {"ours": testbed.seconds_of_ours, "jdbc": testbed.seconds_of_jdbc}
        seconds = in_turns(arms, sizes.rounds, f"reading {sizes.rows:,} rows", output)
        output.figures["snapshot_partitions"] = testbed.partitions()
    output.figures["snapshot_rows_per_s"] = rate(sizes.rows, seconds["ours"])
    output.figures["snapshot_seconds_of_start"] = round(statistics.median(testbed.starts), 2)
    output.figures["snapshot_jdbc_rows_per_s"] = rate(sizes.rows, seconds["jdbc"])
    return [Bar("snapshot_over_jdbc", ratio(seconds["jdbc"], seconds["ours"]), at_least=0.8)]


@dataclass(frozen=True, slots=True)
class Testbed:
    """A table to be read, again and again, each time by a pipeline that has not been there before."""

    url: str
    spark: SparkSession
    rows: int
    turns: "count[int]"
    starts: list[float]

    def seconds_of_ours(self) -> float:
        name = f"snapshot_{next(self.turns)}"
        options = {"url": self.url, "slot": name, "shape": "table", "table": TABLE, "snapshot": "initial"}
        changes = self.spark.readStream.format("headwater.changes").options(**options).load()
        with TemporaryDirectory() as directory:
            started = time.time()
            writer = changes.writeStream.format("noop").option("checkpointLocation", str(Path(directory, "checkpoint")))
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            ended = time.time()
        began = datetime.fromisoformat(query.recentProgress[0].timestamp).timestamp()
        self.starts.append(began - started)
        read = sum(progress.numInputRows for progress in query.recentProgress)
        assert read == self.rows, f"{read} of {self.rows} rows came to the sink"
        with closing(connect_sync(self.url)) as connection:
            while fetch_sync(connection, statements.drop_free_slot(name)) == []:
                # Its reader goes a moment after the query.
                time.sleep(0.05)
            execute_sync(connection, statements.drop_publication(name))
        return ended - began

    def seconds_of_jdbc(self) -> float:
        place = urlsplit(self.url)
        schema = [field for field in table_schema(self.url, TABLE) if not field.name.startswith("_")]
        options = {
            "url": f"jdbc:postgresql://{place.hostname}:{place.port}{place.path}",
            "user": place.username or "",
            "password": place.password or "",
            "driver": "org.postgresql.Driver",
            "dbtable": TABLE,
            "partitionColumn": "id",
            "lowerBound": "1",
            "upperBound": str(self.rows + 1),
            "numPartitions": str(self.partitions()),
            "fetchsize": str(FETCHED_ROWS),
            "customSchema": ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema),
        }
        rows = self.spark.read.format("jdbc").options(**options).load()
        began = time.perf_counter()
        rows.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - began

    def partitions(self) -> int:
        """As many as ours has cut the table into."""
        with closing(connect_sync(self.url)) as connection:
            return fetch_sync(connection, statements.count_pieces())[0]
