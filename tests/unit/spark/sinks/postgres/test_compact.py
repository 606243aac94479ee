"""What a run of changes is compacted to leaves the target as the changes one by one would."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model import UNCHANGED
from headwater.spark.sinks.postgres.compact import Irregular, barriers, compact
from headwater.spark.sinks.postgres.log import Log
from tests.support.capture import pgoutput_writer as write
from tests.support.sinks.changesets import OID, log_of

COLUMNS = ("a", "b", "v", "big")
KEY = ("a", "b")
KEYS = [(str(a), str(b)) for a in range(3) for b in range(2)]

Table = dict[tuple[str | None, ...], tuple[str | None, ...]]


@dataclass
class Source:
    """A table at the source, and the messages that its changes make."""

    rows: Table = field(default_factory=dict)
    messages: list[bytes] = field(default_factory=list)

    def insert(self, key, v, big):
        if key not in self.rows:
            self.rows[key] = (*key, v, big)
            self.messages.append(write.insert(OID, self.rows[key]))

    def update(self, key, v, big, target):
        if key not in self.rows or (target != key and target in self.rows):
            return
        kept = self.rows.pop(key)[3]
        self.rows[target] = (*target, v, kept if big is UNCHANGED else big)
        old = None if target == key else (*key, None, None)
        self.messages.append(write.update(OID, (*target, v, big), old))

    def delete(self, key):
        if self.rows.pop(key, None):
            self.messages.append(write.delete(OID, (*key, None, None)))

    def truncate(self):
        self.rows.clear()
        self.messages.append(write.truncate(OID))


texts = st.none() | st.sampled_from(["", "x", "y", "z"])
keys = st.sampled_from(KEYS)
steps = st.one_of(
    st.tuples(st.just("insert"), keys, texts, texts),
    st.tuples(st.just("insert"), keys, texts, texts),
    st.tuples(st.just("update"), keys, texts, st.just(UNCHANGED) | texts, keys),
    st.tuples(st.just("update"), keys, texts, st.just(UNCHANGED) | texts, keys),
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("truncate")),
)


def play(source: Source, moves) -> None:
    for name, *arguments in moves:
        getattr(source, name)(*arguments)


def apply(table: Table, log: Log) -> None:
    """As the sink does: parts between barriers compacted, barriers by themselves."""
    start = 0
    for barrier in barriers(log).tolist():
        apply_compacted(table, log[start:barrier])
        (old,), (new,) = rows(log[barrier : barrier + 1].old), rows(log[barrier : barrier + 1].values)
        kept = table.pop(old)
        table[new[:2]] = tuple(kept[n] if n in log.unchanged and log.unchanged[n][barrier] else new[n] for n in range(4))
        start = barrier + 1
    apply_compacted(table, log[start:])


def apply_compacted(table: Table, log: Log) -> None:
    if not len(log):
        return
    work = compact(log)
    if work.truncate:
        table.clear()
    for key in rows(work.deleted.columns):
        table.pop(key, None)
    marks = [None] * len(work.upserted) if work.upserted.kept is None else work.upserted.kept.to_pylist()
    for row, kept in zip(rows(work.upserted.columns), marks, strict=True):
        numbers = [int(number) - 1 for number in (kept or "{}").strip("{}").split(",") if number]
        table[row[:2]] = tuple(table[row[:2]][n] if n in numbers else row[n] for n in range(4))
    for row in rows(work.fresh.columns):
        assert row[:2] not in table, "a fresh row is one that the target cannot have"
        table[row[:2]] = row


def rows(columns) -> list[tuple[str | None, ...]]:
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


@given(st.lists(steps, max_size=12), st.lists(steps, min_size=1, max_size=30))
def test_compacted_changes_leave_the_table_as_the_changes_one_by_one_do(before, moves):
    source = Source()
    play(source, before)
    target = dict(source.rows)
    source.messages.clear()
    play(source, moves)
    if source.messages:
        apply(target, log_of(source.messages, COLUMNS, KEY))

    assert target == source.rows


@given(st.lists(steps, min_size=1, max_size=30), st.data())
def test_halves_of_a_run_applied_after_each_other_are_the_run(moves, data):
    source = Source()
    play(source, moves)
    if not source.messages:
        return
    log, target = log_of(source.messages, COLUMNS, KEY), Table()
    cut = data.draw(st.integers(0, len(log)))
    apply(target, log[:cut])
    apply(target, log[cut:])

    assert target == source.rows


def test_a_row_is_written_once_however_often_it_changed():
    log = log_of([write.update(OID, ("1", "1", str(n), "big")) for n in range(50)], COLUMNS, KEY)

    work = compact(log)

    assert rows(work.upserted.columns) == [("1", "1", "49", "big")]
    assert len(work.deleted) == len(work.fresh) == 0


def test_an_unchanged_column_is_carried_on_from_an_earlier_change_of_the_same_key():
    messages = [
        write.insert(OID, ("1", "1", "a", "large")),
        write.update(OID, ("1", "1", "b", UNCHANGED)),
        write.update(OID, ("2", "1", "c", UNCHANGED)),
    ]

    work = compact(log_of(messages, COLUMNS, KEY))

    assert rows(work.fresh.columns) == [("1", "1", "b", "large")]
    assert work.fresh.kept is None
    assert work.upserted.kept is not None and work.upserted.kept.to_pylist() == ["{4}"]


def test_what_came_before_a_truncate_is_not_written():
    messages = [
        write.insert(OID, ("1", "1", "a", None)),
        write.truncate(OID),
        write.insert(OID, ("2", "1", "b", None)),
    ]

    work = compact(log_of(messages, COLUMNS, KEY))

    assert work.truncate
    assert rows(work.fresh.columns) == [("2", "1", "b", None)]


def test_a_changed_key_is_a_row_that_went_and_one_that_came():
    messages = [write.update(OID, ("2", "1", "a", None), ("1", "1", None, None))]

    work = compact(log_of(messages, COLUMNS, KEY))

    assert rows(work.deleted.columns) == [("1", "1")]
    assert rows(work.fresh.columns) == [("2", "1", "a", None)]


def test_under_full_identity_the_key_of_the_target_tells_whether_it_changed():
    messages = [
        write.update(OID, ("1", "1", "a", None), ("1", "1", "b", None), "O"),
        write.update(OID, ("2", "1", "a", None), ("1", "1", "a", None), "O"),
    ]

    log = log_of(messages, COLUMNS, KEY, "f")

    assert log.moved.tolist() == [False, True]


def test_a_key_change_that_keeps_a_column_is_a_barrier():
    messages = [
        write.insert(OID, ("1", "1", "a", "large")),
        write.update(OID, ("2", "1", "a", UNCHANGED), ("1", "1", None, None)),
    ]

    assert barriers(log_of(messages, COLUMNS, KEY)).tolist() == [1]


def test_an_update_of_a_row_that_is_gone_is_left_to_the_changes_one_by_one():
    messages = [write.delete(OID, ("1", "1", None, None)), write.update(OID, ("1", "1", "a", UNCHANGED))]

    with pytest.raises(Irregular):
        compact(log_of(messages, COLUMNS, KEY))


@given(st.lists(st.tuples(st.sampled_from("ciud"), st.sampled_from("xyz"), st.sampled_from("xyz")), max_size=40))
def test_rows_without_a_key_are_counted(moves):
    """Each distinct row is there as often as at the source."""
    source: list[str | None] = ["x", "x", "y"]
    target, messages = list(source), []
    for kind, old, new in moves:
        if kind in "ci":
            source.append(new)
            messages.append(write.insert(OID, (new, None)))
        elif old in source:
            source.remove(old)
            if kind == "u":
                source.append(new)
                messages.append(write.update(OID, (new, None), (old, None), "O"))
            else:
                messages.append(write.delete(OID, (old, None), "O"))
    if messages:
        work = compact(log_of(messages, ("v", "w"), (), "f"))
        for row in rows(work.deleted.columns):
            target.remove(row[0])
        target += [row[0] for row in rows(work.fresh.columns)]
        gone, came = set(rows(work.deleted.columns)), set(rows(work.fresh.columns))
        assert not gone & came, "a row that went and came again is not touched"

    assert Counter(target) == Counter(source)
