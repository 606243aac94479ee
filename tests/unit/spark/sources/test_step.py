"""What a batch holds, told from the two offsets that bound it."""

from dataclasses import replace

from headwater.model import Lsn, Position, Snapshot, SnapshotRead
from headwater.spark.settings import LaneRule
from headwater.spark.sources.load import Join, Load
from headwater.spark.sources.offset import Offset
from headwater.spark.sources.step import step_between

ITEM, NOTE, LATER = ("public", "item"), ("public", "note"), ("public", "later")
READ = SnapshotRead(Snapshot(3, 9, frozenset()), Lsn(150))


def at(lsn: int, ordinal: int = 0) -> Position:
    return Position(Lsn(lsn), ordinal)


BEFORE = Offset("1", "hw", at(100), 1, 4, LaneRule.TABLE, dropped=(LATER,))
OPENING = Load("a", (ITEM, NOTE), (1, 1), at(100))
READING = replace(OPENING, read=READ, pieces=5, delivered=2)


def test_a_batch_of_the_stream_leaves_out_what_waits_or_is_being_read():
    step = step_between(replace(BEFORE, load=OPENING), replace(BEFORE, position=at(120), load=READING))
    assert (step.start, step.end, step.only) == (at(100), at(120), frozenset())
    assert step.without == {ITEM, NOTE, LATER}
    assert (step.load, step.first, step.last, step.completes) == (READING, 0, 2, False)


def test_pieces_come_from_where_the_last_batch_ended_and_those_of_another_attempt_from_the_first():
    more = replace(READING, delivered=4)
    assert step_between(replace(BEFORE, load=READING), replace(BEFORE, load=more)).first == 2
    other = replace(more, attempt="b")
    assert step_between(replace(BEFORE, load=READING), replace(BEFORE, load=other)).first == 0


def test_an_attempt_takes_effect_once():
    done, complete = replace(READING, delivered=5), replace(READING, delivered=5, is_complete=True)
    assert step_between(replace(BEFORE, load=done), replace(BEFORE, load=complete)).completes
    later = replace(BEFORE, position=at(130), load=complete)
    step = step_between(replace(BEFORE, load=complete), later)
    assert (step.completes, step.load, step.without) == (False, None, frozenset((ITEM, NOTE, LATER)))


def test_held_changes_come_by_themselves_and_filtered():
    complete = replace(READING, delivered=5, is_complete=True)
    before = replace(BEFORE, position=at(200), load=complete)
    part = step_between(before, replace(before, load=replace(complete, position=at(150))))
    assert (part.start, part.end, part.only) == (at(100), at(150), frozenset((ITEM, NOTE)))
    assert part.joins == (Join((ITEM, NOTE), READ),)
    last = step_between(before, replace(before, load=None))
    assert (last.start, last.end, last.only) == (at(100), at(200), frozenset((ITEM, NOTE)))


def test_tables_that_were_read_are_followed_without_what_their_snapshot_holds():
    join = Join((ITEM,), READ)
    step = step_between(replace(BEFORE, joins=(join,)), replace(BEFORE, position=at(160)))
    assert (step.joins, step.without) == ((join,), frozenset((LATER,)))
