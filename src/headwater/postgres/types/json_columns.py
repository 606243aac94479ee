"""The server's text to JSON fragments, a column at a time: the same as `to_json` gives for each value.

The usual text of a type is recognised and rewritten by Arrow; what is not of the usual form goes through `to_json`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.postgres.types.json_form import Fragment, to_json
from headwater.postgres.types.registry import Kind, Types

Rewrite: TypeAlias = Callable[[pa.StringArray], pa.StringArray]

# What JSON has to escape in a string.
_SPECIAL = r'[\x00-\x1f"\\]'
# There is no year 0, and which months have more than 28 days is left to those who know.
_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DATE = rf"{_YEAR}-(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"


@dataclass(frozen=True, slots=True)
class _Usual:
    """The form that most values of a type have, and what becomes of those."""

    pattern: str
    rewrite: Rewrite


def to_json_column(texts: pa.StringArray, types: Types, oid: int) -> pa.StringArray:
    """A fragment for each text, NULL where it is NULL; raises `DecodeError` for text that is no value of the type."""
    type_, _ = types.resolve(oid)
    is_text = not type_.is_list and type_.kind is not Kind.COMPOSITE
    usual = _USUAL.get(type_.builtin_name) if is_text else None
    if usual is not None:
        return _with_unusual(
            texts, pc.match_substring_regex(texts, rf"\A(?:{usual.pattern})\z"), usual.rewrite, to_json(types, oid)
        )
    if is_text and type_.builtin_name not in _CHECKED:
        return _strings(texts, to_json(types, oid))
    write = to_json(types, oid)
    return pa.array([None if text is None else write(text) for text in texts.to_pylist()], pa.string())


def _strings(texts: pa.StringArray, write: Fragment) -> pa.StringArray:
    if not _has_special(texts):
        return _quoted(texts)
    return _with_unusual(texts, pc.invert(pc.match_substring_regex(texts, _SPECIAL)), _quoted, write)


def _has_special(texts: pa.StringArray) -> bool:
    """Whether something in the column has to be escaped, by a glance at its bytes."""
    if not len(texts):
        return False
    _, offsets, data = texts.buffers()
    if data is None:
        return False
    bounds = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    raw = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
    return bool(((raw < 0x20) | (raw == ord('"')) | (raw == ord("\\"))).any())


def _with_unusual(texts: pa.StringArray, is_usual: pa.BooleanArray, rewrite: Rewrite, write: Fragment) -> pa.StringArray:
    """The usual values rewritten together, the others one by one."""
    unusual = pc.invert(pc.fill_null(is_usual, True))
    if not pc.any(unusual).as_py():
        return rewrite(texts)
    written = pa.array([write(text) for text in texts.filter(unusual).to_pylist()], pa.string())
    return pc.replace_with_mask(rewrite(texts), unusual, written)


def _quoted(texts: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _as_is(texts: pa.StringArray) -> pa.StringArray:
    return texts


def _bools(texts: pa.StringArray) -> pa.StringArray:
    return pc.if_else(pc.equal(texts, "t"), "true", "false")


def _timestamps(texts: pa.StringArray) -> pa.StringArray:
    return _quoted(pc.replace_substring(texts, " ", "T", max_replacements=1))


def _timestamps_utc(texts: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise('"', pc.replace_substring(texts, " ", "T", max_replacements=1), ':00"', "")


_INTEGER: Final = _Usual(r"-?(?:0|[1-9][0-9]*)", _as_is)
_FLOAT: Final = _Usual(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?", _as_is)
_USUAL: Final[Mapping[str, _Usual]] = MappingProxyType(
    {
        **dict.fromkeys(("int2", "int4", "int8", "oid", "xid", "cid", "xid8"), _INTEGER),
        **dict.fromkeys(("float4", "float8"), _FLOAT),
        "numeric": _Usual(r"-?[0-9]+(?:\.[0-9]+)?", _quoted),
        "bool": _Usual("t|f", _bools),
        "date": _Usual(_DATE, _quoted),
        "time": _Usual(_TIME, _quoted),
        "timestamp": _Usual(f"{_DATE} {_TIME}", _timestamps),
        "timestamptz": _Usual(f"{_DATE} {_TIME}\\+00", _timestamps_utc),
        "uuid": _Usual("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", _quoted),
    }
)
# Types whose text is looked at value by value before it goes on as a string.
_CHECKED: Final = frozenset({"bytea"})
