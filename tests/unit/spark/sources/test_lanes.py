"""Lanes: together they hold the range, each keeps the order of what belongs together, and a replay gives the same ones."""

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model import Change, Lsn, Snapshot, SnapshotRead
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.columnar import decode_columns
from headwater.spark.settings import LaneRule
from headwater.spark.sources.lanes import lanes_of, self_contained, split, tables_in, unseen, without
from tests.data.record import load, recordings
from tests.support.capture import pgoutput_writer as write
from tests.support.capture.change_streams import TABLES, changes_of, relation, streams
from tests.support.capture.recordings import TYPES, batches

SIZES = st.sampled_from([1, 60, 200, 1 << 20])
LANES = st.integers(1, 5)
RULES = st.sampled_from(LaneRule)
ORDERS, LINES, WHOLE, EVENTS = TABLES

# By the number of lanes. Checkpoints depend on them: they can never change.
EXPECTED_TABLE_LANES = {
    2: [1, 1, 0, 1, 0, 1, 0, 1],
    4: [3, 1, 0, 1, 0, 3, 2, 3],
    7: [1, 3, 4, 1, 6, 0, 6, 6],
    256: [131, 49, 100, 185, 84, 159, 230, 199],
}
EXPECTED_KEY_LANES = {
    2: [1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1],
    4: [1, 2, 0, 1, 2, 3, 1, 0, 2, 0, 2, 1, 1, 3],
    7: [0, 6, 0, 3, 2, 2, 0, 0, 0, 6, 0, 2, 3, 3],
    256: [237, 246, 212, 133, 94, 59, 253, 96, 30, 52, 134, 145, 225, 159],
}


def _by_lane(pieces: list[Batch], lanes: int, rule: LaneRule, dropped: frozenset[int] = frozenset()):
    found: dict[int, list[Change]] = defaultdict(list)
    for laned in split(pieces, lanes, rule, dropped):
        changes = changes_of([laned.batch])
        assert len(changes) == laned.batch.changes
        found[laned.lane] += changes
    return dict(found)


def _sorted(lanes: dict[int, list[Change]]) -> list[Change]:
    return sorted((change for lane in lanes.values() for change in lane), key=lambda change: change.position)


def _key(change: Change) -> object:
    """What has to keep its order in key lanes: the row, if the stream tells which; else the table."""
    name, columns, identity = next(table for table in TABLES.values() if table[0] == change.table)
    keys = [column for column, _, _, is_key in columns if is_key and identity == "d"]
    row = change.key or change.after or {}
    return (name, *(row[column] for column in keys)) if keys and change.op != "t" else name


def _assert_order_kept(lanes: dict[int, list[Change]], of):
    seen = defaultdict(set)
    for lane, changes in lanes.items():
        places = defaultdict(list)
        for change in changes:
            places[of(change)].append(change.position)
            seen[of(change)].add(lane)
        assert all(each == sorted(each) for each in places.values())
    assert all(len(where) == 1 for where in seen.values()), "what belongs together was parted"


@given(streams(), SIZES, LANES, RULES)
def test_the_lanes_together_hold_the_range_with_the_same_positions(stream, size, lanes, rule):
    pieces = batches(stream, size)
    found = _by_lane(pieces, lanes, rule)
    assert _sorted(found) == changes_of(pieces)
    assert set(found) <= set(range(lanes))


@given(streams(), SIZES, LANES)
def test_a_table_is_in_one_lane_and_in_commit_order(stream, size, lanes):
    found = _by_lane(batches(stream, size), lanes, LaneRule.TABLE)
    _assert_order_kept(found, lambda change: change.table)
    for changes in found.values():
        positions = [change.position for change in changes]
        assert positions == sorted(positions)


@given(streams(barriers=False, few_keys=True), SIZES, LANES)
def test_a_key_is_in_one_lane_and_in_commit_order(stream, size, lanes):
    _assert_order_kept(_by_lane(batches(stream, size), lanes, LaneRule.KEY), _key)


@given(streams() | streams(barriers=False), SIZES, SIZES, LANES, RULES, st.sets(st.sampled_from(sorted(TABLES))))
def test_a_range_that_comes_in_other_pieces_is_split_the_same_way_and_in_the_same_order(
    stream, one, other, lanes, rule, dropped
):
    here, there = (_by_lane(batches(stream, size), lanes, rule, frozenset(dropped)) for size in (one, other))
    assert here == there


@given(streams(), SIZES, LANES, RULES, st.sets(st.sampled_from(sorted(TABLES)), min_size=1))
def test_dropped_tables_are_gone_and_the_others_keep_their_positions(stream, size, lanes, rule, dropped):
    pieces = batches(stream, size)
    names = {TABLES[oid][0] for oid in dropped}
    kept = [change for change in changes_of(pieces) if change.table not in names]
    assert _sorted(_by_lane(pieces, lanes, rule, frozenset(dropped))) == kept


@given(streams(), SIZES, LANES, RULES)
def test_what_is_ready_to_travel_describes_all_its_tables_and_no_others(stream, size, lanes, rule):
    for laned in split(batches(stream, size), lanes, rule):
        alone = self_contained(laned.batch)
        assert changes_of([alone]) == changes_of([laned.batch])
        tables = {change.table for change in changes_of([alone])}
        assert {TABLES[oid][0] for oid in alone.relations} <= tables


@given(streams(), SIZES, LANES, RULES)
def test_columns_of_a_lane_stand_where_its_rows_stand(stream, size, lanes, rule):
    for laned in split(batches(stream, size), lanes, rule):
        groups = decode_columns(laned.batch, TYPES)
        places = [
            place
            for group in groups
            for place in zip(group.places.commit_lsn.tolist(), group.places.ordinal.tolist(), strict=True)
        ]
        assert sorted(places) == [tuple(change.position) for change in changes_of([laned.batch])]


@pytest.mark.parametrize("rule", LaneRule)
@pytest.mark.parametrize(
    ("scenario", "version"), [(s.name, v) for s, v in recordings() if s.name not in ("prepared", "schema")]
)
def test_every_recording_is_whole_in_its_lanes(scenario, version, rule):
    pieces = batches(load(scenario, version), 2_000)
    assert _sorted(_by_lane(pieces, 3, rule)) == changes_of(pieces)


def _transaction(*changes: bytes, lsn: int = 100) -> list[bytes]:
    return [write.begin(lsn), *map(relation, TABLES), *changes, write.commit(lsn, lsn + 5)]


def test_the_lanes_of_tables_are_the_same_for_ever():
    """A range that an earlier release has logged must be split as that one did."""
    oids = [16384, 16401, 16402, 16403, 16404, 20000, 123_456_789, 4_294_967_295]
    stream = [write.begin(100)]
    for oid in oids:
        stream += [write.relation(oid, f"t{oid}", [("id", 23, -1, True)]), write.insert(oid, ["1"])]
    pieces = batches([*stream, write.commit(100, 105)])
    for lanes, expected in EXPECTED_TABLE_LANES.items():
        found = {
            change.table: lane for lane, changes in _by_lane(pieces, lanes, LaneRule.TABLE).items() for change in changes
        }
        assert [found[f"t{oid}"] for oid in oids] == expected


def test_the_lanes_of_keys_are_the_same_for_ever():
    orders = ["0", "1", "2", "3", "10", "42", "-7", "2147483647"]
    lines = [("1", "a"), ("1", "b"), ("2", "a"), ("2", ""), ("3", "ü"), ("4", "x" * 100)]
    changes = [write.insert(ORDERS, [key, None]) for key in orders]
    changes += [write.delete(LINES, [None, *key]) for key in lines]
    (batch,) = batches(_transaction(*changes))
    for lanes, expected in EXPECTED_KEY_LANES.items():
        found = lanes_of(batch, lanes).tolist()
        assert [lane for lane in found if lane >= 0] == expected


def test_lanes_are_used_evenly():
    changes = [write.insert(ORDERS, [str(key), None]) for key in range(4000)]
    (batch,) = batches(_transaction(*changes))
    found = lanes_of(batch, 8)
    sizes = [int((found == lane).sum()) for lane in range(8)]
    assert sum(sizes) == 4000
    assert all(400 < size < 600 for size in sizes), sizes


def test_the_same_key_is_in_the_same_lane_whatever_happens_to_its_row():
    changes = [
        write.insert(LINES, ["v", "7", "b"]),
        write.update(LINES, [None, "7", "b"]),
        write.delete(LINES, [None, "7", "b"]),
    ]
    pieces = batches(_transaction(*changes))
    (lane,) = _by_lane(pieces, 50, LaneRule.KEY).values()
    assert [change.op for change in lane] == ["c", "u", "d"]


def test_keys_that_differ_only_in_where_a_column_ends_are_told_apart():
    table = [("a", 25, -1, True), ("b", 25, -1, True)]
    rows = [
        write.insert(1, ["ab", "c"]),
        write.insert(1, ["a", "bc"]),
        write.insert(1, ["", "abc"]),
        write.insert(1, ["abc", ""]),
    ]
    (batch,) = batches([write.begin(1), write.relation(1, "t", table), *rows, write.commit(1, 2)])
    lanes = lanes_of(batch, 1 << 20)
    assert len({lane for lane in lanes.tolist() if lane >= 0}) == 4


def test_a_key_that_is_null_has_a_lane():
    table = [("a", 25, -1, True), ("b", 25, -1, True)]
    (batch,) = batches(
        [write.begin(1), write.relation(1, "t", table, "i"), write.insert(1, [None, "x"]), write.commit(1, 2)]
    )
    assert [lane for lane in lanes_of(batch, 4).tolist() if lane >= 0] != []


def test_a_table_whose_identity_is_the_whole_row_or_nothing_stays_whole_in_key_lanes():
    changes = [write.insert(WHOLE, [str(n), "v"]) for n in range(20)] + [write.insert(EVENTS, [str(n)]) for n in range(20)]
    for laned in split(batches(_transaction(*changes)), 7, LaneRule.KEY):
        assert laned.key_lane is None
        assert len(changes_of([laned.batch])) in (20, 40)


@pytest.mark.parametrize(
    "barrier",
    [write.truncate(EVENTS), write.update(ORDERS, ["2", "v"], ["1", None]), write.truncate(ORDERS, LINES)],
    ids=["truncate", "changed key", "truncate of several"],
)
def test_a_range_with_a_barrier_in_it_is_one_lane_by_key_and_no_other_rule(barrier):
    changes = [write.insert(ORDERS, [str(n), "v"]) for n in range(20)]
    pieces = [*batches(_transaction(*changes)), *batches(_transaction(barrier, lsn=200))]
    (laned, *more) = split(pieces, 8, LaneRule.KEY)
    assert {each.lane for each in (laned, *more)} == {0}
    assert laned.key_lane is None
    whole = _by_lane(pieces, 8, LaneRule.KEY)[0]
    assert whole == changes_of(pieces)
    assert len(_by_lane([pieces[0]], 8, LaneRule.KEY)) > 1


def test_a_truncate_of_several_tables_is_parted_among_their_lanes():
    changes = [write.insert(ORDERS, ["1", None]), write.truncate(*TABLES), write.insert(LINES, ["v", "1", "b"])]
    pieces = batches(_transaction(*changes))
    lanes = _by_lane(pieces, 50, LaneRule.TABLE)
    assert len(lanes) == 4
    assert _sorted(lanes) == changes_of(pieces)
    truncates = [change for change in _sorted(lanes) if change.op == "t"]
    assert [(change.table, change.position.ordinal) for change in truncates] == [
        ("orders", 1),
        ("lines", 2),
        ("whole", 3),
        ("events", 4),
    ]


@pytest.mark.parametrize("identity", ["i", "f"])
def test_a_range_in_which_a_table_gets_another_identity_is_one_lane_by_key(identity):
    """The same row has another key then, and would be in two lanes."""
    before = write.relation(1, "t", [("a", 23, -1, True), ("b", 23, -1, False)])
    after = write.relation(1, "t", [("a", 23, -1, identity == "f"), ("b", 23, -1, True)], identity)
    rows = [write.insert(1, [str(n), str(n + 1)]) for n in range(20)]
    update = write.update(1, ["1", "2"], ["1", "2"], "O") if identity == "f" else write.update(1, ["1", "2"])
    first = [write.begin(100), before, *rows, write.commit(100, 105)]
    second = [write.begin(200), after, update, write.commit(200, 205)]
    for size in (1 << 20, 1):
        lanes = _by_lane(batches([*first, *second], size), 8, LaneRule.KEY)
        assert list(lanes) == [0]
        assert lanes[0] == changes_of(batches([*first, *second]))


@pytest.mark.parametrize("rule", LaneRule)
@pytest.mark.parametrize("lanes", [2, 3, 8, 50])
def test_a_table_that_takes_the_name_of_another_is_in_its_lane(rule, lanes):
    """A sink knows tables by their names, so what both of them did to a row has to stay in order."""
    columns = [("id", 23, -1, True), ("v", 25, -1, False)]
    old, new = write.relation(1, "t", columns), write.relation(2, "t", columns)
    first = [write.begin(100), old, *(write.insert(1, [str(n), "old"]) for n in range(5)), write.commit(100, 105)]
    second = [write.begin(200), new, *(write.insert(2, [str(n), "new"]) for n in range(5)), write.commit(200, 205)]
    found = _by_lane(batches([*first, *second]), lanes, rule)
    _assert_order_kept(found, lambda change: change.table if rule is LaneRule.TABLE else (change.after or {})["id"])
    assert sum(map(len, found.values())) == 10


def test_a_table_that_is_only_described_again_is_no_barrier():
    """As it is after every reconnection: a replay would be split otherwise than the first time."""
    rows = [write.insert(ORDERS, [str(n), "v"]) for n in range(20)]
    stream = _transaction(*rows) + _transaction(*rows, lsn=200)
    assert len(_by_lane(batches(stream), 8, LaneRule.KEY)) > 1


@pytest.mark.parametrize(
    "columns",
    [
        [("id", 23, -1, True), ("v", 25, -1, False), ("w", 25, -1, False)],
        [("id", 23, -1, True), ("w", 25, -1, False)],
        [("id", 23, -1, True), ("v", 1043, 14, False)],
    ],
)
def test_a_range_in_which_a_table_gets_other_columns_stays_in_one_lane(columns):
    """A target is altered once, behind all rows that have the old columns."""
    rows = [write.insert(ORDERS, [str(n), "v"]) for n in range(20)]
    stream = _transaction(*rows)
    described = write.relation(ORDERS, "orders", columns)
    stream += [write.begin(300), described, write.insert(ORDERS, ["1"] + ["v"] * (len(columns) - 1)), write.commit(300, 305)]
    found = _by_lane(batches(stream), 8, LaneRule.KEY)
    assert [len(changes) for changes in found.values()] == [21]


def test_a_lane_of_a_lane_keeps_the_positions():
    """A pipeline may split again what has already been split."""
    pieces = batches(
        _transaction(write.insert(EVENTS, ["v"]), write.insert(ORDERS, ["1", None]), write.insert(LINES, ["v", "1", "b"]))
    )
    twice = [again for laned in split(pieces, 50, LaneRule.TABLE) for again in split([laned.batch], 3, LaneRule.KEY)]
    assert _sorted({number: changes_of([laned.batch]) for number, laned in enumerate(twice)}) == changes_of(pieces)


def test_a_batch_that_is_all_in_one_lane_travels_as_it_is():
    (batch,) = batches(_transaction(write.insert(ORDERS, ["1", None])))
    (laned,) = split([batch], 4, LaneRule.TABLE)
    assert laned.batch is batch


@given(streams(), st.sampled_from([1, 200, 1 << 20]), st.sets(st.sampled_from(sorted(TABLES))))
def test_without_some_tables_the_others_keep_their_changes_and_positions(stream, size, oids):
    names = {TABLES[oid][0] for oid in oids}
    for batch in batches(stream, size):
        kept = without(batch, frozenset(oids))
        wanted = [change for change in changes_of([batch]) if change.table not in names]
        assert ([] if kept is None else changes_of([kept])) == wanted
        assert kept is None or kept.changes == len(wanted)


@given(streams(), st.sampled_from([1, 200, 1 << 20]), st.sets(st.sampled_from(sorted(TABLES))), st.integers(990, 1100))
def test_what_a_snapshot_of_tables_holds_is_left_out_and_nothing_else(stream, size, oids, until):
    names = {TABLES[oid][0] for oid in oids}
    read = SnapshotRead(Snapshot(3, 5, frozenset({3})), Lsn(until))
    for batch in batches(stream, size):
        kept = unseen(batch, frozenset(oids), read)
        wanted = [
            change
            for change in changes_of([batch])
            if change.table not in names or not read.holds(change.xid, change.position.commit_lsn)
        ]
        assert ([] if kept is None else changes_of([kept])) == wanted


def test_the_tables_of_a_batch_are_known_by_all_the_names_that_they_have_in_it():
    described = [write.relation(7, name, [("id", 23, -1, True)]) for name in ("old", "new")]
    stream = [write.begin(1000, 0), described[0], write.insert(7, ["1"]), described[1], write.insert(7, ["2"])]
    (batch,) = batches([*stream, write.commit(1000, 1010)])
    assert tables_in(replace(batch, relations={7: described[0]})) == {7: {("public", "old"), ("public", "new")}}
