"""The xid arithmetic of the join, against what a server with 64-bit ids would say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.model import Lsn, Snapshot, SnapshotRead

EPOCH = 1 << 32
xids = st.one_of(
    st.integers(3, 2**63),
    st.integers(1, 40).flatmap(lambda epoch: st.integers(epoch * EPOCH - 50, epoch * EPOCH + 50)),
)


@st.composite
def snapshots(draw):
    xmin = draw(xids)
    xmax = xmin + draw(st.integers(0, 200))
    running = draw(st.frozensets(st.integers(xmin, xmax - 1), max_size=20)) if xmax > xmin else frozenset()
    return Snapshot(xmin, xmax, running)


@given(snapshots())
def test_a_snapshot_prints_and_reads_back_as_the_same(snapshot):
    assert Snapshot.parse(str(snapshot)) == snapshot


@given(snapshots(), st.integers(-(2**31) + 1, 2**31 - 1))
def test_a_short_id_widens_to_the_one_it_was_cut_from(snapshot, distance):
    xid = snapshot.xmax + distance
    if xid >= 3:
        assert snapshot.widen(xid % EPOCH) == xid


@given(snapshots(), st.integers(0, EPOCH - 1))
def test_widening_keeps_the_low_bits_and_never_goes_below_the_first_id(snapshot, short):
    wide = snapshot.widen(short)
    assert wide % EPOCH == short
    assert wide >= 0


@given(snapshots(), st.integers(-300, 300))
def test_a_snapshot_sees_what_had_ended_and_nothing_that_ran_or_came_later(snapshot, distance):
    xid = snapshot.xmax + distance
    expected = xid < snapshot.xmax and xid not in snapshot.running
    assert snapshot.sees(xid) == expected


@given(snapshots(), st.integers(-300, 300), st.integers(0, 1000), st.integers(0, 1000))
def test_a_transaction_is_skipped_only_if_it_is_seen_and_committed_before_the_bound(snapshot, distance, commit, until):
    xid = max(3, snapshot.xmax + distance)
    read = SnapshotRead(snapshot, Lsn(until))
    assert read.holds(xid % EPOCH, Lsn(commit)) == (snapshot.sees(xid) and commit < until)


def test_an_id_that_came_round_again_is_not_taken_for_the_old_one():
    read = SnapshotRead(Snapshot(1000, 1000, frozenset()), until=Lsn(500))
    assert read.holds(999, Lsn(400))
    assert not read.holds(999, Lsn(2**40))


def test_plain_comparison_of_short_ids_would_be_wrong_across_the_border():
    snapshot = Snapshot(EPOCH - 2, EPOCH + 5, frozenset({EPOCH + 3}))
    assert [snapshot.sees(snapshot.widen(xid)) for xid in (EPOCH - 3, EPOCH - 1, 3, 4, 5)] == [
        True,
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("text", ["", "1", "1:2", "a:b:", "20:10:", "10:20:30", "10:20:5", "0:3:"])
def test_what_is_no_snapshot_is_refused(text):
    with pytest.raises(ValueError, match="snapshot"):
        Snapshot.parse(text)
