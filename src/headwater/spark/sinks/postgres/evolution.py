"""What became of a table between two looks at it, and whether the stream tells what its old rows have since. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from headwater.spark.frame import Layout, LayoutColumn

_OTHER_TABLE = "another table has its name now"
_MOVED_ON = "it was altered again before its columns could be told apart"


@dataclass(frozen=True, slots=True)
class Retyped:
    """A column with another type; `is_rewritten` if its values may be others, too."""

    column: LayoutColumn
    is_rewritten: bool


@dataclass(frozen=True, slots=True)
class Evolution:
    """What to do to a table of the target, in this order; all names but those that go are the new ones.

    `relaxed` are columns that may be NULL from now on, `gone_key` is the primary key that the source has no more. `doubts`
    say why old rows of the target may be wrong afterwards.
    """

    dropped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    gone_key: tuple[str, ...] = ()
    retyped: tuple[Retyped, ...] = ()
    relaxed: tuple[str, ...] = ()
    added: tuple[LayoutColumn, ...] = ()
    doubts: tuple[str, ...] = ()

    @property
    def changes_shape(self) -> bool:
        return bool(self.dropped or self.renamed or self.gone_key or self.retyped or self.added)

    def __str__(self) -> str:
        """In words, for a log."""
        parts = [
            *(f"column {name} dropped" for name in self.dropped),
            *(f"column {old} renamed to {new}" for old, new in self.renamed),
            *(f"type of column {one.column.name} changed" for one in self.retyped),
            *(f"column {name} may be null" for name in self.relaxed),
            *(f"column {column.name} added" for column in self.added),
        ]
        return ", ".join([*parts, *(["another primary key"] if self.gone_key else [])])


def difference(old: Layout, new: Layout) -> Evolution:
    """How a table got from one layout to the other: by the numbers of its columns if both have them, else by names."""
    by_number = old.is_known and new.is_known and old.oid == new.oid
    pairs = list(_pairs(old, new, by_number=by_number))
    kept, found = {id(was) for was, _ in pairs}, {id(now) for _, now in pairs}
    dropped = tuple(one.name for one in old.columns if id(one) not in kept and not (by_number and one.number in new.others))
    added = tuple(one for one in new.columns if id(one) not in found)
    is_rewritten = not by_number or old.files != new.files
    names = {was.name: now.name for was, now in pairs}
    retyped = tuple(
        Retyped(now, is_rewritten) for was, now in pairs if (was.type_oid, was.typmod) != (now.type_oid, now.typmod)
    )
    evolution = Evolution(
        dropped=dropped,
        renamed=tuple((was.name, now.name) for was, now in pairs if was.name != now.name),
        gone_key=_gone_key(old, new, names) if by_number else (),
        retyped=retyped,
        relaxed=tuple(now.name for was, now in pairs if was.not_null and not now.not_null),
        added=added,
    )
    doubts = _doubts(old, new, evolution, by_number=by_number, is_rewritten=is_rewritten)
    return replace(evolution, doubts=tuple(doubts))


def additions(layout: Layout, names: Iterable[str], *doubts: str) -> Evolution:
    """Some columns to be added to a table of which nothing else is known."""
    wanted = set(names)
    return Evolution(added=tuple(column for column in layout.columns if column.name in wanted), doubts=doubts)


def inherited(old: Layout, new: Layout) -> Layout:
    """What is known of a table after it was followed from one layout to the other."""
    key = old.key if new.key is None else new.key
    return Layout(new.oid, new.columns, key, new.files, new.others)


def _pairs(old: Layout, new: Layout, *, by_number: bool) -> Iterator[tuple[LayoutColumn, LayoutColumn]]:
    """The columns that are the same, before and after."""
    found = {(one.number if by_number else one.name): one for one in new.columns}
    for column in old.columns:
        now = found.get(column.number if by_number else column.name)
        if now is not None:
            yield column, now


def _gone_key(old: Layout, new: Layout, names: dict[str, str]) -> tuple[str, ...]:
    """The old primary key by its names of now; none if it is still one, or went with a column."""
    if not old.key or new.key is None or not all(name in names for name in old.key):
        return ()
    now = tuple(names[name] for name in old.key)
    return () if set(now) == set(new.key) else now


def _doubts(old: Layout, new: Layout, evolution: Evolution, *, by_number: bool, is_rewritten: bool) -> Iterator[str]:
    if old.oid != new.oid:
        yield _OTHER_TABLE
    elif not by_number and evolution.changes_shape:
        yield _MOVED_ON
    for column in evolution.added:
        if column.name in evolution.dropped:
            yield f"column {column.name} was dropped and added again"
        elif not column.has_missing and (column.has_default or is_rewritten):
            yield f"column {column.name} was added with values that no change tells"
    for one in evolution.retyped:
        if one.is_rewritten:
            yield f"column {one.column.name} was given another type"
