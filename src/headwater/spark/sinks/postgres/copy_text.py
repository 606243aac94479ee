"""Columns of text in the text form of COPY, a whole column at a time. Pure.

Manual: "COPY", "Text Format". Values are the server's own texts; NULL is written as backslash and N.
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

# Backslash first: the others put more of them in.
_ESCAPES = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_NULL = "\\N"
# Rows are joined in runs of about this size; Arrow counts the bytes of a column in 31 bits.
_RUN_BYTES = 64 * 1024 * 1024


def copy_text(columns: Sequence[pa.Array | str]) -> Iterator[memoryview]:
    """Lines for COPY, in a few large pieces; a column that is the same in all rows is given as its text in COPY's form."""
    arrays = [column for column in columns if not isinstance(column, str)]
    rows, size = len(arrays[0]), sum(array.nbytes for array in arrays)
    step = max(1, rows * _RUN_BYTES // max(size, 1))
    for start in range(0, rows, step):
        run = [column if isinstance(column, str) else column.slice(start, step) for column in columns]
        yield _lines(run, min(step, rows - start))


def _lines(columns: Sequence[pa.Array | str], rows: int) -> memoryview:
    *others, last = [column if isinstance(column, str) else _escaped(column) for column in columns]
    last = last + "\n" if isinstance(last, str) else pc.binary_join_element_wise(last, "\n", "")
    if isinstance(last, str) and not others:
        last = pa.repeat(pa.scalar(last, pa.large_string()), rows)
    lines = pc.binary_join_element_wise(*map(_large, others), _large(last), pa.scalar("\t", pa.large_string()))
    return _data(lines)


def _large(column: pa.Array | str) -> pa.Array | pa.Scalar:
    return pa.scalar(column, pa.large_string()) if isinstance(column, str) else column.cast(pa.large_string())


def _escaped(column: pa.Array) -> pa.Array:
    # A look at the bytes of all values at once; to ask Arrow for each value takes fifty times as long.
    data = bytes(_data(column))
    for plain, escaped in _ESCAPES:
        if plain.encode() in data:
            column = pc.replace_substring(column, plain, escaped)
    return pc.fill_null(column, _NULL) if column.null_count else column


def _data(column: pa.Array) -> memoryview:
    """The texts of a column end to end; under a NULL there may be anything."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return memoryview(b"")
    ends = memoryview(offsets).cast("q" if pa.types.is_large_string(column.type) else "i")
    return memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]]
