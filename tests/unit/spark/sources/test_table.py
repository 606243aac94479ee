"""One table's own columns: typed, by name, with what happened to the row beside them."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from headwater.errors import DecodeError
from headwater.model import UNCHANGED
from headwater.postgres.replication.batch import Batch
from headwater.spark.columns import spark_type
from headwater.spark.sources.table import _PLACE, to_table
from tests.support.capture import pgoutput_writer as write
from tests.support.capture.recordings import TYPES, batches

NUMERIC_8_2 = ((8 << 16) | 2) + 4
COLUMNS = [("id", 20, -1, True), ("v", 25, -1, False), ("price", 1700, NUMERIC_8_2, False), ("day", 1082, -1, False)]


def _schema(columns=COLUMNS):
    fields = [(name, spark_type(TYPES, oid, typmod)) for name, oid, typmod, _ in columns]
    return from_arrow_schema(pa.schema([*fields, *_PLACE]))


def _batch(*messages: bytes, columns=COLUMNS) -> Batch:
    stream = [write.begin(7, 1_000_000, 3), write.relation(1, "t", columns), *messages, write.commit(7, 9)]
    (batch,) = batches(stream)
    return batch


def _row(**columns):
    place = {"_op": "c", "_commit_lsn": 7, "_ordinal": 0, "_committed_at": datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC)}
    return {"id": None, "v": None, "price": None, "day": None, **place, "_unchanged": [], **columns}


def test_every_kind_of_change_in_the_order_of_the_stream():
    batch = _batch(
        write.insert(1, ["1", "a", "1.50", "2026-11-15"]),
        write.update(1, ["1", UNCHANGED, None, None]),
        write.update(1, ["2", "b", None, None], ["1", None, None, None]),
        write.delete(1, ["2", None, None, None]),
        write.truncate(1),
        write.insert(1, ["3", None, None, None]),
    )
    found = to_table(batch, TYPES, _schema())
    assert found.to_pylist() == [
        _row(id=1, v="a", price=Decimal("1.50"), day=date(2026, 11, 15)),
        _row(id=1, _op="u", _ordinal=1, _unchanged=["v"]),
        _row(id=2, v="b", _op="u_pk", _ordinal=2),
        _row(id=2, _op="d", _ordinal=3),
        _row(_op="t", _ordinal=4),
        _row(id=3, _ordinal=5),
    ]


def test_a_delete_under_full_identity_has_the_whole_old_row():
    full = [(name, oid, typmod, True) for name, oid, typmod, _ in COLUMNS]
    (batch,) = batches(
        [write.begin(7), write.relation(1, "t", full, "f"), write.delete(1, ["1", "a", None, None], "O"), write.commit(7, 9)]
    )
    (row,) = to_table(batch, TYPES, _schema()).to_pylist()
    assert (row["id"], row["v"], row["_op"]) == (1, "a", "d")


def test_a_column_that_was_added_is_left_out_and_one_that_was_dropped_is_null():
    before, after = COLUMNS, [COLUMNS[0], ("w", 25, -1, False), *COLUMNS[2:]]
    stream = [write.begin(7), write.relation(1, "t", before), write.insert(1, ["1", "a", None, None])]
    stream += [write.relation(1, "t", after), write.insert(1, ["2", "new", "2.00", None]), write.commit(7, 9)]
    (batch,) = batches(stream)
    rows = to_table(batch, TYPES, _schema()).to_pylist()
    assert [(row["id"], row["v"], row["price"]) for row in rows] == [(1, "a", None), (2, None, Decimal("2.00"))]
    assert all("w" not in row for row in rows)


@pytest.mark.parametrize(("oid", "text", "value"), [(23, "5", 5), (21, "5", 5)])
def test_a_column_whose_new_type_fits_goes_on(oid, text, value):
    columns = [("id", oid, -1, True), *COLUMNS[1:]]
    (row,) = to_table(_batch(write.insert(1, [text, None, None, None]), columns=columns), TYPES, _schema()).to_pylist()
    assert row["id"] == value


@pytest.mark.parametrize(
    ("column", "text"),
    [(("id", 25, -1, True), "x"), (("id", 1082, -1, True), "2026-11-15"), (("id", 17, -1, True), "\\x00")],
    ids=["text that is no number", "date", "bytes"],
)
def test_a_column_whose_new_type_does_not_fit_says_what_to_do(column, text):
    batch = _batch(write.insert(1, [text, None, None, None]), columns=[column, *COLUMNS[1:]])
    with pytest.raises(DecodeError, match=r"column 'id' of public\.t is .* start the query again"):
        to_table(batch, TYPES, _schema())


def test_a_value_that_its_type_cannot_hold_is_named_and_the_other_shape_advised():
    batch = _batch(write.insert(1, ["1", None, "1.00", None]), write.insert(1, ["2", None, "NaN", None]))
    with pytest.raises(DecodeError, match=r"column 'price' of public\.t has a value .*'NaN'.*shape `envelope`") as caught:
        to_table(batch, TYPES, _schema())
    assert caught.value.lsn == 7


def test_text_that_is_no_value_of_the_type_is_refused():
    with pytest.raises(DecodeError, match=r"column 'day' of public\.t"):
        to_table(_batch(write.insert(1, ["1", None, None, "today"])), TYPES, _schema())
