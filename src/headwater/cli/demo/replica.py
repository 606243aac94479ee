"""A table kept in memory from its changes alone, and held against the table itself: whatever was lost shows. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from headwater.model import UNCHANGED, Change, Op, Row

Key: TypeAlias = tuple[object, ...]

# Enough to see what went wrong; the counts say how often.
_NAMED_ROWS = 5
_SHOWN_CHARACTERS = 40


class Replica:
    """The rows of a table by primary key. A change that does not fit the rows is counted as a stray, and still applied."""

    def __init__(self, table: str, key: Sequence[str]) -> None:
        self.table, self._key = table, tuple(key)
        self.rows: dict[Key, Row] = {}
        self.strays = 0
        self.kept_values = 0

    def apply(self, change: Change) -> None:
        match change.op:
            case Op.INSERT | Op.READ:
                self.insert([change.after or {}])
            case Op.UPDATE | Op.UPDATE_KEY:
                self._update(change.before, change.after or {})
            case Op.DELETE:
                self._take(change.before or {})
            case Op.TRUNCATE:
                self.rows.clear()

    def insert(self, rows: Iterable[Row]) -> None:
        """Put in rows that are new."""
        for row in rows:
            key = self._key_of(row)
            self.strays += key in self.rows
            self.rows[key] = row

    def compare(self, source: Iterable[Row]) -> "Comparison":
        """Hold the rows against those of the table itself."""
        left, result = dict(self.rows), Comparison(self.table, strays=self.strays)
        for row in source:
            key = self._key_of(row)
            result.add(self._named(key), row, left.pop(key, None))
        for key in left:
            result.add(self._named(key), None, left[key])
        return result

    def _update(self, before: Row | None, after: Row) -> None:
        old = self._take(after if before is None else before)
        kept = {name: old[name] for name, value in after.items() if value is UNCHANGED and name in old}
        self.kept_values += len(kept)
        self.rows[self._key_of(after)] = {**after, **kept}

    def _take(self, row: Row) -> Row:
        """The row of that key, out of the replica; empty, and a stray, when there is none."""
        old = self.rows.pop(self._key_of(row), None)
        self.strays += old is None
        return old or {}

    def _key_of(self, row: Row) -> Key:
        return tuple(row[name] for name in self._key)

    def _named(self, key: Key) -> str:
        return f"{self.table} " + ", ".join(f"{name}={value!r}" for name, value in zip(self._key, key, strict=True))


@dataclass(slots=True)
class Comparison:
    """How the rows of a table and of its replica compare: `missing` and `extra` are seen from the replica."""

    table: str
    equal: int = 0
    missing: int = 0
    extra: int = 0
    different: int = 0
    strays: int = 0
    named: list[str] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        return not (self.missing or self.extra or self.different or self.strays)

    @property
    def differences(self) -> list[str]:
        """What is not equal, in words: the first rows by name, then how many there are."""
        unnamed = self.missing + self.extra + self.different - len(self.named)
        more = [f"{self.table}: {unnamed:,} more rows are not equal"] if unnamed else []
        strays = [f"{self.table}: {self.strays:,} changes did not fit the rows they came to"] if self.strays else []
        return [*self.named, *more, *strays]

    def add(self, name: str, source: Row | None, replica: Row | None) -> None:
        """Compare one row, of which one side may be missing."""
        if source == replica:
            self.equal += 1
            return
        if source is None:
            self.extra, what = self.extra + 1, "is in the replica only"
        elif replica is None:
            self.missing, what = self.missing + 1, "is missing in the replica"
        else:
            self.different, what = self.different + 1, f"differs: {_difference(source, replica)}"
        if len(self.named) < _NAMED_ROWS:
            self.named.append(f"{name} {what}")


def _difference(source: Row, replica: Row) -> str:
    names = [name for name in {**source, **replica} if source.get(name, UNCHANGED) != replica.get(name, UNCHANGED)]
    return ", ".join(f"{name} is {_shown(source, name)}, in the replica {_shown(replica, name)}" for name in names)


def _shown(row: Mapping[str, object], name: str) -> str:
    text = repr(row[name]) if name in row else "not there"
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
