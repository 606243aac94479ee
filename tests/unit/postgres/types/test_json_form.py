"""Text to JSON: valid, without loss, and as PostgreSQL's own to_json has it where that loses nothing."""

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import DecodeError
from headwater.postgres.types import Field, Kind, PgType, Types, to_json

PAIR, NAMES, NAMES_ARRAY, NOTHING = range(60_000, 60_004)

TYPES = Types.builtin().extended(
    [
        PgType(
            oid=PAIR,
            schema="public",
            name="pair",
            kind=Kind.COMPOSITE,
            fields=(Field('the "number"', 1700), Field("tags", 1009)),
        ),
        PgType(oid=NAMES, schema="public", name="names", kind=Kind.DOMAIN, base=1009),
        PgType(oid=NAMES_ARRAY, schema="public", name="_names", kind=Kind.ARRAY, element=NAMES),
        PgType(oid=NOTHING, schema="public", name="nothing", kind=Kind.COMPOSITE),
    ]
)
OIDS = {type_.name: type_.oid for type_ in TYPES.values()}

EXAMPLES = [
    ("bool", "t", "true"),
    ("bool", "f", "false"),
    ("int8", "-9223372036854775808", "-9223372036854775808"),
    ("xid8", "18446744073709551615", "18446744073709551615"),
    ("float8", "1e-05", "1e-05"),
    ("float8", "-0", "-0"),
    ("float4", "NaN", '"NaN"'),
    ("float8", "-Infinity", '"-Infinity"'),
    ("numeric", "1.50", '"1.50"'),
    ("numeric", "NaN", '"NaN"'),
    ("json", "null", '"null"'),
    ("jsonb", '{"a": 1}', r'"{\"a\": 1}"'),
    ("text", "tab\tand é", r'"tab\tand é"'),
    ("bytea", "\\x00ff", r'"\\x00ff"'),
    ("date", "2026-11-15", '"2026-11-15"'),
    ("date", "0044-03-15 BC", '"0044-03-15 BC"'),
    ("date", "infinity", '"infinity"'),
    ("time", "24:00:00", '"24:00:00"'),
    ("timestamp", "2026-11-15 21:36:08.12", '"2026-11-15T21:36:08.12"'),
    ("timestamp", "0044-03-15 00:00:00 BC", '"0044-03-15T00:00:00 BC"'),
    ("timestamp", "infinity", '"infinity"'),
    ("timestamptz", "2026-11-15 21:36:08.12+00", '"2026-11-15T21:36:08.12+00:00"'),
    ("timestamptz", "0044-03-15 00:00:00+00 BC", '"0044-03-15T00:00:00+00:00 BC"'),
    ("timestamptz", "2026-11-15 21:36:08-03", '"2026-11-15T21:36:08-03:00"'),
    ("timestamptz", "2026-11-15 21:36:08+05:30", '"2026-11-15T21:36:08+05:30"'),
    ("timestamptz", "10000-01-01 00:00:00+00", '"10000-01-01T00:00:00+00:00"'),
    ("timestamptz", "-infinity", '"-infinity"'),
    ("_int4", "{}", "[]"),
    ("_int4", "{{1,NULL},{3,4}}", "[[1,null],[3,4]]"),
    ("_int4", "[0:1]={1,2}", '"[0:1]={1,2}"'),
    ("_jsonb", '{"null",NULL,"{\\"a\\": 1}"}', r'["null",null,"{\"a\": 1}"]'),
    ("int2vector", "1 2", "[1,2]"),
    ("oidvector", "", "[]"),
    ("_int2vector", '{"1 2"}', '["1 2"]'),
    ("_names", '{"{a,b}"}', '["{a,b}"]'),
    ("int4range", "[1,10)", '"[1,10)"'),
    ("int4multirange", "{[1,3)}", '"{[1,3)}"'),
    ("pair", '(1.50,"{a,NULL}")', r'{"the \"number\"":"1.50","tags":["a",null]}'),
    ("pair", "(,)", r'{"the \"number\"":null,"tags":null}'),
    ("pair", "(1,{},new)", '"(1,{},new)"'),
    ("nothing", "()", "{}"),
]


@pytest.mark.parametrize(("name", "text", "fragment"), EXAMPLES)
def test_text_becomes_the_fragment(name, text, fragment):
    assert to_json(TYPES, OIDS[name])(text) == fragment
    json.loads(fragment)


@given(st.text())
def test_any_text_is_a_string_that_decodes_to_itself(text):
    assert json.loads(to_json(TYPES, OIDS["text"])(text)) == text


@given(st.decimals(allow_nan=False))
def test_numeric_keeps_every_digit(value):
    text = format(value, "f")
    assert Decimal(json.loads(to_json(TYPES, OIDS["numeric"])(text))) == value


@given(
    st.sampled_from(["bool", "int4", "float8", "numeric", "date", "timestamp", "timestamptz", "_int4", "pair", "_text"]),
    st.text(st.sampled_from('0123456789-+:., TZBCeinfty{}[]()"\\xNaULtrue'), max_size=30),
)
def test_any_text_is_valid_json_or_a_decode_error(name, text):
    try:
        fragment = to_json(TYPES, OIDS[name])(text)
    except DecodeError:
        return
    json.loads(fragment)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("bool", text) for text in ("", "true")),
        *(("int4", text) for text in ("", "abc", "01", "1.5", "null")),
        *(("float8", text) for text in ("", "x", "01", "1.", "NaNa")),
        *(("numeric", text) for text in ("", "x", '1"')),
        *(("date", text) for text in ("", '"', "2026-02-30")),
        *(("timestamp", text) for text in ("", "x", "2026-01-01 00:00:00+00")),
        *(("timestamptz", text) for text in ("", "x", "2026-01-01 00:00:00", "x+00")),
        *(("_int4", text) for text in ("", "{", "{x}")),
        *(("pair", text) for text in ("", "(", "(1,{}")),
    ],
)
def test_malformed_text_is_a_decode_error(name, text):
    with pytest.raises(DecodeError):
        to_json(TYPES, OIDS[name])(text)


@pytest.mark.parametrize("text", ["(x,{})", "(1,{)", "(1)", "(1,{},a)"])
def test_a_composite_with_other_fields_than_the_registry_knows_is_a_string_with_the_servers_text(text):
    assert json.loads(to_json(TYPES, PAIR)(text)) == text
