"""What a run tells of itself: phases in the log, signs of life, and how long batches took."""

import logging

import pytest

from headwater.model import Lsn, Position
from headwater.spark.reporter import BATCH_SECONDS, Delivered, Reporter
from headwater.spark.settings import ChangesSettings, NoopSinkSettings, PipelineSettings
from headwater.spark.sinks.sink import Written
from headwater.spark.sources.content import Content
from headwater.spark.state import Phase

SETTINGS = PipelineSettings(
    name="shop",
    source=ChangesSettings(url="host=nowhere", tables=("orders",), slot="shop_slot", publication="shop"),
    sinks=(NoopSinkSettings(name="none"),),
    checkpoint="checkpoint",
    state_url="host=nowhere",
)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def reporter(clock):
    return Reporter(SETTINGS, clock)


def deliver(reporter, seconds):
    content = Content(3, None, {"public.orders": 3})
    reporter.add(Delivered(Position(Lsn(0x10), 2), content, {"none": (Written(3), seconds)}, seconds))


def test_a_phase_is_logged_once_with_pipeline_phase_slot_and_position(reporter, caplog):
    caplog.set_level(logging.INFO)
    deliver(reporter, 0.1)

    reporter.enter(Phase.RUNNING)
    reporter.enter(Phase.RUNNING)

    (record,) = caplog.records
    facts = {name: getattr(record, name) for name in ("pipeline", "phase", "slot", "position")}
    assert facts == {"pipeline": "shop", "phase": "running", "slot": "shop_slot", "position": "0/10:2"}
    assert record.getMessage() == "pipeline shop: running"


def test_what_fails_is_not_logged_here_since_it_is_raised_or_retried(reporter, caplog):
    caplog.set_level(logging.INFO)

    reporter.enter(Phase.FAILED, "disk full")

    assert caplog.records == []
    assert reporter.report.error == "disk full"


def test_batches_are_counted_by_the_time_they_took(reporter):
    for seconds in (0.01, 0.05, 0.06, 3.0, 1000.0):
        deliver(reporter, seconds)

    counted = dict(zip([*BATCH_SECONDS, None], reporter.pulse.times, strict=True))
    assert {bound: count for bound, count in counted.items() if count} == {0.05: 2, 0.1: 1, 5.0: 1, None: 1}
    assert (reporter.pulse.batches, reporter.pulse.seconds) == (5, pytest.approx(1003.12))


def test_a_batch_is_under_way_from_its_beginning_through_all_sinks_to_its_end(reporter, clock):
    reporter.begin()
    clock.now = 101.0
    reporter.begin("replica")
    assert (reporter.pulse.batch_at, reporter.pulse.sink, reporter.pulse.sink_at) == (100.0, "replica", 101.0)

    reporter.end()
    assert (reporter.pulse.batch_at, reporter.pulse.sink) == (None, None)


def test_a_run_that_looks_around_is_alive(reporter, clock):
    clock.now = 142.0
    reporter.look()

    assert reporter.pulse.looked_at == 142.0
