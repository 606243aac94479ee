"""Instants as ADBC gives them: what wraps round in 64 bits is told from what PostgreSQL can hold."""

from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pytest

from headwater.spark.sources.native import straightened

INT64, INT32 = np.iinfo(np.int64), np.iinfo(np.int32)
# As ADBC was seen to give them: infinity, -infinity, 294276-12-31.
INFINITY, MINUS_INFINITY, TOO_LATE = -9222425352054775809, -9222425352054775808, -9222426144109551616


@pytest.mark.parametrize("type_", [pa.timestamp("us"), pa.timestamp("us", tz="UTC")], ids=str)
def test_infinite_instants_are_the_extremes_and_those_that_have_no_place_are_told(type_):
    ordinary = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000_000)
    oldest = -210_863_520_000_000_000  # 4713-01-01 BC
    column = pa.array([ordinary, None, INFINITY, MINUS_INFINITY, TOO_LATE, oldest], pa.int64()).view(type_)
    found, rejected = straightened(column)
    assert found.type == type_
    assert found.view(pa.int64()).to_pylist()[:4] == [ordinary, None, INT64.max, INT64.min]
    assert found.view(pa.int64()).to_pylist()[5] == oldest
    assert list(rejected) == [4]


def test_infinite_dates_are_the_extremes():
    days = pa.array([20_000, -2147472692, -2147472691, None, -735_160], pa.int32()).view(pa.date32())
    found, rejected = straightened(days)
    assert found.view(pa.int32()).to_pylist() == [20_000, INT32.max, INT32.min, None, -735_160]
    assert list(rejected) == []


def test_ordinary_columns_are_left_as_they_are():
    for column in (pa.array([1, None]), pa.array(["a"]), pa.array([date(2026, 1, 1)]), pa.nulls(2, pa.timestamp("us"))):
        found, rejected = straightened(column)
        assert found is column
        assert list(rejected) == []
