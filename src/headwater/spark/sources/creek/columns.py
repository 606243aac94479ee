"""Avro data of one schema decoded by columns, for volume: numpy over the raw buffer into Arrow texts. Pure.

Messages are walked in step, field by field, as vectors of places. What is rare, such as arrays, is read one by one by the
decoder of rows, which gives the same texts. Whatever does not look as it should raises `Odd`: the decoder of rows then says
which message it was, and why.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.creek.decode.binary import Read
from headwater.creek.decode.forms import TEXT
from headwater.creek.decode.rows import list_reader
from headwater.creek.decode.shape import Field, Kind, Node, Primitive, Record, Shape
from headwater.errors import MessageError

Ints: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

# Ten groups of seven bits hold any number of 64 bits.
_MOST_BITS = 70
# What a number may be read from behind the last message, before it is noticed that it is not there.
_PADDING = bytes(16)
_DAY_MICROSECONDS = 86_400_000_000
# The first and the last day that Arrow writes as PostgreSQL does: of the years 1 to 9999.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
# The digits of a number of eight bytes.
_LONG_BYTES = 8


class Odd(Exception):
    """Not all of it is as its schema says, or as vectors can take it."""


class Walk:
    """Some messages being read in step. `at` are the places where each goes on."""

    def __init__(self, data: bytes, starts: Ints, ends: Ints) -> None:
        self._data = data
        self._raw = np.frombuffer(data + _PADDING, np.uint8)
        self._buffer = pa.py_buffer(data)
        self.at, self._ends = starts.copy(), ends

    def __len__(self) -> int:
        return len(self.at)

    def of(self, index: Ints) -> "Walk":
        """Some of the messages, where they are now."""
        part = object.__new__(Walk)
        part._data, part._raw, part._buffer = self._data, self._raw, self._buffer
        part.at, part._ends = self.at[index], self._ends[index]
        return part

    def require_end(self) -> None:
        """Raise unless all messages have been read to their ends."""
        if (self.at != self._ends).any():
            raise Odd

    def byte(self) -> npt.NDArray[np.uint8]:
        found: npt.NDArray[np.uint8] = self._raw[self._within(self.at)]
        self.at = self.at + 1
        return found

    def longs(self) -> Ints:
        """Zigzag numbers of up to 64 bits."""
        first = self.byte()
        number = (first & 127).astype(np.uint64)
        going_on, shift = np.flatnonzero(first & 128), 7
        while len(going_on):
            if shift >= _MOST_BITS:
                raise Odd
            more = self._raw[self._within(self.at[going_on])]
            number[going_on] |= (more & 127).astype(np.uint64) << np.uint64(shift)
            self.at[going_on] += 1
            going_on, shift = going_on[more >= 128], shift + 7
        return (number >> np.uint64(1)).astype(np.int64) ^ -(number & np.uint64(1)).astype(np.int64)

    def extents(self) -> tuple[Ints, Ints]:
        """Where strings or bytes begin, and how long they are."""
        lengths = self.longs()
        starts = self.at
        if (lengths < 0).any():
            raise Odd
        self.at = starts + lengths
        self._within(self.at)
        return starts, lengths

    def texts(self) -> pa.StringArray:
        """Strings, as one array; they stand in the buffer in the order of the messages."""
        starts, lengths = self.extents()
        found = self._cut(starts, lengths)
        try:
            found.validate(full=True)
        except pa.ArrowInvalid as exc:
            raise Odd from exc
        return found

    def numbers(self, form: str, size: int) -> npt.NDArray[Any]:
        """Numbers of a fixed size."""
        self._within(self.at + size)
        found: npt.NDArray[Any] = self._raw[self.at[:, None] + np.arange(size)].view(form).ravel()
        self.at = self.at + size
        return found

    def unscaled(self) -> tuple[Ints, Mask, list[bytes]]:
        """Whole numbers written as bytes: the short ones, which are short, and the bytes of the others."""
        starts, lengths = self.extents()
        is_short = (lengths <= _LONG_BYTES) & (lengths > 0)
        widest = int(lengths[is_short].max(initial=0))
        value = np.where(is_short & (self._raw[starts] >= 128), np.int64(-1), np.int64(0))
        for number in range(widest):
            here = is_short & (number < lengths)
            value = np.where(here, value << 8 | self._raw[np.where(here, starts + number, 0)], value)
        long = np.flatnonzero(~is_short)
        spans = zip(starts[long].tolist(), lengths[long].tolist(), strict=True)
        return value, is_short, [self._data[start : start + length] for start, length in spans]

    def each(self, read: Read) -> pa.StringArray:
        """What a reader of single values gives, one after the other."""
        found, places = [], []
        for at in self.at.tolist():
            try:
                value, place = read(self._data, at)
            except (LookupError, ValueError, MessageError) as exc:
                raise Odd from exc
            found.append(value)
            places.append(place)
        self.at = np.array(places, np.int64)
        self._within(self.at)
        return pa.array(found, pa.string())

    def _cut(self, starts: Ints, lengths: Ints) -> pa.StringArray:
        """The buffer serves as the data of an array that holds, in turn, a text and the gap behind it."""
        count = len(starts)
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[:-1:2], offsets[1::2] = starts, starts + lengths
        offsets[-1] = offsets[-2] if count else 0
        alternating = pa.Array.from_buffers(pa.string(), 2 * count, [None, pa.py_buffer(offsets), self._buffer])
        return alternating.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32)))

    def _within(self, at: Ints) -> Ints:
        # Of some messages, those that the places are of: none may be beyond the last byte of all.
        if len(at) and int(at.max()) > len(self._data):
            raise Odd
        return at


def read_record(walk: Walk, record: Record) -> list[pa.StringArray]:
    """The columns of a row's record."""
    return [_read_field(walk, field) for field in record.fields]


def _read_field(walk: Walk, field: Field) -> pa.StringArray:
    branches = field.shape.branches
    if not field.shape.is_union:
        return _read_node(walk, branches[0], field)
    chosen = walk.byte()
    codes = np.unique(chosen).tolist()
    if any(code & 1 or code >> 1 >= len(branches) for code in codes):
        raise Odd
    if len(codes) == 1:
        node = branches[codes[0] >> 1]
        return pa.nulls(len(walk), pa.string()) if _is_null(node) else _read_node(walk, node, field)
    return _read_branches(walk, field, chosen)


def _read_branches(walk: Walk, field: Field, chosen: npt.NDArray[np.uint8]) -> pa.StringArray:
    """A column whose values are of several branches of a union."""
    parts: list[pa.StringArray] = []
    place = np.zeros(len(walk), np.int64)
    missing = np.zeros(len(walk), np.bool_)
    count = 0
    for code in np.unique(chosen).tolist():
        index = np.flatnonzero(chosen == code)
        node = field.shape.branches[code >> 1]
        if _is_null(node):
            missing[index] = True
            continue
        part = walk.of(index)
        parts.append(_read_node(part, node, field))
        walk.at[index] = part.at
        place[index] = np.arange(count, count + len(index))
        count += len(index)
    return pa.concat_arrays(parts).take(pa.array(place, mask=missing))


def _is_null(node: Node) -> bool:
    return isinstance(node, Primitive) and node.kind is Kind.NULL


def _read_node(walk: Walk, node: Node, field: Field) -> pa.StringArray:
    if isinstance(node, Primitive):
        match node.kind:
            case Kind.STRING:
                return walk.texts()
            case Kind.BYTES if node.scale is not None:
                return _decimal_texts(walk, node.scale, field)
            case Kind.BYTES if field.pg_type in ("json", "jsonb"):
                return walk.texts()
            case Kind.INT | Kind.LONG:
                return _whole_texts(walk, field)
            case Kind.BOOLEAN:
                return pa.array(["f", "t"]).take(pa.array((walk.byte() == 1).astype(np.int8)))
            case Kind.DOUBLE:
                return _converted(walk.numbers("<f8", 8), node, field)
            case Kind.FLOAT:
                return _converted(walk.numbers("<f4", 4), node, field)
    return walk.each(_single(field, node))


def _converted(values: npt.NDArray[Any], node: Node, field: Field) -> pa.StringArray:
    convert = TEXT.convert(node, field.pg_type) or str
    return pa.array([convert(value) for value in values.tolist()], pa.string())


def _single(field: Field, node: Node) -> Read:
    """The decoder of rows for one branch of a column."""
    alone = Field(field.name, Shape((node,)), field.pg_type, field.is_key)
    read_list = list_reader(Record(field.name, (alone,)), TEXT)

    def read(data: bytes, place: int) -> tuple[Any, int]:
        (value,), place = read_list(data, place)
        return value, place

    return read


def _whole_texts(walk: Walk, field: Field) -> pa.StringArray:
    values = walk.longs()
    write = _INSTANTS.get(field.pg_type)
    return pa.array(values).cast(pa.string()) if write is None else write(values, field)


def _decimal_texts(walk: Walk, scale: int, field: Field) -> pa.StringArray:
    values, is_short, long = walk.unscaled()
    found = _scaled(values, scale)
    if not long:
        return found
    convert = TEXT.convert(Primitive(Kind.BYTES, len(field.name), scale), field.pg_type) or str
    return _patched(found, ~is_short, pa.array([convert(value) for value in long], pa.string()))


def _scaled(values: Ints, scale: int) -> pa.StringArray:
    texts = pa.array(values).cast(pa.string())
    if scale == 0:
        return texts
    # All digits, and zeros in front where a number has fewer than stand behind the point, which has one in front of it.
    digits = pc.utf8_lpad(pc.utf8_ltrim(texts, "-"), scale + 1, "0")
    whole, fraction = pc.utf8_slice_codeunits(digits, 0, -scale), pc.utf8_slice_codeunits(digits, -scale)
    signs = pa.array(["", "-"]).take(pa.array((values < 0).astype(np.int8)))
    return pc.binary_join_element_wise(signs, whole, ".", fraction, "")


def _dates(values: Ints, field: Field) -> pa.StringArray:
    is_usual = (values >= _FIRST_DAY) & (values <= _LAST_DAY)
    usual = np.where(is_usual, values, 0).astype(np.int32)
    return _others(pa.array(usual).cast(pa.date32()).cast(pa.string()), values, is_usual, field)


def _times(values: Ints, field: Field) -> pa.StringArray:
    is_usual = (values >= 0) & (values < _DAY_MICROSECONDS)
    usual = pa.array(np.where(is_usual, values, 0)).cast(pa.time64("us")).cast(pa.string())
    return _others(_trimmed(usual), values, is_usual, field)


def _timestamps(values: Ints, field: Field) -> pa.StringArray:
    first, last = _FIRST_DAY * _DAY_MICROSECONDS, (_LAST_DAY + 1) * _DAY_MICROSECONDS
    is_usual = (values >= first) & (values < last)
    usual = _trimmed(pa.array(np.where(is_usual, values, 0)).cast(pa.timestamp("us")).cast(pa.string()))
    if field.pg_type == "timestamptz":
        usual = pc.binary_join_element_wise(usual, "+00", "")
    return _others(usual, values, is_usual, field)


def _trimmed(texts: pa.StringArray) -> pa.StringArray:
    """Times without zeros at the end of their fractions, of which all have six digits."""
    return pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")


def _others(usual: pa.StringArray, values: Ints, is_usual: Mask, field: Field) -> pa.StringArray:
    """The texts, with those of values that Arrow has none for, or another one, written one by one."""
    if is_usual.all():
        return usual
    convert = TEXT.convert(Primitive(Kind.LONG), field.pg_type) or str
    return _patched(usual, ~is_usual, pa.array([convert(value) for value in values[~is_usual].tolist()], pa.string()))


def _patched(texts: pa.StringArray, places: Mask, others: pa.StringArray) -> pa.StringArray:
    return pc.replace_with_mask(texts, pa.array(places), others)


_INSTANTS: Final[Mapping[str, Callable[[Ints, Field], pa.StringArray]]] = MappingProxyType(
    {"date": _dates, "time": _times, "timestamp": _timestamps, "timestamptz": _timestamps}
)
