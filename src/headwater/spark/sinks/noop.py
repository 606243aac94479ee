"""The sink that takes every row and keeps none: to measure what reading costs."""

from pyspark.sql import DataFrame, Observation
from pyspark.sql.functions import count, lit, sum

from headwater.spark.shape import Shape
from headwater.spark.sink_settings import NoopSinkSettings
from headwater.spark.sinks.sink import Span, Written


class NoopSink:
    """Counts the changes; there is nothing that could tell whether they come again."""

    def __init__(self, settings: NoopSinkSettings) -> None:
        self._name = settings.name

    @property
    def name(self) -> str:
        return self._name

    def open(self) -> None:
        """Nothing to prepare."""

    def write(self, batch: DataFrame, shape: Shape, span: Span) -> Written:
        seen = Observation()
        changes = sum("changes") if shape in (Shape.WIRE, Shape.PACKED) else count(lit(1))
        batch.observe(seen, changes.alias("changes")).write.format("noop").mode("overwrite").save()
        # Of no rows at all the sum is NULL.
        return Written(changes=seen.get["changes"] or 0)

    def close(self) -> None:
        """Nothing to let go of."""
