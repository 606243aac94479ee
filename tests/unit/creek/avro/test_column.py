"""Columns to fields: the vectors hold the bytes that fastavro writes row by row, and what does not fit is told."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.creek.avro import encode_column, join, long
from headwater.creek.avro.arrays import BLOCK_ELEMENTS
from headwater.creek.schema import RowField
from headwater.creek.types import column_type
from headwater.errors import DecodeError
from tests.support.creek.avro_reference import NUMERIC_10_5, NUMERIC_12_2, NUMERIC_38_10, NUMERIC_100_50, OIDS, TYPES


def field(type_: str, typmod: int = -1, *, nullable: bool = True) -> RowField:
    return RowField("v", "v", not nullable, nullable, column_type(TYPES, OIDS[type_], typmod))


def encoded(texts: Sequence[str | None], each: RowField, *, widened: bool = False) -> tuple[list[str], list[bool]]:
    """The fields in hex, and which do not fit."""
    column = encode_column(pa.array(texts, pa.string()), each, TYPES, widened=widened)
    misfit = [False] * len(texts) if column.misfit is None else column.misfit.tolist()
    return [raw.hex() for raw in join(column.pieces, len(texts)).to_pylist()], misfit


@pytest.mark.parametrize(
    ("type_", "typmod", "texts", "expected"),
    [
        ("bool", -1, ["t", "f", None], ["0201", "0200", "00"]),
        ("int4", -1, ["0", "-1", "64", None], ["0200", "0201", "028001", "00"]),
        ("int8", -1, [str(2**63 - 1), str(-(2**63))], ["02feffffffffffffffff01", "02ffffffffffffffffff01"]),
        ("float4", -1, ["1.5", "NaN", "-Infinity"], ["020000c03f", "020000c07f", "02000080ff"]),
        ("float8", -1, ["-2", None], ["0200000000000000c0", "00"]),
        ("text", -1, ["", "é", None], ["0200", "0204c3a9", "00"]),
        ("json", -1, ['{"b":1, "a":"<"}', "[ ]"], ["02287b2261223a225c7530303363222c2262223a317d", "02065b205d"]),
        ("date", -1, ["1970-01-02", "infinity", "-infinity", None], ["0202", "0400", "0402", "00"]),
        ("time", -1, ["00:00:00.000001", "24:00:00"], ["0202", "028080bbdd8305"]),
        ("timestamptz", -1, ["1970-01-01 00:00:00+00", "infinity"], ["0200", "0400"]),
        (
            "numeric",
            NUMERIC_12_2,
            ["0.00", "1.27", "1.28", "-1.27", "-1.28"],
            ["020200", "02027f", "02040080", "020281", "0204ff80"],
        ),
        ("numeric", NUMERIC_38_10, ["0.0000000001", "-1.0000000000"], ["020201", "020afdabf41c00"]),
        ("_int4", -1, ["{}", "{1,2}", None], ["0200", "020304020400", "00"]),
        ("_text", -1, ['{"a,b",c}'], ["02030c06612c62026300"]),
        ("_date", -1, ["{1970-01-02,infinity}"], ["02030800020200" + "00"]),
    ],
)
def test_fields_are_branch_and_value(type_, typmod, texts, expected):
    assert encoded(texts, field(type_, typmod)) == (expected, [False] * len(texts))


def test_a_field_that_is_never_null_has_no_branch_unless_its_type_is_a_union():
    assert encoded(["5"], field("int4", nullable=False))[0] == ["0a"]
    assert encoded(["1970-01-02", "infinity"], field("date", nullable=False))[0] == ["0002", "0200"]
    assert encoded(["{1}"], field("_int4", nullable=False))[0] == ["01020200"]


def test_a_key_without_value_is_refused():
    with pytest.raises(DecodeError, match="'v' is part of the key, and has no value"):
        encoded([None], field("int4", nullable=False))


@pytest.mark.parametrize(
    ("type_", "typmod", "good", "bad"),
    [
        ("numeric", NUMERIC_10_5, "1.00000", ["NaN"]),
        ("numeric", NUMERIC_38_10, "1.0000000000", ["NaN"]),
        ("numeric", NUMERIC_100_50, "1." + "0" * 50, ["NaN", "Infinity", "-Infinity"]),
        ("numeric", -1, None, ["1", "NaN", "1e5"]),
        ("timestamp", -1, "294247-01-10 04:00:54.775806", ["294247-01-10 04:00:54.775807", "294276-12-31 23:59:59.999999"]),
        ("timestamptz", -1, "infinity", ["294276-12-31 23:59:59.999999+00"]),
        ("_int4", -1, "{}", ["{NULL}", "{{1},{2}}", "[0:0]={1}", "{1,NULL,2}"]),
        ("_text", -1, '{"NULL",""}', ['{NULL,"a b"}', "{{a},{b}}"]),
        ("_numeric", NUMERIC_10_5, "{1.00000}", ["{1.00000,NaN}"]),
        ("_numeric", -1, "{}", ["{1}", "{NULL}"]),
        ("_timestamp", -1, '{"2026-01-01 00:00:00",infinity}', ['{"294276-12-31 23:59:59.999999"}']),
    ],
)
def test_what_the_schema_cannot_hold_is_told_and_goes_as_text_into_the_widened_one(type_, typmod, good, bad):
    texts = [good, *bad, None, good]
    each = field(type_, typmod)
    plain, misfit = encoded(texts, each)
    assert misfit == [False, *[True] * len(bad), False, False]
    widened, none = encoded(texts, each, widened=True)
    assert not any(none)
    head = long(each.branches(widened=True).index("string"))
    assert [widened[0], *widened[-2:]] == [plain[0], *plain[-2:]]
    assert widened[1:-2] == [(head + long(len(text.encode())) + text.encode()).hex() for text in bad]


def test_a_key_that_may_not_fit_is_a_union_in_the_widened_schema():
    each = field("numeric", NUMERIC_12_2, nullable=False)
    assert encoded(["1.00"], each)[0] == ["0264"]
    assert encoded(["1.00", "NaN"], each, widened=True)[0] == ["000264", "02064e614e"]


def test_long_arrays_are_in_blocks_of_a_hundred_as_creeks_are():
    counts = [0, 1, BLOCK_ELEMENTS, BLOCK_ELEMENTS + 1, 2 * BLOCK_ELEMENTS]
    # With and without quotes, for they are taken apart in different ways.
    for element in ("1", '"1"'):
        texts = ["{" + ",".join([element] * count) + "}" for count in counts]
        block = long(-100) + long(100) + long(1) * 100
        expected = [b"", long(-1) + long(1) + long(1), block, block + long(-1) + long(1) + long(1), block * 2]
        assert encoded(texts, field("_int4"))[0] == [(b"\x02" + each + b"\0").hex() for each in expected]


def test_an_empty_column_has_no_fields():
    for name in ("bool", "int8", "float8", "text", "json", "date", "numeric", "_int4", "_json", "timestamptz"):
        for typmod in (-1, NUMERIC_12_2):
            assert encoded([], field(name, typmod)) == ([], [])


@pytest.mark.parametrize(
    "type_", ["bool", "int4", "int8", "float4", "date", "time", "timestamptz", "numeric", "json", "_int4"]
)
def test_malformed_text_is_refused(type_):
    with pytest.raises(DecodeError):
        encoded(["{nonsense" if type_ == "json" else "nonsense"], field(type_, NUMERIC_12_2))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_numbers_of_any_size_are_zigzag_varints(values):
    assert encoded([str(value) for value in values], field("int8"))[0] == [(b"\x02" + long(value)).hex() for value in values]


@given(st.lists(st.integers(-(10**18) + 1, 10**18 - 1) | st.integers(-70000, 70000), max_size=20))
def test_decimals_take_as_many_bytes_as_creek_gives_them(units):
    texts = [f"{'-' if unit < 0 else ''}{abs(unit) // 100}.{abs(unit) % 100:02}" for unit in units]
    for precision in (18, 19):
        expected = [unit.to_bytes(unit.bit_length() // 8 + 1, signed=True) for unit in units]
        found = encoded(texts, field("numeric", ((precision << 16) | 2) + 4))
        assert found == ([(b"\x02" + long(len(raw)) + raw).hex() for raw in expected], [False] * len(units))


def test_columns_that_are_slices_of_others_are_encoded_as_what_they_show():
    for name, texts in {"int8": ["7", "1", None], "text": ["abc", "d", None], "_int4": ["{1}", "{2,3}", None]}.items():
        whole, shown = pa.array(texts * 2, pa.string()), slice(1, 6)
        column = encode_column(whole.slice(1, 5), field(name), TYPES)
        raw = join(column.pieces, 5).to_pylist()
        assert [each.hex() for each in raw] == encoded((texts * 2)[shown], field(name))[0]


def test_large_strings_are_taken_as_strings():
    column = encode_column(pa.array(["a", None], pa.large_string()), field("text"), TYPES)
    assert join(column.pieces, 2).to_pylist() == [b"\x02\x02a", b"\0"]


def test_rows_of_more_than_two_gibibytes_get_offsets_that_reach_so_far(monkeypatch):
    monkeypatch.setattr("headwater.creek.avro.binary._MOST_BYTES", 20)
    column = encode_column(pa.array(["a" * 15, "b" * 15, None]), field("text"), TYPES)
    rows = join([b"xy", *column.pieces], 3)
    assert pa.types.is_large_binary(rows.type)
    assert rows.to_pylist() == [b"xy\x02\x1e" + b"a" * 15, b"xy\x02\x1e" + b"b" * 15, b"xy\0"]
    wide = encode_column(pa.array(["{1}", "{NULL}"]), field("_int4"), TYPES, widened=True)
    assert join(wide.pieces * 4, 2).to_pylist() == [bytes.fromhex("0201020200") * 4, b"\x04\x0c{NULL}" * 4]


def test_constants_alone_make_rows_too():
    assert join([b"a", b"", b"b"], 3).to_pylist() == [b"ab"] * 3
    assert join([b"a", pa.array([b"x", None]), b"b", b"c"], 2).to_pylist() == [b"axbc", b"abc"]
    assert join([b""], 2).to_pylist() == [b"", b""]
