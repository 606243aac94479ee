"""Offsets of an outbox: logged and read again, and what they say of their transactions."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import PositionError
from headwater.model import Lsn, Position, Snapshot, SnapshotRead
from headwater.spark.sources.content import Content
from headwater.spark.sources.outbox.offset import OutboxOffset, Phase, span_between

AT = datetime(2026, 11, 16, 10, tzinfo=UTC)
OFFSET = OutboxOffset(
    "7", "slot", "g1", 2, 4, True, Position(Lsn(500), 3), Phase.RECOVERING, ("2026-11-16 10:00:00+00", "id"),
    SnapshotRead(Snapshot(10, 20, frozenset({12})), Lsn(900)), Content(3, AT, {"a.b": 3}), (7, 8, 9, 11), AT,
)  # fmt: skip


def test_an_offset_that_was_logged_is_the_same_again():
    assert OutboxOffset.from_json(OFFSET.to_json()) == OFFSET
    plain = OutboxOffset("7", "slot", "g1", 1, 1, False, Position(Lsn(1), 0))
    assert OutboxOffset.from_json(plain.to_json()) == plain


@given(st.sets(st.integers(1, 2**40)))
def test_transactions_are_logged_in_runs_and_none_is_lost(xids):
    offset = OutboxOffset("7", "slot", "g1", 1, 1, False, Position(Lsn(1), 0), xids=tuple(sorted(xids)))
    assert OutboxOffset.from_json(offset.to_json()).xids == tuple(sorted(xids))


def test_many_transactions_in_a_row_take_little_room():
    offset = OutboxOffset("7", "slot", "g1", 1, 1, False, Position(Lsn(1), 0), xids=tuple(range(1000, 90_000)))
    assert offset.to_json()["xids"] == "1000-89999"


@pytest.mark.parametrize(
    "wrong", [{}, {"source": "changes"}, {**OFFSET.to_json(), "version": 99}, {**OFFSET.to_json(), "lsn": 3}]
)
def test_what_another_source_or_release_has_logged_is_refused(wrong):
    with pytest.raises(PositionError, match=r"not one of a `headwater\.outbox` source"):
        OutboxOffset.from_json(wrong)


def test_a_range_starts_where_the_one_before_ended_unless_that_was_of_a_lost_slot():
    end = OutboxOffset("7", "slot", "g1", 1, 1, False, Position(Lsn(700), 0))
    assert span_between(OFFSET, end).start == OFFSET.position
    lost = OutboxOffset("7", "slot", "g0", 1, 1, False, Position(Lsn(600), 0))
    assert span_between(lost, end).start == span_between(None, end).start == Position(Lsn(0), 0)
