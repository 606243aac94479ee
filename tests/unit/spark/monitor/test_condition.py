"""Healthy and ready: what each phase and each standstill means for whoever asks."""

from dataclasses import replace

import pytest

from headwater.spark.monitor.condition import why_unhealthy, why_unready
from headwater.spark.reporter import Pulse
from headwater.spark.state import Phase

PULSE = Pulse(looked_at=1000.0, ended_at=1000.0)


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.FAILED])
def test_a_run_that_may_still_make_progress_is_healthy(phase):
    assert why_unhealthy(phase, PULSE, now=1000.0) is None


def test_a_run_that_has_failed_is_not_healthy():
    assert why_unhealthy(Phase.FAILED, PULSE, now=1000.0) == "the run has failed"


def test_a_run_that_does_not_look_around_any_more_is_dead():
    assert why_unhealthy(Phase.RUNNING, PULSE, now=1059.0) is None
    assert "no sign of life for 61 s" in (why_unhealthy(Phase.RUNNING, PULSE, now=1061.0) or "")
    assert why_unhealthy(Phase.STANDING_BY, PULSE, now=9999.0) is None


def test_a_batch_that_never_ends_is_a_batch_that_is_stuck():
    stuck = replace(PULSE, looked_at=2000.0, batch_at=1000.0, sink="replica")

    assert why_unhealthy(Phase.RUNNING, stuck, now=1800.0) is None
    assert "in sink replica" in (why_unhealthy(Phase.RUNNING, stuck, now=2000.0) or "")


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.RUNNING])
def test_only_a_run_that_runs_is_ready(phase):
    assert why_unready(phase, PULSE, 0.0, now=1000.0) == f"the run is {phase}"


def test_a_run_is_not_ready_while_its_position_stands_still_and_no_batch_ends():
    assert why_unready(Phase.RUNNING, PULSE, 0.0, now=1030.0) is None
    assert why_unready(Phase.RUNNING, PULSE, 29.0, now=1030.0) is None
    assert "stands still for 30 s" in (why_unready(Phase.RUNNING, PULSE, 30.0, now=1030.0) or "")
    assert why_unready(Phase.RUNNING, replace(PULSE, ended_at=1025.0), 30.0, now=1030.0) is None
