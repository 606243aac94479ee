"""Text of arrays, composites and ranges: what is put together comes apart again, and nothing malformed passes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import DecodeError
from headwater.postgres.types.literals import (
    RangeText,
    join_array,
    join_multirange,
    join_range,
    join_row,
    split_array,
    split_multirange,
    split_range,
    split_row,
)

# Characters that mean something in one of the forms, and some that mean nothing.
AWKWARD = st.text(st.sampled_from('{}[](),;"\\ =:\t\n\x1fNUuLl\u00a0\u2003é😀a1'), max_size=8)
PART = AWKWARD | st.none()
DELIMITER = st.sampled_from(",;")


@st.composite
def arrays(draw):
    """Lists as an array can be: of one to four dimensions, each level of one length."""
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    level: st.SearchStrategy[list[Any]] = st.lists(PART, min_size=shape[-1], max_size=shape[-1])
    for length in reversed(shape[:-1]):
        level = st.lists(level, min_size=length, max_size=length)
    return draw(level)


ranges = st.builds(RangeText, PART, PART, st.sampled_from(["[]", "[)", "(]", "()"]))


@given(arrays(), DELIMITER)
def test_array_comes_apart_as_it_was_put_together(values, delimiter):
    assert split_array(join_array(values, delimiter, str), delimiter, str) == values


@given(st.lists(PART, min_size=1))
def test_composite_comes_apart_as_it_was_put_together(fields):
    assert split_row(join_row(fields)) == fields


@given(ranges)
def test_range_comes_apart_as_it_was_put_together(range_):
    assert split_range(join_range(range_)) == range_


@given(st.lists(ranges))
def test_multirange_comes_apart_as_it_was_put_together(parts):
    assert split_multirange(join_multirange(parts)) == parts


@given(arrays(), st.lists(PART, min_size=1))
def test_array_in_a_composite_in_an_array_keeps_its_text(values, fields):
    inner = join_row([join_array(values, ",", str), *fields])
    assert split_array(join_array([inner], ",", str), ",", str) == [inner]
    assert split_row(inner)[0] == join_array(values, ",", str)


@given(AWKWARD)
def test_any_other_text_is_a_decode_error_or_a_value(text):
    for split in (lambda text: split_array(text, ",", str), split_row, split_range, split_multirange):
        try:
            split(text)
        except DecodeError:
            continue


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{}", []),
        ("{NULL}", [None]),
        ('{"NULL"}', ["NULL"]),
        ('{""}', [""]),
        ("{a,b}", ["a", "b"]),
        (r'{"a \"b\" \\c"}', [r'a "b" \c']),
        ("{{1,NULL},{3,4}}", [["1", None], ["3", "4"]]),
        ("[1:2]={1,2}", None),
        ("[0:0][-3:-2]={{1,2}}", None),
    ],
)
def test_servers_text_of_an_array(text, values):
    assert split_array(text, ",", str) == values


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "}", "1,2", "{1,2", "1,2}", "{1,}", "{,}", "{1}}", "{{1}", "{{}}", "{1}{2}", "{{1},2}", "{{1},{2,3}}"),
        *('{"a}', '{"a"b}', '{a"b"}', "{a\\}", "[1:1]", "[1]={1}", "[0:0]={", "[1:1]=[1:1]={1}", "{" * 7 + "1" + "}" * 7),
        "{" * 10_000,
    ],
)
def test_malformed_array_is_a_decode_error(text):
    with pytest.raises(DecodeError):
        split_array(text, ",", str)


def test_malformed_element_is_found_also_behind_lower_bounds():
    with pytest.raises(ValueError, match="x"):
        split_array("[0:0]={x}", ",", int)


@pytest.mark.parametrize(
    ("text", "fields"),
    [("()", [None]), ('("")', [""]), ("(,)", [None, None]), ('(1,"a b","say ""x"" \\\\")', ["1", "a b", 'say "x" \\'])],
)
def test_servers_text_of_a_composite(text, fields):
    assert split_row(text) == fields


@pytest.mark.parametrize("text", ["", "(", ")", "1,2", "(1", "1)", "(1))", "(1)x", '("a)', '("a"b)', "(a(b)", "(a\\)"])
def test_malformed_composite_is_a_decode_error(text):
    with pytest.raises(DecodeError):
        split_row(text)


def test_servers_text_of_ranges():
    assert split_range("empty") is None
    assert split_range("(,)") == RangeText(None, None, "()")
    assert split_range('["2026-01-01 00:00:00",)') == RangeText("2026-01-01 00:00:00", None, "[)")
    assert split_multirange("{}") == []
    assert split_multirange("{(,1),[3,4)}") == [RangeText(None, "1", "()"), RangeText("3", "4", "[)")]


@pytest.mark.parametrize("text", ["", "1,2", "[1,2", "[1 ,2)", "[1,2)x", "[1)", "[1,2,3)", '["1,2)', "Empty"])
def test_malformed_range_is_a_decode_error(text):
    with pytest.raises(DecodeError):
        split_range(text)


@pytest.mark.parametrize(
    "text", ["", "{", "}", "[1,2)", "{[1,2)", "{[1,2),}", "{,[1,2)}", "{[1,2)[3,4)}", "{empty}", "{[1,2)}x"]
)
def test_malformed_multirange_is_a_decode_error(text):
    with pytest.raises(DecodeError):
        split_multirange(text)
