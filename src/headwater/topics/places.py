"""Where messages stand that were appended. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple, overload


class Placed(NamedTuple):
    """Where a message stands."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class Places(Sequence[Placed]):
    """Those of many messages, by columns; each is made when somebody looks at it, which few do."""

    partitions: Sequence[int]
    offsets: Sequence[int]

    @overload
    def __getitem__(self, place: int) -> Placed: ...

    @overload
    def __getitem__(self, place: slice) -> "Places": ...

    def __getitem__(self, place: int | slice) -> "Placed | Places":
        if isinstance(place, slice):
            return Places(self.partitions[place], self.offsets[place])
        return Placed(self.partitions[place], self.offsets[place])

    def __len__(self) -> int:
        return len(self.partitions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)


def place_messages(firsts: Sequence[tuple[int, int]], partitions: Sequence[int]) -> Places:
    """Where each message stands, by its partition and by the first offset of each frame of a partition, in order."""
    # The frames of a batch follow each other, so that the first of a partition says it all.
    known = dict(reversed(firsts))
    if len(known) == 1:
        (first,) = known.values()
        return Places(partitions, range(first, first + len(partitions)))
    offsets = {partition: count(first) for partition, first in known.items()}
    return Places(partitions, [next(offsets[partition]) for partition in partitions])


def join_places(parts: Sequence[Places]) -> Places:
    """All of them, in their order."""
    if len(parts) == 1:
        return parts[0]
    return Places(
        [partition for part in parts for partition in part.partitions], [offset for part in parts for offset in part.offsets]
    )
