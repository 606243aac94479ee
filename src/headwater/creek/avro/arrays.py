"""Columns of arrays: taken apart into one column of all their elements, and put together from the elements' bytes."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.creek.avro.binary import Ints, Mask, join, longs, merged, offsets_of
from headwater.postgres.types.literals import split_array

# Elements without quotes, braces and escapes in one dimension: Arrow splits those.
_PLAIN: Final = r'\A\{(?:[^"\\{},]+(?:,[^"\\{},]+)*)?\}\z'
_EMPTY: Final = "{}"
_DELIMITER: Final = ","
# As many elements as Creek's Avro library puts into one block.
BLOCK_ELEMENTS: Final = 100


@dataclass(frozen=True, slots=True)
class Elements:
    """The elements of all arrays; those of array i are from `bounds[i]` up to `bounds[i + 1]`.

    An array of Avro's cannot hold a NULL, further dimensions, or lower bounds of its own: those that have any are misfits.
    """

    texts: pa.StringArray
    bounds: Ints
    misfit: Mask


def elements_of(texts: pa.StringArray) -> Elements:
    """The arrays taken apart; NULL has no elements, and neither has an empty one."""
    is_plain = pc.match_substring_regex(texts, _PLAIN)
    return _plain(texts) if pc.all(is_plain).as_py() is not False else _any(texts)


def _plain(texts: pa.StringArray) -> Elements:
    filled = pc.if_else(pc.equal(texts, _EMPTY), None, texts)
    lists = pc.split_pattern(pc.utf8_slice_codeunits(filled, 1, -1), _DELIMITER)
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    bounds = _bounds(counts)
    elements = lists.flatten()
    is_null = pc.equal(elements, "NULL")
    nulls = np.concatenate(([0], np.cumsum(is_null.to_numpy(zero_copy_only=False))))
    misfit = nulls[bounds[1:]] > nulls[bounds[:-1]]
    return Elements(pc.if_else(is_null, None, elements) if misfit.any() else elements, bounds, misfit)


def _any(texts: pa.StringArray) -> Elements:
    elements: list[object] = []
    counts = np.zeros(len(texts), np.int64)
    misfit = np.zeros(len(texts), np.bool_)
    for index, text in enumerate(texts.to_pylist()):
        values = [] if text is None else split_array(text, _DELIMITER, str)
        if values is None or not all(isinstance(value, str) for value in values):
            misfit[index] = True
        else:
            elements += values
            counts[index] = len(values)
    return Elements(pa.array(elements, pa.string()), _bounds(counts), misfit)


def _bounds(counts: Ints) -> Ints:
    bounds = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=bounds[1:])
    return bounds


def blocks(elements: pa.Array, bounds: Ints) -> pa.Array:
    """The blocks of each array, without the 0 that ends them: the number of elements, negated, their size, and they."""
    counts = np.diff(bounds)
    per_array = -(-counts // BLOCK_ELEMENTS)
    of_array = np.repeat(np.arange(len(counts)), per_array)
    first = np.cumsum(per_array) - per_array
    starts = bounds[of_array] + BLOCK_ELEMENTS * (np.arange(len(of_array)) - first[of_array])
    edges = np.concatenate((starts, bounds[-1:]))
    bodies = merged(elements, edges)
    whole = join([longs(-np.diff(edges)), longs(np.diff(offsets_of(bodies))), bodies], len(starts))
    return merged(whole, np.concatenate((first, [len(of_array)])))
