"""Columns of text to Arrow: the same values as one by one, whatever the mix of usual, unusual and NULL."""

from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.errors import DecodeError
from headwater.postgres.types import Field, Kind, PgType, Types, arrow_type, from_text, to_json, to_python
from headwater.postgres.types.instants import (
    INFINITE,
    days_of_date,
    microseconds_of_time,
    microseconds_of_timestamp,
    microseconds_of_timestamptz,
)

PAIR, AMOUNT, MOOD = 60_000, 60_001, 60_002


def numeric(precision: int, scale: int) -> int:
    """The typmod of numeric(precision, scale)."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


TYPES = Types.builtin().extended(
    [
        PgType(oid=PAIR, schema="public", name="pair", kind=Kind.COMPOSITE, fields=(Field("a", 23), Field("b", 25))),
        PgType(oid=AMOUNT, schema="public", name="amount", kind=Kind.DOMAIN, base=1700, base_typmod=numeric(10, 2)),
        PgType(oid=MOOD, schema="public", name="mood", kind=Kind.ENUM),
    ]
)
OIDS = {type_.name: type_.oid for type_ in TYPES.values()}


def column(name: str, values: Sequence[str | None], typmod: int = -1):
    return from_text(pa.array(values, pa.string()), TYPES, OIDS[name], typmod)


def stored(array: pa.Array) -> Any:
    """The values as the type stores them, for Python has none for an infinite or far date."""
    if pa.types.is_date(array.type):
        return array.view(pa.int32()).to_pylist()
    return (array.view(pa.int64()) if pa.types.is_temporal(array.type) else array).to_pylist()


@pytest.mark.parametrize(
    ("name", "typmod", "expected"),
    [
        ("bool", -1, pa.bool_()),
        ("int2", -1, pa.int16()),
        ("int4", -1, pa.int32()),
        ("int8", -1, pa.int64()),
        ("oid", -1, pa.int64()),
        ("xid8", -1, pa.decimal128(20, 0)),
        ("float4", -1, pa.float32()),
        ("float8", -1, pa.float64()),
        ("numeric", numeric(38, 38), pa.decimal128(38, 38)),
        ("numeric", numeric(5, 0), pa.decimal128(5, 0)),
        ("numeric", -1, pa.string()),
        ("numeric", numeric(39, 2), pa.string()),
        ("numeric", numeric(5, -2), pa.string()),
        ("numeric", numeric(3, 5), pa.string()),
        ("amount", -1, pa.decimal128(10, 2)),
        ("bytea", -1, pa.binary()),
        ("date", -1, pa.date32()),
        ("time", -1, pa.time64("us")),
        ("timestamp", 3, pa.timestamp("us")),
        ("timestamptz", -1, pa.timestamp("us", tz="UTC")),
        *(
            (name, -1, pa.string())
            for name in ("text", "bpchar", "name", "char", "uuid", "jsonb", "timetz", "interval", "mood")
        ),
        *(
            (name, -1, pa.string())
            for name in ("_int4", "int2vector", "int4range", "int4multirange", "pair", "money", "bit")
        ),
    ],
)
def test_arrow_type_follows_the_stated_rule(name, typmod, expected):
    assert arrow_type(TYPES, OIDS[name], typmod) == expected
    assert column(name, [None], typmod)[0].equals(pa.nulls(1, expected))
    assert column(name, [], typmod)[0].equals(pa.nulls(0, expected))


def test_type_that_is_not_known_is_a_string():
    assert arrow_type(TYPES, 999_999) == pa.string()


def short_fraction(moment: str) -> str:
    return moment.rstrip("0") if "." in moment else moment


far_dates = st.builds(
    "{:04}-{:02}-{:02}{}".format, st.integers(1, 4713), st.integers(1, 12), st.integers(1, 28), st.just(" BC")
) | st.builds("{}-{:02}-{:02}".format, st.integers(10_000, 290_000), st.integers(1, 12), st.integers(1, 28))
clocks = st.times().map(lambda value: short_fraction(value.isoformat()))
infinities = st.sampled_from(sorted(INFINITE))


def with_clock(day: str, clock: str, offset: str) -> str:
    return f"{day[:-3]} {clock}{offset} BC" if day.endswith(" BC") else f"{day} {clock}{offset}"


def moments(offset: str):
    days = st.dates().map(date.isoformat) | far_dates
    return st.builds(with_clock, days, clocks, st.just(offset)) | infinities


def integers(bits: int):
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).map(str)


def units(precision: int, scale: int):
    """Numbers that numeric(precision, scale) can hold, and NaN."""
    digits = st.integers(-(10**precision) + 1, 10**precision - 1)
    return digits.map(
        lambda number: format(Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)), "f")
    ) | st.just("NaN")


def read_decimal(text: str) -> Decimal | None:
    return None if text == "NaN" else Decimal(text)


def read_days(text: str) -> int:
    return {"infinity": 2**31 - 1, "-infinity": -(2**31)}.get(text) or days_of_date(text)


def moment_reader(read: Callable[[str], int]) -> Callable[[str], int]:
    return lambda text: {"infinity": 2**63 - 1, "-infinity": -(2**63)}.get(text) or read(text)


def float4(text: str) -> float:
    return float(np.float32(text))


# Type, typmod, texts as the server writes them, and the value of one as Arrow stores it.
CASES: dict[str, tuple[int, st.SearchStrategy[str], Callable[[str], object]]] = {
    "bool": (-1, st.sampled_from("tf"), "t".__eq__),
    "int2": (-1, integers(16), int),
    "int4": (-1, integers(32), int),
    "int8": (-1, integers(64), int),
    "oid": (-1, st.integers(0, 2**32 - 1).map(str), int),
    "xid8": (-1, st.integers(0, 2**64 - 1).map(str), Decimal),
    "float4": (-1, st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr), float4),
    "float8": (-1, st.floats(allow_nan=False).map(repr), float),
    "numeric(4,2)": (numeric(4, 2), units(4, 2), read_decimal),
    "numeric(9,0)": (numeric(9, 0), units(9, 0), read_decimal),
    "numeric(15,15)": (numeric(15, 15), units(15, 15), read_decimal),
    "numeric(15,3)": (numeric(15, 3), units(15, 3), read_decimal),
    "numeric(38,10)": (numeric(38, 10), units(38, 10), read_decimal),
    "bytea": (-1, st.binary().map(lambda value: "\\x" + value.hex()), lambda text: bytes.fromhex(text[2:])),
    "date": (-1, st.dates().map(date.isoformat) | far_dates | infinities, read_days),
    "time": (-1, clocks | st.just("24:00:00"), microseconds_of_time),
    "timestamp": (-1, moments(""), moment_reader(microseconds_of_timestamp)),
    "timestamptz": (-1, moments("+00"), moment_reader(microseconds_of_timestamptz)),
    "text": (-1, st.text(), str),
    "_int4": (-1, st.sampled_from(["{}", "{1,NULL}", "[0:0]={1}", "{{1},{2}}"]), to_json(TYPES, OIDS["_int4"])),
    "pair": (-1, st.sampled_from(["(,)", '(1,"a b")', "(1,2,3)"]), to_json(TYPES, PAIR)),
    "int4range": (-1, st.sampled_from(["empty", "[1,2)"]), str),
}


@pytest.mark.parametrize("case", CASES)
@settings(deadline=None)
@given(st.data())
def test_column_holds_what_each_text_says(case, data):
    typmod, texts, read_one = CASES[case]
    values = data.draw(st.lists(texts | st.none(), max_size=12))
    begin = data.draw(st.integers(0, len(values)))
    whole = pa.array(values, pa.string())
    # A slice begins in mid buffer.
    array, rejected = from_text(whole[begin:], TYPES, OIDS[case.partition("(")[0]], typmod)
    expected = [None if text is None else read_one(text) for text in values[begin:]]
    assert stored(array) == expected
    assert rejected == tuple(
        index
        for index, (text, value) in enumerate(zip(values[begin:], expected, strict=True))
        if value is None and text is not None
    )


@given(st.lists(st.datetimes(), min_size=1))
def test_column_and_single_value_agree(values):
    texts = [short_fraction(value.isoformat(" ")) for value in values]
    array, _ = column("timestamp", texts)
    assert array.to_pylist() == [to_python(TYPES, OIDS["timestamp"])(text) for text in texts] == values


def test_infinite_dates_are_the_extremes_and_not_null():
    array, rejected = column("date", ["infinity", None, "-infinity", "2026-11-15"])
    assert stored(array) == [2**31 - 1, None, -(2**31), (date(2026, 11, 15) - date(1970, 1, 1)).days]
    assert rejected == ()
    for name in ("timestamp", "timestamptz"):
        array, rejected = column(name, ["infinity", None, "-infinity"])
        assert stored(array) == [2**63 - 1, None, -(2**63)]
        assert rejected == ()


def test_timestamp_past_64_bits_is_rejected_and_so_is_the_one_that_would_look_infinite():
    last, marker, beyond = "294247-01-10 04:00:54.775806", "294247-01-10 04:00:54.775807", "294276-12-31 23:59:59.999999"
    for name, offset in (("timestamp", ""), ("timestamptz", "+00")):
        array, rejected = column(name, [beyond + offset, last + offset, None, marker + offset, beyond + offset])
        assert stored(array) == [None, 2**63 - 2, None, None, None]
        assert rejected == (0, 3, 4)


def test_date_that_no_server_has_is_rejected_where_the_storage_ends():
    assert column("date", ["9999999-01-01", "2026-01-01"])[1] == (0,)
    assert column("timestamp", ["9999999-01-01 00:00:00 BC", "2026-01-01 00:00:00"])[1] == (0,)


@pytest.mark.parametrize("name", ["bool", "int4", "amount", "bytea", "date", "time", "timestamptz", "_int4", "pair"])
def test_bytes_that_are_no_utf8_are_a_decode_error(name):
    texts = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff1"))
    with pytest.raises(DecodeError):
        from_text(texts, TYPES, OIDS[name])


def test_numeric_that_the_decimal_cannot_hold_is_rejected():
    values = ["1.50", "NaN", None, "123456789.00", "-99999999.99", "1.005", "Infinity", "1.5", "7" * 5000]
    array, rejected = column("amount", values)
    assert array.to_pylist() == [
        Decimal("1.50"),
        None,
        None,
        None,
        Decimal("-99999999.99"),
        None,
        None,
        Decimal("1.50"),
        None,
    ]
    assert rejected == (1, 3, 5, 6, 8)
    assert column("numeric", ["9" * 400 + ".00"], numeric(10, 2))[1] == (0,)


def test_floats_have_all_their_special_values():
    for name in ("float4", "float8"):
        values = column(name, ["NaN", "Infinity", "-Infinity", "-0", None])[0].to_pylist()
        assert str(values) == "[nan, inf, -inf, -0.0, None]"


def test_text_is_passed_on_without_a_copy():
    texts = pa.array(["a", None, ""])
    assert from_text(texts, TYPES, OIDS["text"])[0] is texts


def test_null_may_lie_over_any_bytes():
    data = pa.py_buffer(b"\\x01garbage\\x02")
    offsets = pa.py_buffer(np.array([0, 4, 11, 15], np.int32))
    texts = pa.StringArray.from_buffers(3, offsets, data, pa.py_buffer(b"\x05"))
    assert from_text(texts, TYPES, OIDS["bytea"])[0].to_pylist() == [b"\x01", None, b"\x02"]


def test_array_of_a_far_and_a_near_moment_is_exact():
    array, _ = column("timestamptz", ["2026-11-15 21:36:08.12+00", "0044-03-15 12:00:00+00 BC", "10000-01-01 00:00:00+00"])
    assert stored(array) == [1_794_778_568_120_000, -63_517_780_800_000_000, 253_402_300_800_000_000]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("bool", text) for text in ("", "true", "x")),
        *(("int2", text) for text in ("", "abc", "32768", "1.0")),
        *(("oid", text) for text in ("", "-1", "4294967296")),
        *(("xid8", text) for text in ("", "x", "1.5")),
        *(("float8", text) for text in ("", "x", "1,5")),
        *(("amount", text) for text in ("", "x", "1.x0", "--1.00", "1e5.00")),
        *(("bytea", text) for text in ("", "abcd", "\\x1", "\\xzz", "\\xAB", "\\")),
        *(("date", text) for text in ("", "x", "2026-02-30", "2026-01-01 00:00:00", "Infinity")),
        *(("time", text) for text in ("", "x", "25:00:00", "24:00:01")),
        *(("timestamp", text) for text in ("", "x", "2026-01-01 00:00:00+00", "0000-01-01 00:00:00 BC")),
        *(("timestamptz", text) for text in ("", "x", "2026-01-01 00:00:00")),
        *(("_int4", text) for text in ("", "x", "{x}")),
        *(("pair", text) for text in ("", "(1,")),
    ],
)
@pytest.mark.parametrize("others", [[], [None], "good"])
def test_malformed_text_is_a_decode_error(name, text, others):
    good = {
        "bool": "t",
        "amount": "1.00",
        "bytea": "\\x00",
        "date": "2026-01-01",
        "time": "00:00:00",
        "_int4": "{}",
        "pair": "(,)",
    }
    good |= {"timestamp": "2026-01-01 00:00:00", "timestamptz": "2026-01-01 00:00:00+00"}
    neighbours = [good.get(name, "1")] if others == "good" else others
    with pytest.raises(DecodeError):
        column(name, [*neighbours, text, *neighbours])


@given(
    st.sampled_from([*CASES, "amount"]),
    st.lists(st.text(st.sampled_from('0123456789-+:., TZBCeinfty{}[]()"\\xNaULtrue'), max_size=30) | st.none()),
)
@example("bytea", ["\\", "\\"])
def test_any_text_is_a_value_or_a_decode_error(case, values):
    try:
        array, rejected = column(case.partition("(")[0], values, CASES[case][0] if case in CASES else -1)
    except DecodeError:
        return
    assert len(array) == len(values)
    assert array.null_count == values.count(None) + len(rejected)


def test_a_composite_with_other_fields_than_the_registry_knows_is_a_string_with_the_servers_text():
    array, rejected = from_text(pa.array(["(1,a)", "(x,a)", "(1)", None]), TYPES, PAIR)
    assert array.to_pylist() == ['{"a":1,"b":"a"}', '"(x,a)"', '"(1)"', None]
    assert rejected == ()
