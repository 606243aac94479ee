"""The changes of a database as a DataFrame of Spark's, in a session of your own: counted by table and by what happened.

Starts a private PostgreSQL and a Spark on this machine. Run it with `python examples/changes_in_a_notebook.py`.
"""

import os
from tempfile import TemporaryDirectory

from pyspark.sql import DataFrame, SparkSession

from headwater.embedded import EmbeddedPostgres, resolve_java, state_directory
from headwater.postgres.connect import connect_sync
from headwater.spark import build_session, register


def main() -> None:
    with EmbeddedPostgres() as server, TemporaryDirectory() as checkpoint:
        # Any session will do. This one finds a Java by itself, and starts without a word on the terminal.
        spark = build_session("notebook", master="local[2]", java_home=resolve_java(os.environ, state_directory()))
        try:
            prepare(server.url)
            changes = read_changes(spark, server.url)
            print("the first query makes the slot; the parcel from before is not in it:")
            drain(changes, checkpoint)
            write(server.url)
            print("the second one gets what was written since:")
            drain(changes, checkpoint)
        finally:
            spark.stop()


def read_changes(spark: SparkSession, url: str) -> DataFrame:
    register(spark)
    return (
        spark.readStream.format("headwater.changes")
        .option("url", url)
        .option("slot", "headwater_notebook")
        .option("tables", "parcel, courier")
        .load()
    )


def drain(changes: DataFrame, checkpoint: str) -> None:
    """Count all that has committed by now; the query ends there, and has confirmed it to the slot."""
    query = (
        changes.writeStream.foreachBatch(show).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    )
    query.awaitTermination()


def show(batch: DataFrame, _number: int) -> None:
    for row in batch.groupBy("table", "op").count().orderBy("table", "op").collect():
        print(f"  {row['table']:8} {row['op']:5} {row['count']:,}")


def prepare(url: str) -> None:
    with connect_sync(url) as connection:
        connection.execute("create table parcel (id int primary key, weight numeric(6, 2))")
        connection.execute("create table courier (id int primary key, name text)")
        connection.execute("insert into parcel values (0, 1.00)")


def write(url: str) -> None:
    with connect_sync(url) as connection:
        connection.execute("insert into parcel select n, n / 100.0 from generate_series(1, 1000) as n")
        connection.execute("insert into courier values (1, 'Ada'), (2, 'Grace')")
        connection.execute("update parcel set weight = weight + 1 where id <= 100")
        connection.execute("update courier set id = 20 where id = 2")
        connection.execute("delete from parcel where id > 990")


if __name__ == "__main__":
    main()
