"""What must hold of a topic after a run in which everything went wrong: a record of it, and the violations in it. Pure.

A message is known by its key and its number among those of the key. Appends say whether they were committed, or None if the
answer was lost. The log is what the topic has at the end. A range is what a member got of a partition in a batch, in the
order in which it did, with its epoch and how its commit ended.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

Name = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Append:
    key: str
    number: int
    is_committed: bool | None = True


@dataclass(frozen=True, slots=True)
class Entry:
    """A message in the log."""

    partition: int
    offset: int
    key: str
    number: int


@dataclass(frozen=True, slots=True)
class Range:
    """What a member got of a partition in one batch, in the order of its offsets, under an epoch."""

    member: str
    partition: int
    epoch: int
    entries: tuple[Entry, ...]
    # Whether its commit succeeded; None if it was not asked for, or the answer was lost.
    is_committed: bool | None = None

    @property
    def offsets(self) -> list[int]:
        return [entry.offset for entry in self.entries]


class Promise(Enum):
    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"
    EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True)
class Group:
    """What the members of a group got; with `is_shared` several have ranges of one partition at once.

    `effects` are the messages whose effect is in the database, as often as it is there. With `may_forget` commits did not
    wait for the disk, so that a crash of the server could undo them. `doubts` are commits whose answers may have been lost:
    a member of a shared group asks again, and takes a claim that is gone for settled, by itself or by another member.
    """

    name: str
    promise: Promise
    ranges: Sequence[Range]
    is_shared: bool = False
    may_forget: bool = False
    effects: Sequence[Name] = ()
    doubts: int = 0


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class History:
    appends: Sequence[Append]
    log: Sequence[Entry]
    groups: Sequence[Group] = field(default_factory=list)

    def violations(self) -> list[Violation]:
        found = [*_of_offsets(self.log), *_of_appends(self.appends, self.log), *_of_keys(self.log)]
        for group in self.groups:
            found += [Violation(one.kind, f"group {group.name}: {one.what}") for one in _of_group(group, self.log)]
        return found

    def counts(self) -> str:
        """What was recorded, in a line."""
        outcome = Counter(one.is_committed for one in self.appends)
        parts = [f"{outcome[True]} appended, {outcome[False]} rolled back, {outcome[None]} in doubt, {len(self.log)} logged"]
        for group in self.groups:
            given = [(one.partition, offset) for one in group.ranges for offset in one.offsets]
            parts.append(
                f"{group.name}: {len(given)} delivered, {len(given) - len(set(given))} repeated, "
                f"{len({one.member for one in group.ranges})} members, "
                f"{len({(one.partition, one.epoch) for one in group.ranges})} epochs"
            )
        return "; ".join(parts)


def _of_offsets(log: Sequence[Entry]) -> Iterator[Violation]:
    """Offsets of a partition are 0, 1, 2 and so on."""
    by_partition = defaultdict(list)
    for entry in log:
        by_partition[entry.partition].append(entry.offset)
    for partition, offsets in by_partition.items():
        for wanted, found in enumerate(offsets):
            if wanted != found:
                yield Violation("gap", f"partition {partition} has offset {found} where {wanted} is due")
                break


def _of_appends(appends: Sequence[Append], log: Sequence[Entry]) -> Iterator[Violation]:
    """What was committed is there once; what was not is not; what is in doubt is there at most once."""
    found = Counter((entry.key, entry.number) for entry in log)
    for one in appends:
        times = found.pop((one.key, one.number), 0)
        if one.is_committed and not times:
            yield Violation("lost", f"{one.key} {one.number} was committed and is not in the log")
        if one.is_committed is False and times:
            yield Violation("ghost", f"{one.key} {one.number} was rolled back and is in the log")
        if times > 1:
            yield Violation("repeated append", f"{one.key} {one.number} is in the log {times} times")
    for name in found:
        yield Violation("ghost", f"{name[0]} {name[1]} is in the log and nobody appended it")


def _of_keys(log: Sequence[Entry]) -> Iterator[Violation]:
    """The messages of a key are in one partition, in the order in which they were appended."""
    last: dict[str, Entry] = {}
    for entry in sorted(log, key=lambda entry: (entry.partition, entry.offset)):
        before = last.get(entry.key)
        if before is not None and before.partition != entry.partition:
            yield Violation("order", f"{entry.key} is in partitions {before.partition} and {entry.partition}")
        elif before is not None and before.number > entry.number:
            yield Violation("order", f"{entry.key} has {before.number} before {entry.number}")
        last[entry.key] = entry


def _of_group(group: Group, log: Sequence[Entry]) -> Iterator[Violation]:
    yield from _of_contents(group.ranges, log)
    yield from _of_owners(group)
    if not group.may_forget:
        twice = list(_of_commits(group.ranges))
        if len(twice) > (group.doubts if group.is_shared else 0):
            yield from twice
    if not group.is_shared:
        yield from _of_progress(group)
    given = Counter((one.partition, offset) for one in group.ranges for offset in one.offsets)
    if group.promise is Promise.AT_MOST_ONCE:
        for place, times in given.items():
            if times > 1:
                yield Violation("repeated", f"{place} was delivered {times} times")
    else:
        for entry in log:
            if not given[entry.partition, entry.offset]:
                yield Violation("lost", f"{(entry.partition, entry.offset)} was never delivered")
    if group.promise is Promise.EXACTLY_ONCE:
        yield from _of_effects(group.effects, log)


def _of_contents(ranges: Iterable[Range], log: Sequence[Entry]) -> Iterator[Violation]:
    """What is delivered is what the log has, and a batch has it in order and complete."""
    known = set(log)
    for one in ranges:
        for entry in one.entries:
            if entry not in known:
                yield Violation("ghost", f"{entry} was delivered and is not in the log")
        if one.offsets != list(range(one.offsets[0], one.offsets[0] + len(one.offsets))):
            yield Violation("gap", f"{one.member} got {one.offsets} of partition {one.partition} in one batch")


def _of_owners(group: Group) -> Iterator[Violation]:
    """A partition and epoch has one member; in shared mode, an offset and epoch."""
    owners: dict[tuple[int, ...], str] = {}
    for one in group.ranges:
        places = [(one.partition, one.epoch, at) for at in one.offsets] if group.is_shared else [(one.partition, one.epoch)]
        for place in places:
            if owners.setdefault(place, one.member) != one.member:
                yield Violation("two owners", f"{place} belongs to {owners[place]} and {one.member}")
                break


def _of_commits(ranges: Iterable[Range]) -> Iterator[Violation]:
    """No offset is committed twice: whoever lost a partition, or a range of it, is refused."""
    committed: dict[tuple[int, int], Range] = {}
    for one in ranges:
        if not one.is_committed:
            continue
        for offset in one.offsets:
            other = committed.setdefault((one.partition, offset), one)
            if other is not one:
                what = f"({one.partition}, {offset}) was committed by {other.member} in epoch {other.epoch}"
                yield Violation("committed twice", f"{what} and by {one.member} in epoch {one.epoch}")
                break


def _of_progress(group: Group) -> Iterator[Violation]:
    """Under an epoch a batch goes on where the one before ended, or goes back; no epoch begins beyond what was delivered."""
    ended: dict[tuple[int, int], int] = {}
    for one in group.ranges:
        place = (one.partition, one.epoch)
        if place in ended and one.offsets[0] > ended[place]:
            yield Violation("order", f"epoch {one.epoch} of partition {one.partition} goes on at {one.offsets[0]}")
        ended[place] = max(ended.get(place, 0), one.offsets[-1] + 1)
    reached: dict[int, int] = defaultdict(int)
    begins = {(one.partition, one.epoch): one.offsets[0] for one in reversed(group.ranges)}
    for partition, epoch in sorted(begins):
        if begins[partition, epoch] > reached[partition] and group.promise is not Promise.AT_MOST_ONCE:
            yield Violation("gap", f"epoch {epoch} of partition {partition} begins at {begins[partition, epoch]}")
        reached[partition] = max(reached[partition], ended[partition, epoch])


def _of_effects(effects: Iterable[Name], log: Sequence[Entry]) -> Iterator[Violation]:
    found = Counter(effects)
    for entry in log:
        times = found.pop((entry.key, entry.number), 0)
        if times != 1:
            yield Violation("effect", f"{entry.key} {entry.number} has its effect {times} times")
    for name in found:
        yield Violation("effect", f"{name[0]} {name[1]} has an effect and is not in the log")
