"""Rows of both sides held against each other by key: what is missing, extra or different. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, TypeAlias

# The texts of a row's key, and the hash of all that is compared of the row.
Entry: TypeAlias = tuple[Sequence[str | None], int]
Key: TypeAlias = tuple[str | None, ...]
# The hashes of the rows with a key, sorted: one at most, unless nothing makes the key unique.
Hashes: TypeAlias = tuple[int, ...]

# No key begins with this noncharacter: in the place of a NULL it comes last, as NULLs do at the server.
_LAST: Final = chr(0x10FFFF)


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows are not equal, as seen from the target."""

    missing: int = 0
    extra: int = 0
    different: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.missing + other.missing, self.extra + other.extra, self.different + other.different)

    def __bool__(self) -> bool:
        return bool(self.missing or self.extra or self.different)


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose rows are not the same on both sides."""

    key: Key
    source: Hashes
    target: Hashes

    @property
    def counts(self) -> Counts:
        """Rows with equal content cancel out; of the rest, those that have a partner differ, and the others have none."""
        if len(self.source) <= 1 and len(self.target) <= 1:
            return _COUNTS[bool(self.source), bool(self.target)]
        missing = (Counter(self.source) - Counter(self.target)).total()
        extra = (Counter(self.target) - Counter(self.source)).total()
        different = min(missing, extra)
        return Counts(missing - different, extra - different, different)


# By whether the source and the target have the row.
_COUNTS: Final = {
    (True, False): Counts(missing=1),
    (False, True): Counts(extra=1),
    (True, True): Counts(different=1),
    (False, False): Counts(),
}


def find_differences(source: Iterable[Entry], target: Iterable[Entry]) -> Iterator[Difference]:
    """The keys that differ, of entries that come in the order of their keys on both sides: by code points, NULLs last."""
    ours, theirs = _grouped(source), _grouped(target)
    left, right = next(ours, None), next(theirs, None)
    while left is not None and right is not None:
        if left == right:
            left, right = next(ours, None), next(theirs, None)
        elif left[0] == right[0]:
            yield _difference(left[0], left[1], right[1])
            left, right = next(ours, None), next(theirs, None)
        elif left[0] < right[0]:
            yield _difference(left[0], left[1], ())
            left = next(ours, None)
        else:
            yield _difference(right[0], (), right[1])
            right = next(theirs, None)
    if left is not None:
        yield from (_difference(key, hashes, ()) for key, hashes in chain([left], ours))
    if right is not None:
        yield from (_difference(key, (), hashes) for key, hashes in chain([right], theirs))


def hashes_by_key(entries: Iterable[Entry]) -> dict[Key, Hashes]:
    found: dict[Key, list[int]] = {}
    for key, hash in entries:
        found.setdefault(tuple(key), []).append(hash)
    return {key: tuple(sorted(hashes)) for key, hashes in found.items()}


def _grouped(entries: Iterable[Entry]) -> Iterator[tuple[list[str], Hashes]]:
    """The hashes of each key; of the key what its order is told by."""
    last: list[str] | None = None
    hashes: list[int] = []
    for key, hash in entries:
        ordered = [_LAST if part is None else part for part in key]
        if ordered != last:
            if last is not None:
                yield last, tuple(sorted(hashes))
            last, hashes = ordered, []
        hashes.append(hash)
    if last is not None:
        yield last, tuple(sorted(hashes))


def _difference(key: Sequence[str], source: Hashes, target: Hashes) -> Difference:
    return Difference(tuple(None if part == _LAST else part for part in key), source, target)
