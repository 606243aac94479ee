"""Two tables held against each other row by row: whatever was lost, repeated or changed on the way shows. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from headwater.model import Row

# Enough to see what went wrong; the counts say how often.
_NAMED_ROWS = 5
_SHOWN_CHARACTERS = 40
# What a column that only one side has is compared with: no value, not even NULL.
_ABSENT: Final = object()


@dataclass(slots=True)
class Comparison:
    """How the rows of a table compare in source and target: `missing` and `extra` are seen from the target."""

    table: str
    equal: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    named: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        return not (self.missing or self.extra or self.different)

    @property
    def differences(self) -> list[str]:
        """What is not equal, in words: the first rows by name, then how many more there are."""
        unnamed = self.missing + self.extra + self.different - len(self.named)
        more = [f"{self.table}: {unnamed:,} more rows are not equal"] if unnamed else []
        return [*self.named, *more]

    def add(self, key: Sequence[str], source: Row | None, target: Row | None) -> None:
        """Compare one row, of which one side may be missing."""
        if source == target:
            self.equal += 1
            return
        if source is None:
            self.extra, what = self.extra + 1, "is in the target only"
        elif target is None:
            self.missing, what = self.missing + 1, "is missing in the target"
        else:
            self.different, what = self.different + 1, f"differs: {_difference(source, target)}"
        if len(self.named) < _NAMED_ROWS:
            row = source or target or {}
            self.named.append(f"{self.table} {', '.join(f'{name}={row[name]!r}' for name in key)} {what}")


def compare(table: str, key: Sequence[str], source: Iterable[Row], target: Iterable[Row]) -> Comparison:
    """Hold the rows of a table against those that the target has, by the columns that name a row."""
    result, left = Comparison(table), {_key_of(row, key): row for row in target}
    for row in source:
        result.add(key, row, left.pop(_key_of(row, key), None))
    for row in left.values():
        result.add(key, None, row)
    return result


def _key_of(row: Row, key: Sequence[str]) -> tuple[object, ...]:
    return tuple(row[name] for name in key)


def _difference(source: Row, target: Row) -> str:
    names = [name for name in {**source, **target} if source.get(name, _ABSENT) != target.get(name, _ABSENT)]
    return ", ".join(f"{name} is {_shown(source, name)}, in the target {_shown(target, name)}" for name in names)


def _shown(row: Row, name: str) -> str:
    text = repr(row[name]) if name in row else "not there"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
