"""Which messages may share a batch: those for one queue or topic and, where there are sessions, of one session.

Pure: columns go in, places come out. The order within a group is that of the messages, so each key keeps its order; groups
follow each other by entity.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Group:
    """Messages, by their places, that may be sent together."""

    entity: str
    places: npt.NDArray[np.int64]


def groups(entities: pa.StringArray, sessions: pa.StringArray | None) -> Iterator[Group]:
    """Each message in exactly one group; messages without session are together, apart from the sessions."""
    numbers = _codes(entities.dictionary_encode())
    if sessions is not None:
        keys = sessions.dictionary_encode()
        numbers = numbers * (len(keys.dictionary) + 1) + _codes(keys)
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-1))
    for places in np.split(order, starts[1:]) if len(order) else ():
        yield Group(entities[int(places[0])].as_py(), places)


def _codes(column: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """A number for each value, in the order in which they first appear; the last one is for none at all."""
    filled = column.indices.fill_null(len(column.dictionary))
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.int64)
