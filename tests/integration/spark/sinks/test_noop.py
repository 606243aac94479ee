"""The noop sink: every row is made, counted, and let go."""

import pytest
from pyspark.errors import PythonException
from pyspark.sql.functions import udf

from headwater.spark.settings import NoopSinkSettings
from headwater.spark.shape import ENVELOPE, WIRE, Shape
from headwater.spark.sinks import Span, Written
from headwater.spark.sinks.noop import NoopSink
from tests.conformance.sink_frames import capture

pytestmark = pytest.mark.timeout(300)

SINK = NoopSink(NoopSinkSettings(name="nowhere"))


@pytest.fixture
def delivery(database):
    statements = ["insert into item select i from generate_series(1, 5) as i", "truncate item, other"]
    setup = ("create table item (id int primary key)", "create table other (id int primary key)")
    return capture(database, statements, tables=("item", "other"), setup=setup)


def test_changes_are_counted_and_not_frames(spark, delivery):
    assert SINK.write(delivery.wire(spark), Shape.WIRE, delivery.span) == Written(changes=7)


def test_each_row_of_an_envelope_is_a_change(spark, delivery):
    assert SINK.write(delivery.envelopes(spark), Shape.ENVELOPE, delivery.span) == Written(changes=7)


@pytest.mark.parametrize(("shape", "schema"), [(Shape.WIRE, WIRE), (Shape.ENVELOPE, ENVELOPE)])
def test_a_batch_without_rows_counts_nothing(spark, delivery, shape, schema):
    assert SINK.write(spark.createDataFrame([], schema), shape, Span(delivery.span.end, delivery.span.end)) == Written()


def test_every_row_is_made_with_all_its_columns(spark, delivery):
    """A column that fails would not be noticed by a count."""

    @udf("string")
    def fail(_):
        raise ValueError("this column was made")

    batch = delivery.envelopes(spark).withColumn("after", fail("after"))

    with pytest.raises(PythonException, match="this column was made"):
        SINK.write(batch, Shape.ENVELOPE, delivery.span)
