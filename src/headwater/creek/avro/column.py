"""A column of a table as a field of its record: branches of the union, values, NULLs, and what the schema cannot hold."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.creek.avro.arrays import Elements, blocks, elements_of
from headwater.creek.avro.binary import Bytes, Head, Ints, Mask, Piece, fixed, join, longs, packed, strings
from headwater.creek.avro.go_json import go_json
from headwater.creek.schema import RowField
from headwater.creek.types import ColumnType, Form
from headwater.errors import DecodeError
from headwater.postgres.types import Types, from_text
from headwater.postgres.types.malformed import malformed
from headwater.postgres.types.scalars import NUMERIC_TEXT

# Up to so many digits, the units of a decimal fit into 64 bits.
_LONG_DIGITS: Final = 18
_SYMBOL_INFINITY, _SYMBOL_NEGATIVE = 0, 1
# An integer of 8 bytes needs one more byte of a decimal for each of these that it reaches, with or without sign.
_BYTE_STEPS: Final = np.array([1 << 8 * bytes_ - 1 for bytes_ in range(1, 8)], np.int64)


@dataclass(frozen=True, slots=True)
class Heads:
    """The byte that stands before a value of each branch; None where there is no such branch, or no union."""

    null: int | None = None
    value: int | None = None
    infinity: int | None = None
    string: int | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A field of each row as pieces; where `misfit` is set the schema cannot hold the value, and the pieces mean nothing."""

    pieces: list[Piece]
    misfit: Mask | None = None


@dataclass(frozen=True, slots=True)
class _Values:
    """Texts to be encoded, and before what: where one is not `present`, that is the head alone."""

    texts: pa.StringArray
    type: ColumnType
    head: Head
    infinity: int | None
    present: Mask | None
    types: Types


def encode_column(texts: pa.Array, field: RowField, types: Types, *, widened: bool = False) -> Column:
    """The field of each row. In the widened form, what would not fit is in its string branch, and there are no misfits."""
    if not field.is_nullable and texts.null_count:
        raise DecodeError(f"column {field.column!r} is part of the key, and has no value")
    texts = texts if pa.types.is_string(texts.type) else texts.cast(pa.string())
    heads = _heads(field, widened=widened)
    column = _encoded(texts, field.type, heads, types)
    if not widened or column.misfit is None:
        return column
    return Column([_with_strings(column, texts, heads.string)])


def _heads(field: RowField, *, widened: bool) -> Heads:
    branches = field.branches(widened=widened)
    return Heads(**{branch: 2 * index for index, branch in enumerate(branches)}) if len(branches) > 1 else Heads()


def _with_strings(column: Column, texts: pa.StringArray, head: int | None) -> pa.Array:
    """The column with the server's text in place of what does not fit."""
    misfit = pa.array(column.misfit)
    replaced = texts.filter(misfit)
    whole = join(column.pieces, len(texts))
    return pc.replace_with_mask(whole, misfit, join(strings(replaced, head), len(replaced)).cast(whole.type))


def _encoded(texts: pa.StringArray, type_: ColumnType, heads: Heads, types: Types) -> Column:
    present = None if not texts.null_count else np.asarray(pc.is_valid(texts).to_numpy(zero_copy_only=False))
    head: Head = heads.value
    if present is not None and heads.value is not None:
        head = np.where(present, np.uint8(heads.value), np.uint8(heads.null or 0))
    values = _Values(texts, type_, head, heads.infinity, present, types)
    return _array(values) if type_.is_array else _ENCODERS[type_.form](values)


def _none_null(array: pa.Array) -> pa.Array:
    return array.fill_null(0) if array.null_count else array


def _booleans(values: _Values) -> Column:
    array, _ = from_text(values.texts, values.types, values.type.oid)
    raw = (array.fill_null(False) if array.null_count else array).to_numpy(zero_copy_only=False)
    return Column([fixed(raw.astype(np.uint8).reshape(-1, 1), values.head, values.present)])


def _integers(values: _Values) -> Column:
    array, _ = from_text(values.texts, values.types, values.type.oid)
    numbers: Ints = _none_null(array).to_numpy(zero_copy_only=False).astype(np.int64)
    return Column([longs(numbers, values.head, values.present)])


def _floats(values: _Values) -> Column:
    array, _ = from_text(values.texts, values.types, values.type.oid)
    form, size = ("<f4", 4) if values.type.form is Form.FLOAT else ("<f8", 8)
    raw: Bytes = np.ascontiguousarray(_none_null(array).to_numpy(zero_copy_only=False).astype(form)).view(np.uint8)
    return Column([fixed(raw.reshape(-1, size), values.head, values.present)])


def _strings(values: _Values) -> Column:
    return Column(strings(values.texts, values.head, values.present))


def _json(values: _Values) -> Column:
    return Column(strings(go_json(values.texts), values.head, values.present))


def _instants(values: _Values) -> Column:
    """Days or microseconds; the infinities, which are the extremes of their storage in Arrow, are symbols of the enum."""
    array, rejected = from_text(values.texts, values.types, values.type.oid)
    storage = pa.int32() if values.type.form is Form.DATE else pa.int64()
    numbers: Ints = _none_null(array.view(storage)).to_numpy(zero_copy_only=False).astype(np.int64)
    head = values.head
    bound = 2 ** (storage.bit_width - 1)
    if len(numbers) and values.type.form is not Form.TIME and (numbers.max() == bound - 1 or numbers.min() == -bound):
        is_late, is_early = numbers == bound - 1, numbers == -bound
        head = np.where(is_late | is_early, np.uint8(values.infinity or 0), np.asarray(head, np.uint8))
        numbers[is_late], numbers[is_early] = _SYMBOL_INFINITY, _SYMBOL_NEGATIVE
    return Column([longs(numbers, head, values.present)], _marked(len(numbers), rejected))


def _decimals(values: _Values) -> Column:
    if values.type.precision > _LONG_DIGITS:
        return _long_decimals(values)
    array, rejected = from_text(values.texts, values.types, values.type.oid, values.type.typmod)
    # Of the two words of a decimal of Arrow's, the first holds all that 18 digits can tell.
    words = np.frombuffer(array.buffers()[1], "<i8", 2 * len(array), 16 * array.offset) if len(array) else np.zeros(0, "<i8")
    units = words[::2]
    if array.null_count:
        units = np.where(pc.is_valid(array).to_numpy(zero_copy_only=False), units, 0)
    return Column([_units(units, values.head, values.present)], _marked(len(units), rejected))


def _units(units: Ints, head: Head, present: Mask | None) -> pa.BinaryArray:
    """Integers as bytes with their number before them: big-endian two's complement, in as few bytes as Creek takes."""
    lead = 0 if head is None else 1
    sizes = np.searchsorted(_BYTE_STEPS, np.abs(units), side="right") + 1
    matrix = np.empty((len(units), lead + 9), np.uint8)
    if head is not None:
        matrix[:, 0] = head
    matrix[:, lead] = 2 * sizes
    matrix[:, lead + 1 :] = units.astype(">i8").view(np.uint8).reshape(-1, 8)
    shown = np.ones(matrix.shape, np.bool_)
    shown[:, lead + 1 :] = np.arange(8) >= 8 - sizes[:, None]
    if present is not None:
        shown[~present, lead:] = False
    return packed(matrix, shown)


def _long_decimals(values: _Values) -> Column:
    texts = values.texts.to_pylist()
    raw = [None if text is None else _long_units(text, values.type) for text in texts]
    rejected = [index for index, text in enumerate(texts) if text is not None and raw[index] is None]
    return Column(strings(pa.array(raw, pa.binary()), values.head, values.present), _marked(len(texts), rejected))


def _long_units(text: str, type_: ColumnType) -> bytes | None:
    """The units of a decimal of any length; None for what it cannot hold."""
    if not NUMERIC_TEXT.fullmatch(text):
        raise malformed("numeric", text)
    whole, _, fraction = text.partition(".")
    digits, rest = fraction[: type_.scale].ljust(type_.scale, "0"), fraction[type_.scale :]
    if whole[-1] > "9" or len(whole.lstrip("-0")) > type_.precision - type_.scale or rest.strip("0"):
        return None
    units = int(whole + digits)
    return units.to_bytes(units.bit_length() // 8 + 1, signed=True)


def _unbounded(values: _Values) -> Column:
    """Nothing fits but NULL."""
    present = np.ones(len(values.texts), np.bool_) if values.present is None else values.present
    return Column(strings(values.texts, values.head, values.present), present if present.any() else None)


def _array(values: _Values) -> Column:
    found = elements_of(values.texts)
    heads = Heads(value=0, infinity=2) if values.type.form.has_infinities else Heads()
    inner = _encoded(found.texts, _element(values.type), heads, values.types)
    misfit = _with_elements(found, inner.misfit)
    arrays = blocks(join(inner.pieces, len(found.texts)), found.bounds)
    end = np.zeros((len(values.texts), 0), np.uint8)
    lead: list[Piece] = [] if values.head is None else [fixed(end, values.head)]
    last: Piece = b"\0" if values.present is None else fixed(np.zeros((len(end), 1), np.uint8), None, values.present)
    return Column([*lead, arrays, last], misfit if misfit.any() else None)


def _element(type_: ColumnType) -> ColumnType:
    return ColumnType(type_.pg_type, type_.form, type_.oid, type_.typmod, False, type_.precision, type_.scale)


def _with_elements(found: Elements, misfit: Mask | None) -> Mask:
    """Which arrays do not fit: in themselves, or for one of their elements."""
    if misfit is None:
        return found.misfit
    counts = np.concatenate(([0], np.cumsum(misfit)))
    marked: Mask = found.misfit | (counts[found.bounds[1:]] > counts[found.bounds[:-1]])
    return marked


def _marked(count: int, rejected: tuple[int, ...] | list[int]) -> Mask | None:
    if not rejected:
        return None
    mask = np.zeros(count, np.bool_)
    mask[list(rejected)] = True
    return mask


_Encode: TypeAlias = Callable[[_Values], Column]
_ENCODERS: Final[dict[Form, _Encode]] = {
    Form.BOOLEAN: _booleans,
    Form.INT: _integers,
    Form.LONG: _integers,
    Form.FLOAT: _floats,
    Form.DOUBLE: _floats,
    Form.STRING: _strings,
    Form.UUID: _strings,
    Form.JSON: _json,
    Form.DECIMAL: _decimals,
    Form.NUMERIC: _unbounded,
    Form.DATE: _instants,
    Form.TIME: _instants,
    Form.TIMESTAMP: _instants,
}
