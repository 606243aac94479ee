"""Text to Python values and back: the same value, and where Python has none, the same text."""

import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.multirange import Multirange
from psycopg.types.range import Range

from headwater.errors import DecodeError
from headwater.postgres.types import Field, Kind, PgType, Types, to_python, to_text

PAIR, NAMES, NAMES_ARRAY, LABEL, NOTHING, MOOD, LABELS = range(60_000, 60_007)

TYPES = Types.builtin().extended(
    [
        PgType(
            oid=PAIR,
            schema="public",
            name="pair",
            kind=Kind.COMPOSITE,
            fields=(Field("number", 23), Field("tags", 1009), Field("label", LABEL)),
        ),
        PgType(oid=NAMES, schema="public", name="names", kind=Kind.DOMAIN, base=1009),
        PgType(oid=NAMES_ARRAY, schema="public", name="_names", kind=Kind.ARRAY, element=NAMES),
        PgType(oid=LABEL, schema="public", name="label", kind=Kind.DOMAIN, base=25),
        PgType(oid=NOTHING, schema="public", name="nothing", kind=Kind.COMPOSITE),
        PgType(oid=MOOD, schema="public", name="mood", kind=Kind.ENUM),
        PgType(oid=LABELS, schema="public", name="labels", kind=Kind.RANGE, element=LABEL),
    ]
)
OIDS = {type_.name: type_.oid for type_ in TYPES.values()}

# Type, the server's text, the value; the value's text is the server's again.
EXAMPLES = [
    ("bool", "t", True),
    ("bool", "f", False),
    ("int2", "-32768", -32768),
    ("int4", "2147483647", 2147483647),
    ("int8", "-9223372036854775808", -(2**63)),
    ("oid", "4294967295", 2**32 - 1),
    ("xid", "3", 3),
    ("cid", "0", 0),
    ("xid8", "18446744073709551615", 2**64 - 1),
    ("float4", "0.1", 0.1),
    ("float8", "-1", -1.0),
    ("float8", "1e+300", 1e300),
    ("float8", "Infinity", math.inf),
    ("float8", "-Infinity", -math.inf),
    ("numeric", "1.50", Decimal("1.50")),
    ("numeric", "0.0000000000", Decimal("0E-10")),
    ("numeric", "-Infinity", Decimal("-Infinity")),
    ("numeric", "9" * 5000 + "." + "1" * 5000, Decimal("9" * 5000 + "." + "1" * 5000)),
    ("bytea", "\\x", b""),
    ("bytea", "\\x00ff", b"\x00\xff"),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    ("date", "0001-01-01", date.min),
    ("date", "9999-12-31", date.max),
    ("time", "21:36:08.12", time(21, 36, 8, 120_000)),
    ("timestamp", "2026-11-15 21:36:08.000001", datetime(2026, 11, 15, 21, 36, 8, 1)),
    ("timestamptz", "2026-11-15 21:36:08.12+00", datetime(2026, 11, 15, 21, 36, 8, 120_000, UTC)),
    ("timestamptz", "0001-01-01 00:00:00+00", datetime(1, 1, 1, tzinfo=UTC)),
    ("_int4", "{}", []),
    ("_int4", "{1,NULL,3}", [1, None, 3]),
    ("_int4", "{{1,2},{3,NULL}}", [[1, 2], [3, None]]),
    ("_text", '{a,"b c",NULL,"NULL",""}', ["a", "b c", None, "NULL", ""]),
    ("_bytea", '{"\\\\x01"}', [b"\x01"]),
    ("_box", "{(1,1),(0,0);(2,2),(1,1)}", ["(1,1),(0,0)", "(2,2),(1,1)"]),
    ("_date", "{infinity,2026-01-01}", ["infinity", date(2026, 1, 1)]),
    ("int2vector", "1 2 3", [1, 2, 3]),
    ("oidvector", "", []),
    ("_int2vector", '{"1 2",3}', ["1 2", "3"]),
    ("_names", '{"{a,b}","{}"}', ["{a,b}", "{}"]),
    ("int4range", "[1,10)", Range(1, 10)),
    ("int4range", "empty", Range(empty=True)),
    ("int4range", "(,)", Range(None, None, "()")),
    ("tsrange", '["2026-01-01 00:00:00",infinity]', Range(datetime(2026, 1, 1), "infinity", "[]")),
    ("labels", '["","a,b"]', Range("", "a,b", "[]")),
    ("int4multirange", "{}", Multirange()),
    ("int4multirange", "{[1,3),[5,)}", Multirange([Range(1, 3), Range(5, None)])),
    ("_int4range", '{"[1,3)",empty}', [Range(1, 3), Range(empty=True)]),
    ("pair", '(1,"{a,""b c""}",)', {"number": 1, "tags": ["a", "b c"], "label": None}),
    ("nothing", "()", {}),
    ("mood", "so so", "so so"),
]

# Text that is a good value for the server, and more than Python's type can say.
STAYS_TEXT = [
    ("date", "infinity"),
    ("date", "-infinity"),
    ("date", "0044-03-15 BC"),
    ("date", "10000-01-01"),
    ("date", "5874897-12-31"),
    ("time", "24:00:00"),
    ("timestamp", "infinity"),
    ("timestamp", "294276-12-31 23:59:59.999999"),
    ("timestamp", "0044-03-15 12:00:00 BC"),
    ("timestamptz", "-infinity"),
    ("timestamptz", "4713-01-01 00:00:00+00 BC"),
    ("timestamptz", "10000-01-01 00:00:00.5+00"),
    ("timetz", "12:00:00+05:30"),
    ("interval", "P1Y2M3DT4H5M6.789S"),
    ("json", '{"a": null}'),
    ("jsonb", "null"),
    ("money", "$1,234.50"),
    ("inet", "10.0.0.1/8"),
    ("bit", "0101"),
    ("char", "\\303"),
    ("point", "(1,2)"),
    ("tsvector", "'a':1 'b':2"),
    ("_int4", "[0:1]={1,2}"),
    ("pair", "(1,{},x,new)"),
    ("nothing", "(1)"),
]

MALFORMED = [
    *(("bool", text) for text in ("", "true", "T", "1")),
    *(("int4", text) for text in ("", "abc", "1_000", " 1", "01", "+1", "2147483648", "1.0", "٣", "9" * 5000)),
    *(("oid", text) for text in ("-1", "4294967296")),
    *(("float8", text) for text in ("", "x", "nan", "1_0", "0x1p3", "1e", " 1")),
    *(("numeric", text) for text in ("", "x", "sNaN", "1_0", "1e5", "٣", ".5")),
    *(("bytea", text) for text in ("", "abc", "\\x1", "\\xzz", "\\x 00", "\\xé")),
    *(
        ("uuid", text)
        for text in ("", "x", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}", "a0eebc99_9c0b-4ef8-bb6d-6bb9bd380a11")
    ),
    *(("date", text) for text in ("", "x", "2026-02-30", "2026-W01-1", "20260101", "0000-01-01", "Infinity")),
    *(("time", text) for text in ("", "x", "25:00:00", "12:00:00+00", "120000")),
    *(("timestamp", text) for text in ("", "x", "2026-01-01", "2026-01-01 00:00:00+00", "2026-02-30 00:00:00")),
    *(("timestamptz", text) for text in ("", "x", "2026-01-01 00:00:00", "2026-01-01T00:00:00+00")),
    *(("_int4", text) for text in ("", "{", "{x}", "{1,x}", "[0:0]={x}", "{1.5}")),
    *(("int2vector", text) for text in ("x", "1,2", "99999")),
    *(("_int2vector", text) for text in ('{"1 x"}', "{a}")),
    *(("int4range", text) for text in ("", "[1,x)", "[1,2", "1")),
    *(("int4multirange", text) for text in ("", "{[1,x)}", "{empty}")),
    *(("pair", text) for text in ("", "(", "(1,{},", "1,{},")),
]


@pytest.mark.parametrize(("name", "text", "value"), EXAMPLES)
def test_text_becomes_the_value_and_the_value_the_text(name, text, value):
    read = to_python(TYPES, OIDS[name])(text)
    assert (read, type(read)) == (value, type(value))
    assert to_text(TYPES, OIDS[name])(read) == text


@pytest.mark.parametrize(("name", "text"), STAYS_TEXT)
def test_what_python_cannot_hold_exactly_stays_the_servers_text(name, text):
    assert to_python(TYPES, OIDS[name])(text) == text
    assert to_text(TYPES, OIDS[name])(text) == text


@pytest.mark.parametrize(("name", "text"), MALFORMED)
def test_malformed_text_is_a_decode_error(name, text):
    with pytest.raises(DecodeError):
        to_python(TYPES, OIDS[name])(text)


@pytest.mark.parametrize("text", ["(x,{},)", "(1,{,)", "(1,{})", "(1,{},a,b)"])
def test_a_composite_with_other_fields_than_the_registry_knows_stays_the_servers_text(text):
    assert to_python(TYPES, PAIR)(text) == text
    assert to_text(TYPES, PAIR)(text) == text


@pytest.mark.parametrize("name", ["float4", "float8", "numeric"])
def test_not_a_number_is_a_value(name):
    value = to_python(TYPES, OIDS[name])("NaN")
    assert str(value).lower() == "nan"
    assert to_text(TYPES, OIDS[name])(value) == "NaN"


@pytest.mark.parametrize(
    ("name", "value"),
    [("int4", True), ("int4", 1.5), ("bool", 1), ("text", 1), ("date", 1), ("_int4", (1,)), ("pair", [1]), ("bytea", 1)],
)
def test_value_of_another_type_has_no_text(name, value):
    with pytest.raises(TypeError):
        to_text(TYPES, OIDS[name])(value)


@given(st.floats())
def test_float_keeps_every_bit(value):
    read = to_python(TYPES, OIDS["float8"])(to_text(TYPES, OIDS["float8"])(value))
    # The text tells 0 and -0 apart, and NaN is equal to itself.
    assert str(read) == str(value)


@given(st.decimals(allow_nan=False))
def test_numeric_keeps_every_digit(value):
    text = to_text(TYPES, OIDS["numeric"])(value)
    assert to_python(TYPES, OIDS["numeric"])(text) == value


@given(st.datetimes(timezones=st.just(UTC)) | st.datetimes())
def test_timestamp_keeps_every_microsecond(value):
    name = "timestamptz" if value.tzinfo else "timestamp"
    text = to_text(TYPES, OIDS[name])(value)
    assert to_python(TYPES, OIDS[name])(text) == value
    assert not text.endswith(":00+00:00")


@given(st.lists(st.lists(st.binary() | st.none(), min_size=2, max_size=2), min_size=1))
def test_array_of_two_dimensions_keeps_its_elements(value):
    text = to_text(TYPES, OIDS["_bytea"])(value)
    assert to_python(TYPES, OIDS["_bytea"])(text) == value


@given(st.builds(dict, number=st.integers(-(2**31), 2**31 - 1) | st.none(), tags=st.lists(st.text()), label=st.text()))
def test_composite_keeps_its_fields(value):
    assert to_python(TYPES, PAIR)(to_text(TYPES, PAIR)(value)) == value


@given(st.sampled_from(sorted(TYPES)), st.text(st.sampled_from('0123456789-+:., TZBCeinfty{}[]()"\\xNaULtrue'), max_size=30))
def test_any_text_is_a_value_or_a_decode_error(oid, text):
    try:
        value = to_python(TYPES, oid)(text)
    except DecodeError:
        return
    assert isinstance(to_text(TYPES, oid)(value), str)
