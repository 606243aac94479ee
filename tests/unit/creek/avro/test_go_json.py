"""JSON objects as Go writes them, and everything else as the server does."""

import json
from decimal import Decimal
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.creek.avro.go_json import go_json, go_number
from headwater.errors import DecodeError


def one(text: str) -> str:
    return str(go_json(pa.array([text]))[0].as_py(), "utf-8")


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("{}", "{}"),
        (' { "b" : 1, "a": [1, null, true] } ', '{"a":[1,null,true],"b":1}'),
        ('{"a":1,"a":2}', '{"a":2}'),
        ('{"Z":1,"a":1,"é":1,"😀":1,"\uff5a":1}', '{"Z":1,"a":1,"é":1,"\uff5a":1,"😀":1}'),
        ('{"html":"<b>&</b>"}', '{"html":"\\u003cb\\u003e\\u0026\\u003c/b\\u003e"}'),
        ('{"<":{">":"&"}}', '{"\\u003c":{"\\u003e":"\\u0026"}}'),
        ('{"s":"\u2028\u2029"}', '{"s":"\\u2028\\u2029"}'),
        ('{"s":"\\u00e9\\/\\u0041"}', '{"s":"é/A"}'),
        ('{"s":"\\b\\f\\n\\r\\t\\u0001\\u007f\\"\\\\"}', '{"s":"\\b\\f\\n\\r\\t\\u0001\x7f\\"\\\\"}'),
        ('{"s":"\\u0000"}', '{"s":"\\u0000"}'),
        ('{"s":"\\ud83d\\ude00"}', '{"s":"😀"}'),
        ('{"n":1.0,"m":1e2}', '{"m":100,"n":1}'),
        ('{"n":"1.0e5"}', '{"n":"1.0e5"}'),
    ],
)
def test_objects_are_written_as_go_does(text, written):
    assert one(text) == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("0", "0"),
        ("-0", "-0"),
        ("-0.0", "-0"),
        ("1.50", "1.5"),
        ("0.1", "0.1"),
        ("-12.25", "-12.25"),
        ("1e5", "100000"),
        ("1E+2", "100"),
        ("1e20", "100000000000000000000"),
        ("1e21", "1e+21"),
        ("123e19", "1.23e+21"),
        ("0.000001", "0.000001"),
        ("0.00012", "0.00012"),
        ("0.0001", "0.0001"),
        ("0.00009", "0.00009"),
        ("0.0", "0"),
        ("123456789012345.6", "123456789012345.6"),
        ("1.000000000000000000000", "1"),
        ("0.0000001", "1e-7"),
        ("1.5e-9", "1.5e-9"),
        ("-2.5e-10", "-2.5e-10"),
        ("5e-324", "5e-324"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("9007199254740992", "9007199254740992"),
        ("12345678901234567000", "12345678901234567000"),
        ("1000000000000000000000", "1e+21"),
    ],
)
def test_numbers_are_the_shortest_text_of_a_float(text, written):
    assert go_number(text) == written
    assert one(f'{{"n":{text}}}') == f'{{"n":{written}}}'


@pytest.mark.parametrize(
    "text",
    [
        "9007199254740993",
        "0.1000000000000000055",
        "1e400",
        "-1e400",
        "1e-400",
        "1152921504606846976",
        "3.14159265358979323846",
    ],
)
def test_a_number_that_a_float_would_change_keeps_its_digits(text):
    assert one(f'{{"n":{text}}}') == f'{{"n":{text}}}'


def test_a_number_of_more_digits_than_python_reads_at_once_keeps_them():
    digits = "9" * 6000
    assert one(f'{{"n":{digits}}}') == f'{{"n":{digits}}}'


@pytest.mark.parametrize("text", ["null", "1.0", '"x"', "[]", "[1, 2]", '[{"b":1, "a":1}]', "true", " null "])
def test_what_is_no_object_is_the_servers_text(text):
    assert one(text) == text


def test_half_of_a_surrogate_pair_stays_an_escape():
    assert one('{"s":"a\\ud800b","\\udfff":1}') == '{"s":"a\\ud800b","\\udfff":1}'


def test_an_object_that_is_nested_without_end_is_the_servers_text():
    text = '{"a":' * 100_000 + "1" + "}" * 100_000
    assert one(text) == text


def test_null_stays_and_malformed_text_is_refused():
    assert go_json(pa.array([None, "{}"], pa.string())).to_pylist() == [None, b"{}"]
    with pytest.raises(DecodeError, match="json"):
        go_json(pa.array(['{"a":']))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.booleans())
def test_no_value_is_lost_and_keys_are_in_order(value, ensure_ascii):
    text = json.dumps(value, ensure_ascii=ensure_ascii)
    written = one(text)
    exact = partial(json.loads, parse_float=Decimal, parse_int=Decimal)
    assert exact(written) == exact(text)
    assert list(json.loads(written)) == sorted(value)
    assert not set("<>&\u2028\u2029") & set(written)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_is_written_with_an_exponent_only_far_from_one(number):
    written = go_number(repr(number))
    assert float(written) == number
    assert ("e" in written) == (number != 0 and not 1e-6 <= abs(number) < 1e21)
