"""Rows behind a transform, which may have moved them about, in the order that brokers are given them."""

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, when

from headwater.model import Op
from headwater.spark.shape import ENVELOPE, MESSAGES


def by_table(batch: DataFrame) -> DataFrame:
    """The changes of a table together and in order; rows of whole tables are spread, for they have none."""
    lanes, is_read = batch.sparkSession.sparkContext.defaultParallelism, col("op").eqNullSafe(str(Op.READ))
    parted = batch.repartition(lanes, "schema", "table", when(is_read, col("ordinal")))
    return parted.sortWithinPartitions("commit_lsn", "ordinal").select(*ENVELOPE.fieldNames())


def by_lane(batch: DataFrame, *, keyed: bool) -> DataFrame:
    """The messages of an outbox in order, or those of each key; what was read from the table has the order of its time."""
    lanes = batch.sparkSession.sparkContext.defaultParallelism
    parted = batch.repartition(lanes, "key") if keyed else batch.repartition(1)
    ordered = parted.sortWithinPartitions("commit_lsn", "ordinal", "created_at", "id")
    return ordered.select(*MESSAGES.fieldNames())
