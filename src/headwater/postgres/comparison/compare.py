"""A table in two databases: sums of its rows by bucket, then the rows of the buckets whose sums differ.

What differs in two snapshots that are not of the same moment may only have changed in between. `look_again` tells that from
a real difference, and `describe` names the columns.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, Literal, TypeAlias

from headwater.postgres.catalog import Table
from headwater.postgres.comparison.difference import Counts, Difference, Hashes, Key, find_differences, hashes_by_key
from headwater.postgres.comparison.layout import Layout, plan_layout
from headwater.postgres.comparison.side import Side, both
from headwater.postgres.comparison.statements import TableStatements, choose_buckets

Sides: TypeAlias = tuple[Side, Side]
Kind: TypeAlias = Literal["missing", "extra", "different"]

KINDS: Final[tuple[Kind, ...]] = ("missing", "extra", "different")
# A second look at more keys than these takes too long to be of use, and their hashes too much memory.
KEPT_DIFFERENCES: Final = 100_000
# How often a key that changes all the while is looked at before it is given up.
LOOKS: Final = 5


@dataclass(frozen=True, slots=True)
class Pair:
    """A table of the source and that of the same name in the target, and how each is read."""

    table: Table
    layout: Layout
    source: TableStatements
    target: TableStatements

    def on(self, side: Side, sides: Sides) -> TableStatements:
        return self.source if side is sides[0] else self.target


@dataclass(frozen=True, slots=True)
class Compared:
    """How a table compares. `differences` are the keys that differ, without those beyond the first `KEPT_DIFFERENCES`.

    Of the others, `uncertain` counts the rows: they are among `counts`, and were looked at only once. `changed` counts the
    keys that only differed because the snapshots are not of the same moment, `unsettled` those that changed whenever they
    were looked at.
    """

    source_rows: int
    target_rows: int
    counts: Counts
    differences: tuple[Difference, ...] = ()
    uncertain: Counts = field(default_factory=Counts)
    changed: int = 0
    unsettled: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """A row that is not equal: its key by column, or the row itself if there is none, and which columns differ."""

    kind: Kind
    key: Mapping[str, str | None]
    columns: tuple[str, ...] = ()


def pair_tables(sides: Sides, source: Table, target: Table, *, recodes: bool) -> Pair:
    """The two tables as they are now; raises Incomparable. `recodes` if the encodings of the servers differ."""
    ours, theirs = sides[0].relation(source), sides[1].relation(target)
    layout = plan_layout(ours, theirs)
    alike = frozenset(name for name in layout.key if ours.column(name).type_name == theirs.column(name).type_name)
    buckets = choose_buckets(sides[0].estimate(source))
    return Pair(
        source,
        layout,
        TableStatements(ours, layout, buckets=buckets, alike=alike, recodes=recodes),
        TableStatements(theirs, layout, buckets=buckets, alike=alike, recodes=recodes),
    )


def compare_table(sides: Sides, pair: Pair) -> Compared:
    """Compare in the snapshots that the sides have taken; raises Incomparable, and the snapshots can be used on."""
    with _kept_open(sides):
        source, target = both(sides, lambda side: side.digest(pair.on(side, sides)))
        buckets = [bucket for bucket in source.keys() | target.keys() if source.get(bucket) != target.get(bucket)]
        kept, uncertain = _differences(sides, pair, buckets) if buckets else ((), Counts())
    return Compared(_total(source), _total(target), _sum(kept) + uncertain, kept, uncertain)


def look_again(sides: Sides, pair: Pair, compared: Compared, settle: Callable[[], bool]) -> Compared:
    """What is left of the differences when they are looked at again, outside of any snapshot.

    `settle` has the target catch up with what the source shows at the time of the call, and returns whether it did. A row
    that was the same at the source before and after the target was read, once the target had caught up, is judged; one that
    changed in between is looked at again.
    """
    real = [one for one in compared.differences if _is_unfindable(pair, one)]
    first = {one.key: one.source for one in compared.differences if not _is_unfindable(pair, one)}
    pending, last = list(first), dict[Key, Difference]()
    for _ in range(LOOKS):
        if not pending:
            break
        found, has_caught_up = _look(sides, pair, pending, settle)
        pending = []
        for key, (before, target, after) in found.items():
            if target in (before, after):
                continue
            if before == after and has_caught_up:
                real.append(Difference(key, after, target))
            else:
                pending.append(key)
                last[key] = Difference(key, after, target)
    # The target never caught up: what has stood still at the source for all that time is different.
    stuck = [last[key] for key in pending if last[key].source == first[key]]
    kept = [*real, *stuck]
    return replace(
        compared,
        counts=_sum(kept) + compared.uncertain,
        differences=tuple(kept),
        changed=len(compared.differences) - len(kept) - (len(pending) - len(stuck)),
        unsettled=len(pending) - len(stuck),
    )


def describe(sides: Sides, pair: Pair, differences: Sequence[Difference], limit: int) -> list[Finding]:
    """The first so many differences of each kind, by key and with the columns that differ."""
    chosen = {kind: [one for one in differences if getattr(one.counts, kind)][:limit] for kind in KINDS}
    keys = list(dict.fromkeys(one.key for some in chosen.values() for one in some if None not in one.key))
    with _kept_open(sides):
        source, target = both(sides, lambda side: side.texts(pair.on(side, sides), keys))
    return [
        Finding(kind, _shown(pair, one.key, source, target), _unequal(pair, one.key, source, target, kind))
        for kind in KINDS
        for one in chosen[kind]
    ]


@contextmanager
def _kept_open(sides: Sides) -> Iterator[None]:
    """A savepoint on each side: what fails for one table must not end the snapshots."""
    with sides[0].connection.transaction(), sides[1].connection.transaction():
        yield


def _differences(sides: Sides, pair: Pair, buckets: Sequence[int]) -> tuple[tuple[Difference, ...], Counts]:
    """The first differences, and how many rows the others have."""
    source, target = both(sides, lambda side: side.entries(pair.on(side, sides), buckets))
    found = find_differences(source, target)
    kept = tuple(islice(found, KEPT_DIFFERENCES))
    return kept, _sum(found)


def _sum(differences: Iterable[Difference]) -> Counts:
    return sum((one.counts for one in differences), Counts())


def _look(
    sides: Sides, pair: Pair, keys: Sequence[Key], settle: Callable[[], bool]
) -> tuple[dict[Key, tuple[Hashes, Hashes, Hashes]], bool]:
    """Rows by key: of the source, then of the target when that has caught up, and of the source once more."""
    before = hashes_by_key(sides[0].find(pair.source, keys))
    has_caught_up = settle()
    target = hashes_by_key(sides[1].find(pair.target, keys))
    after = hashes_by_key(sides[0].find(pair.source, keys))
    return {key: (before.get(key, ()), target.get(key, ()), after.get(key, ())) for key in keys}, has_caught_up


def _is_unfindable(pair: Pair, difference: Difference) -> bool:
    """Whether no index leads to it: a NULL in what is the key of the source, which only the target can hold."""
    return bool(pair.layout.key) and None in difference.key


def _shown(
    pair: Pair, key: Key, source: Mapping[Key, Sequence[str]], target: Mapping[Key, Sequence[str]]
) -> dict[str, str | None]:
    if pair.layout.key:
        return dict(zip(pair.layout.key, key, strict=True))
    return {"row": next((side[key][0] for side in (source, target) if key in side), None)}


def _unequal(
    pair: Pair, key: Key, source: Mapping[Key, Sequence[str]], target: Mapping[Key, Sequence[str]], kind: Kind
) -> tuple[str, ...]:
    if kind != "different" or key not in source or key not in target:
        return ()
    texts = zip(pair.layout.columns, source[key], target[key], strict=True)
    return tuple(name for name, ours, theirs in texts if ours != theirs)


def _total(digest: Mapping[int, tuple[int, str]]) -> int:
    return sum(rows for rows, _ in digest.values())
