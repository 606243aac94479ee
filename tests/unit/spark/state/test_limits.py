"""When a slot is warned of: once for each threshold, and again only after it was well below it."""

from dataclasses import replace

import pytest

from headwater.model import Lsn
from headwater.postgres.replication.slot import Slot
from headwater.spark.state.limits import Alarms, Limits, uses

SLOT = Slot(
    name="shop",
    plugin="pgoutput",
    database="shop",
    temporary=False,
    active=True,
    active_pid=7,
    restart_lsn=Lsn(900),
    confirmed_flush_lsn=Lsn(1000),
    wal_status="reserved",
    safe_wal_size=100,
    retained_bytes=0,
    lag_bytes=0,
    two_phase=False,
    failover=False,
    synced=False,
    invalidation_reason=None,
)
LIMITS = Limits(wal_bytes=100)


def used(percent):
    return uses(replace(SLOT, safe_wal_size=100 - percent), LIMITS)


@pytest.mark.parametrize(
    ("percent", "threshold"), [(0, 0), (49, 0), (50, 0.5), (79, 0.5), (80, 0.8), (95, 0.95), (120, 0.95)]
)
def test_the_threshold_is_the_highest_that_is_passed(percent, threshold):
    (use,) = used(percent)

    assert use.threshold == threshold


def test_without_a_limit_nothing_is_used():
    assert list(uses(replace(SLOT, safe_wal_size=None), Limits())) == []


def test_a_slot_that_is_lost_or_gone_is_not_warned_of():
    assert list(uses(None, LIMITS)) == []
    assert list(uses(replace(SLOT, invalidation_reason="wal_removed"), LIMITS)) == []


def test_a_slot_that_the_server_may_give_up_at_any_moment_is_past_every_threshold():
    (use,) = uses(replace(SLOT, wal_status="unreserved", safe_wal_size=40), LIMITS)

    assert (use.part, use.threshold) == (1.0, 0.95)
    assert "next checkpoint" in use.said


def test_each_threshold_is_warned_of_once():
    alarms = Alarms()

    warned = [[use.threshold for use in alarms.new(used(percent))] for percent in (10, 52, 55, 79, 81, 90, 96, 100)]

    assert warned == [[], [0.5], [], [], [0.8], [], [0.95], []]


def test_a_slot_on_the_border_does_not_warn_again_and_one_that_came_back_does():
    alarms = Alarms()
    list(alarms.new(used(81)))

    assert alarms.new(used(75)) == []
    assert alarms.new(used(82)) == []
    assert alarms.new(used(20)) == []
    assert [use.threshold for use in alarms.new(used(82))] == [0.8]


def test_a_slot_that_nobody_reads_nears_the_server_s_patience():
    (use,) = uses(replace(SLOT, active=False), Limits(idle_limit_seconds=100, idle_seconds=85.0))

    assert (use.setting, use.threshold) == ("idle_replication_slot_timeout", 0.8)
    assert "in 0:00:15 the server gives it up" in use.said


def test_a_slot_that_is_read_is_not_idle():
    assert list(uses(SLOT, Limits(idle_limit_seconds=100, idle_seconds=None))) == []
