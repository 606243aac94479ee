"""Columns for Spark: as in Arrow, except that a time of day stays text."""

from datetime import datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headwater.postgres.types import Types, arrow_type
from headwater.spark.columns import spark_type, to_spark

TYPES = Types.builtin()
TIME, TIMES, TIMESTAMP = 1083, 1183, 1114


@pytest.mark.parametrize("oid", sorted(TYPES))
def test_every_type_goes_through_spark_and_back(oid):
    """A task must hand over exactly the Arrow type that Spark makes of what it was told."""
    schema = pa.schema([("c", spark_type(TYPES, oid))])
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC") == schema


def test_a_time_of_day_stays_text():
    assert spark_type(TYPES, TIME) == pa.string()
    texts = pa.array(["24:00:00", None, "12:34:56.5"])
    assert to_spark(texts, TYPES, TIME) == (texts, ())


def test_all_else_is_as_in_arrow():
    found, rejected = to_spark(pa.array(["2026-11-15 21:36:08", None]), TYPES, TIMESTAMP)
    assert found.type == spark_type(TYPES, TIMESTAMP) == arrow_type(TYPES, TIMESTAMP)
    assert found.to_pylist() == [datetime(2026, 11, 15, 21, 36, 8), None]
    assert not rejected
    assert spark_type(TYPES, TIMES) == pa.string()
