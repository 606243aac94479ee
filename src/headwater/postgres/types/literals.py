"""The server's text for values that hold other values (arrays, composites, ranges, multiranges): taken apart, put together.

Pure and without types: parts come out as text or None for NULL, and what is put together is quoted as the server does it.
Manual: "Array Input and Output Syntax", "Composite Type Input and Output Syntax", "Input/Output" of range types.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

from headwater.postgres.types.malformed import malformed

Convert: TypeAlias = Callable[[str], object]

# The text between quotes; possessive, because a quoted part has one reading only and must not be tried in others.
_BACKSLASHED = r'"((?:[^"\\]++|\\.)*+)"'
_DOUBLED = r'"((?:[^"\\]++|\\.|"")*+)"'

_ESCAPE = re.compile(r'\\(.)|""', re.DOTALL)
_FIELD = re.compile(rf"(?:{_DOUBLED}|([^\"\\(),]*+))([,)])", re.DOTALL)
_BOUND = rf"(?:{_DOUBLED}|([^\"\\(),\[\]\s]*+))"
_RANGE = re.compile(rf"([\[(]){_BOUND},{_BOUND}([\])])", re.DOTALL | re.ASCII)
_LOWER_BOUNDS = re.compile(r"(?:\[[+-]?[0-9]+:[+-]?[0-9]+\])+=")

_NEEDS_QUOTES_IN_ROW = re.compile(r'[\s"\\(),]|\A\Z', re.ASCII)
_NEEDS_QUOTES_IN_RANGE = re.compile(r'[\s"\\()\[\],]|\A\Z', re.ASCII)
# The server's own limit (MAXDIM); it also keeps a malformed text from nesting without end.
_MAX_DIMENSIONS = 6

_QUOTE_OR_BACKSLASH = re.compile(r'(["\\])')


class RangeText(NamedTuple):
    """A range that is not empty; a bound that is None is infinite."""

    lower: str | None
    upper: str | None
    bounds: str


def split_array(text: str, delimiter: str, convert: Convert) -> list[object] | None:
    """The elements, converted, as nested lists; None when a lower bound is not 1, which a list cannot tell."""
    if text[:1] == "[":
        prefix = _LOWER_BOUNDS.match(text)
        if prefix is None or text[prefix.end() :][:1] != "{":
            raise malformed("array", text)
        # Taken apart nonetheless, so that malformed elements do not pass.
        split_array(text[prefix.end() :], delimiter, convert)
        return None
    if text == "{}":
        return []
    if '"' in text or "\\" in text or "{" in text[1:] or "}" in text[:-1]:
        elements, end = _nested(text, 0, delimiter, convert)
        if end != len(text):
            raise malformed("array", text)
        return elements
    parts = text[1:-1].split(delimiter)
    if text[:1] != "{" or text[-1:] != "}" or "" in parts:
        raise malformed("array", text)
    return [None if part == "NULL" else convert(part) for part in parts]


def _nested(text: str, start: int, delimiter: str, convert: Convert, depth: int = 1) -> tuple[list[object], int]:
    """The list whose brace opens at `start`, and where it ends."""
    if text[start : start + 1] != "{" or depth > _MAX_DIMENSIONS:
        raise malformed("array", text)
    elements: list[object] = []
    element: object
    position, mark = start + 1, delimiter
    while mark == delimiter:
        if text[position : position + 1] == "{":
            element, position = _nested(text, position, delimiter, convert, depth + 1)
        else:
            found = _array_element(delimiter).match(text, position)
            if found is None:
                raise malformed("array", text)
            element, position = _converted(found[0], convert), found.end()
        elements.append(element)
        mark, position = text[position : position + 1], position + 1
    if mark != "}" or len({len(element) if isinstance(element, list) else -1 for element in elements}) != 1:
        raise malformed("array", text)
    return elements, position


@cache
def _array_element(delimiter: str) -> re.Pattern[str]:
    return re.compile(rf"{_BACKSLASHED}|[^\"\\{{}}{re.escape(delimiter)}]+", re.DOTALL)


def _converted(part: str, convert: Convert) -> object:
    if part[0] == '"':
        return convert(_unquoted(part[1:-1]))
    return None if part == "NULL" else convert(part)


def join_array(values: Sequence[object], delimiter: str, write: Callable[[object], str]) -> str:
    """Nested lists as an array; `write` gives an element's text."""
    needs_quotes = _array_quotes(delimiter)
    parts = []
    for value in values:
        if value is None:
            parts.append("NULL")
        elif isinstance(value, list):
            parts.append(join_array(value, delimiter, write))
        else:
            part = write(value)
            parts.append('"' + _QUOTE_OR_BACKSLASH.sub(r"\\\1", part) + '"' if needs_quotes.search(part) else part)
    return "{" + delimiter.join(parts) + "}"


@cache
def _array_quotes(delimiter: str) -> re.Pattern[str]:
    return re.compile(rf'[\s"\\{{}}{re.escape(delimiter)}]|\A(?:null)?\Z', re.ASCII | re.IGNORECASE)


def split_row(text: str) -> list[str | None]:
    """The fields of a composite; `()` is one NULL, and the caller knows when it is none."""
    fields: list[str | None] = []
    position, mark = 1, ","
    while mark == "," and (field := _FIELD.match(text, position)):
        quoted, bare, mark = field.groups()
        fields.append(_unquoted(quoted) if quoted is not None else bare or None)
        position = field.end()
    if text[:1] != "(" or mark != ")" or position != len(text):
        raise malformed("composite", text)
    return fields


def join_row(fields: Sequence[str | None]) -> str:
    """The text of a composite with these fields."""
    return "(" + ",".join("" if field is None else _quoted(field, _NEEDS_QUOTES_IN_ROW) for field in fields) + ")"


def split_range(text: str) -> RangeText | None:
    """The bounds of a range, None for the empty one."""
    if text == "empty":
        return None
    found = _RANGE.fullmatch(text)
    if found is None:
        raise malformed("range", text)
    return _range_of(found)


def join_range(range_: RangeText | None) -> str:
    """The text of a range, or of the empty one."""
    if range_ is None:
        return "empty"
    lower = "" if range_.lower is None else _quoted(range_.lower, _NEEDS_QUOTES_IN_RANGE)
    upper = "" if range_.upper is None else _quoted(range_.upper, _NEEDS_QUOTES_IN_RANGE)
    return f"{range_.bounds[0]}{lower},{upper}{range_.bounds[1]}"


def split_multirange(text: str) -> list[RangeText]:
    """The ranges of a multirange; it never holds an empty one."""
    ranges: list[RangeText] = []
    position = 1
    while found := _RANGE.match(text, position):
        ranges.append(_range_of(found))
        position = found.end() + 1
        if text[position - 1 : position] != ",":
            break
    if text != "{}" and (text[:1] != "{" or not ranges or text[position - 1 :] != "}"):
        raise malformed("multirange", text)
    return ranges


def join_multirange(ranges: Sequence[RangeText]) -> str:
    """The text of a multirange."""
    return "{" + ",".join(map(join_range, ranges)) + "}"


def _range_of(found: re.Match[str]) -> RangeText:
    opened, quoted_lower, lower, quoted_upper, upper, closed = found.groups()
    return RangeText(
        _unquoted(quoted_lower) if quoted_lower is not None else lower or None,
        _unquoted(quoted_upper) if quoted_upper is not None else upper or None,
        opened + closed,
    )


def _unquoted(text: str) -> str:
    return _ESCAPE.sub(lambda escape: escape[1] or '"', text) if "\\" in text or '"' in text else text


def _quoted(text: str, needs_quotes: re.Pattern[str]) -> str:
    return '"' + _QUOTE_OR_BACKSLASH.sub(r"\1\1", text) + '"' if needs_quotes.search(text) else text
