"""Columns of text to JSON: what `to_json` gives for each value, whatever the mix of usual, odd, wrong and NULL."""

from collections.abc import Sequence
from datetime import date, datetime, time

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.errors import DecodeError
from headwater.postgres.types import Field, Kind, PgType, Types, to_json, to_json_column
from tests.support.capture.type_samples import BASE

PAIR, AMOUNT, MOOD, STAMPS, UNKNOWN = range(60_000, 60_005)

TYPES = Types.builtin().extended(
    [
        PgType(oid=PAIR, schema="public", name="pair", kind=Kind.COMPOSITE, fields=(Field("a", 23), Field("b", 25))),
        PgType(oid=AMOUNT, schema="public", name="amount", kind=Kind.DOMAIN, base=1700),
        PgType(oid=MOOD, schema="public", name="mood", kind=Kind.ENUM),
        PgType(oid=STAMPS, schema="public", name="stamps", kind=Kind.DOMAIN, base=1185),
    ]
)
OIDS = {type_.name: type_.oid for type_ in TYPES.values()} | {"unknown to us": UNKNOWN}
ODD = ["", " ", "0", "-0", "00", "1_0", "+1", "٣", "1e5", "t", "true", "NaN", "nan", "Infinity", "infinity", "-infinity"]
ODD += ["2026-02-30", "2026-02-29", "2024-02-29", "0000-01-01", "10000-01-01", "0044-03-15 BC", "2026-13-01", "2026-11-15\n"]
ODD += ["24:00:00", "23:59:60", "12:00:00.1234567", "2026-11-15 24:00:00", "2026-11-15 21:36:08+00", "2026-11-15T21:36:08"]
ODD += ["0044-03-15 00:00:00+00 BC", "2026-11-15 21:36:08-03", "{1,NULL}", '{"a\\"b"}', "(1,)", "\\x00FF", "\\x0", "\x7f"]
ODD += ['"', "\\", "\b\f\n\r\t", "\x01\x1f", "\u2028", "é😀", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"]


def _expected(values: Sequence[str | None], oid: int) -> list[str | None] | None:
    """Each value by itself; None if one of them is none of the type."""
    write = to_json(TYPES, oid)
    try:
        return [None if value is None else write(value) for value in values]
    except DecodeError:
        return None


def _assert_as_one_by_one(values: Sequence[str | None], oid: int) -> None:
    expected = _expected(values, oid)
    # A part of a larger array, as columns are after a selection of rows.
    for column in (pa.array(values, pa.string()), pa.array(['"', None, *values, "\n"], pa.string())[2:-1]):
        if expected is None:
            with pytest.raises(DecodeError):
                to_json_column(column, TYPES, oid)
        else:
            found = to_json_column(column, TYPES, oid)
            assert found.type == pa.string()
            assert found.to_pylist() == expected


@pytest.mark.parametrize("name", sorted(OIDS))
def test_odd_values_of_every_type_are_written_as_one_by_one(name):
    samples = [sample for sample in BASE.get(name, []) if _expected([sample], OIDS[name]) is not None]
    for value in ODD:
        _assert_as_one_by_one([*samples[:1], value, None], OIDS[name])
    _assert_as_one_by_one([None, *samples, None, *samples[::-1]], OIDS[name])
    _assert_as_one_by_one([], OIDS[name])
    _assert_as_one_by_one([None, None], OIDS[name])


USUAL = {
    "bool": st.sampled_from("tf"),
    "int4": st.integers(-(2**31), 2**31 - 1).map(str),
    "xid8": st.integers(0, 2**64 - 1).map(str),
    "float8": st.floats().map(lambda n: {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(n), repr(n))),
    "numeric": st.decimals(allow_nan=False, allow_infinity=False).map(lambda n: f"{n:f}"),
    "amount": st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str),
    "date": st.dates().map(date.isoformat),
    "time": st.times().map(time.isoformat),
    "timestamp": st.datetimes().map(lambda d: d.isoformat(" ")),
    "timestamptz": st.datetimes().map(lambda d: datetime.isoformat(d, " ") + "+00"),
    "uuid": st.uuids().map(str),
    "bytea": st.binary(max_size=6).map(lambda raw: "\\x" + raw.hex()),
    "text": st.text(),
    "jsonb": st.sampled_from(['{"a": 1}', "null", '"é\\n"']),
    "mood": st.text(max_size=5),
    "_int4": st.lists(st.integers(0, 9)).map(lambda n: "{" + ",".join(map(str, n)) + "}"),
    "pair": st.tuples(st.integers(0, 9), st.text(alphabet='ab"\\\n ', max_size=4)).map(
        lambda n: f'({n[0]},"' + n[1].replace("\\", "\\\\").replace('"', '""') + '")'
    ),
}


@given(st.data(), st.sampled_from(sorted(USUAL)))
def test_columns_of_usual_odd_and_missing_values_are_written_as_one_by_one(data, name):
    one = st.none() | USUAL[name] | st.sampled_from(["infinity", "-infinity", "NaN", "0044-03-15 BC"])
    _assert_as_one_by_one(data.draw(st.lists(one, max_size=8)), OIDS[name])


@given(st.sampled_from(sorted(USUAL)), st.lists(st.none() | st.text(), max_size=4))
@example("date", ["0000-01-01"])
@example("timestamptz", ["2026-11-15 21:36:08+00\n"])
def test_text_that_is_no_value_of_the_type_is_refused_as_one_by_one(name, values):
    _assert_as_one_by_one(values, OIDS[name])
