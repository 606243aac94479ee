"""JSON as Go writes it, which is what Creek makes of a json or jsonb value that is an object.

Keys in the order of their bytes, the last of equal ones kept; no blanks; `<`, `>`, `&`, U+2028 and U+2029 escaped; numbers
as the shortest text of a 64-bit float. A number that a float cannot hold keeps its digits, and any value that is no object,
which Creek drops, is the server's text.
"""

import json
import re
from decimal import Decimal, InvalidOperation
from json.encoder import encode_basestring
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headwater.postgres.types.malformed import malformed

# What may be a number that Python and Go write differently: many digits, an exponent, a zero with sign. Fractions are looked
# at one by one; those in strings do no harm.
_NUMBER = r"[\[:,\s]-?[0-9]"
_UNUSUAL_NUMBER: Final = rf"{_NUMBER}{{16}}|{_NUMBER}+(?:\.[0-9]+)?[eE]|[\[:,\s]-0(?:[^.0-9]|\.0*[^0-9])"
# What Go escapes and Python does not, itself or as an escape.
_UNUSUAL_TEXT: Final = "[<>&\u2028\u2029]|\\\\u"
_ESCAPES: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_ESCAPED = re.compile("[<>&\u2028\u2029]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_OBJECT: Final = r"\A[ \t\r\n]*\{"
# Go turns to exponents from here on, and below there; Python already here.
_LARGE, _SMALL = 1e21, 1e-6
_SMALL_IN_PYTHON = 1e-4
# A number of so many characters, one of them the point, has no more digits than any float can hold.
_SHORT = 16


def go_json(texts: pa.StringArray) -> pa.BinaryArray:
    """Each value as Creek writes it; NULL stays."""
    is_object = pc.match_substring_regex(texts, _OBJECT)
    found = texts.cast(pa.binary())
    if not pc.any(is_object).as_py():
        return found
    objects = texts.filter(is_object)
    unusual = (pc.match_substring_regex(objects, pattern).to_pylist() for pattern in (_UNUSUAL_NUMBER, _UNUSUAL_TEXT))
    written = [_object(*each) for each in zip(objects.to_pylist(), *unusual, strict=True)]
    return pc.replace_with_mask(found, pc.fill_null(is_object, False), pa.array(written, pa.binary()))


def _object(text: str, has_unusual_numbers: bool, has_unusual_text: bool) -> bytes:
    try:
        written = _written(_read_digits(text)) if has_unusual_numbers else _write(_read(text))
    except _Unusual:
        return _object(text, True, has_unusual_text)
    except RecursionError:
        # Deeper than Go reads, too.
        return text.encode()
    except ValueError as error:
        raise malformed("json", text) from error
    return _escaped(written) if has_unusual_text else written.encode()


def _escaped(written: str) -> bytes:
    escaped = _ESCAPED.sub(lambda found: _ESCAPES[found[0]], written)
    # Half of a pair of surrogates is nothing that UTF-8 could tell, but an escape.
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped).encode()


class _Unusual(Exception):
    """A number that Python does not write as Go does."""


def _short_float(text: str) -> float:
    number = float(text)
    if len(text) > _SHORT or abs(number) < _SMALL_IN_PYTHON:
        raise _Unusual
    return int(number) if number == int(number) else number


class _Number(str):
    """A number as it was written."""

    __slots__ = ()


_read = json.JSONDecoder(parse_float=_short_float).decode
_read_digits = json.JSONDecoder(parse_float=_Number, parse_int=_Number).decode
_write = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, check_circular=False).encode


def _written(value: object) -> str:
    if isinstance(value, _Number):
        return go_number(value)
    if isinstance(value, str):
        return encode_basestring(value)
    if isinstance(value, dict):
        return "{" + ",".join(f"{encode_basestring(key)}:{_written(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    return json.dumps(value)


def go_number(text: str) -> str:
    """A number as Go writes the float that it reads from it, unless that is another number."""
    number = float(text)
    written = _float(number) if abs(number) != float("inf") else ""
    try:
        return str(written) if written and Decimal(written) == Decimal(text) else str(text)
    except InvalidOperation:
        return str(text)


def _float(number: float) -> str:
    """The shortest decimals that give the float again, in Go's form."""
    if number == int(number) and abs(number) < 2**53:
        return "-0" if number == 0 and str(number)[0] == "-" else str(int(number))
    sign, digits, exponent = Decimal(repr(number)).as_tuple()
    shown = "".join(map(str, digits)).rstrip("0")
    power = len(digits) + int(exponent)
    minus = "-" if sign else ""
    if _SMALL <= abs(number) < _LARGE:
        if power <= 0:
            return f"{minus}0.{'0' * -power}{shown}"
        if len(shown) <= power:
            return minus + shown.ljust(power, "0")
        return f"{minus}{shown[:power]}.{shown[power:]}"
    point = "." if len(shown) > 1 else ""
    return f"{minus}{shown[0]}{point}{shown[1:]}e{power - 1:+}"
