"""What is said of a pipeline, from its last report, its slot and the server's position."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from headwater.model import Lsn, Position
from headwater.postgres.replication.slot import Slot
from headwater.spark.state import (
    Limits,
    Phase,
    Progress,
    Report,
    SavedReport,
    ServerPosition,
    SinkReport,
    TableLoad,
    TableReport,
    as_json,
    notes,
)

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
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
    safe_wal_size=None,
    retained_bytes=1100,
    lag_bytes=1000,
    two_phase=False,
    failover=False,
    synced=False,
    invalidation_reason=None,
)
REPORT = Report(
    phase=Phase.RUNNING,
    position=Position(Lsn(1000), 3),
    committed_at=NOW - timedelta(seconds=90),
    rows=12,
    rows_per_second=4.0,
    tables={"public.orders": TableReport(12, NOW)},
    sinks={"replica": SinkReport(10, 1, 1, 0.5)},
)
SAVED = SavedReport(REPORT, "shop", NOW - timedelta(hours=1), NOW)
PROGRESS = Progress("shop", "shop", SAVED, SLOT, ServerPosition(Lsn(3000), NOW))


def test_the_lag_is_from_the_slot_to_what_is_durable_at_the_server():
    assert PROGRESS.lag_bytes == 2000
    assert PROGRESS.lag == timedelta(seconds=90)


def test_there_is_no_lag_when_nothing_is_unconfirmed_however_old_the_last_change_is():
    caught_up = replace(PROGRESS, server=ServerPosition(Lsn(1000), NOW))

    assert (caught_up.lag_bytes, caught_up.lag) == (0, timedelta(0))


def test_a_slot_that_is_ahead_of_the_server_s_report_is_no_negative_lag():
    assert replace(PROGRESS, server=ServerPosition(Lsn(10), NOW)).lag_bytes == 0


def test_the_lag_in_seconds_is_unknown_until_a_change_is_delivered():
    nothing_yet = replace(SAVED, report=replace(REPORT, committed_at=None))

    assert replace(PROGRESS, saved=nothing_yet).lag is None
    assert replace(PROGRESS, saved=None).lag is None


def test_a_pipeline_that_is_well_needs_no_words():
    assert notes(PROGRESS) == []


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (replace(PROGRESS, saved=None), "pipeline shop has never run"),
        (replace(PROGRESS, slot=None), "slot shop is gone"),
        (replace(PROGRESS, slot=replace(SLOT, invalidation_reason="wal_removed")), "was invalidated by the server (wal_rem"),
        (replace(PROGRESS, slot=replace(SLOT, active=False)), "it has ended without a word"),
        (replace(PROGRESS, slot_name="other"), "the last run read slot shop, and the file names other"),
        (
            replace(PROGRESS, saved=replace(SAVED, report=replace(REPORT, error="disk full"))),
            "the last run failed: disk full",
        ),
        (
            replace(PROGRESS, saved=replace(SAVED, report=replace(REPORT, phase=Phase.RETRYING, error="away"))),
            "the last run is trying again after: away",
        ),
    ],
)
def test_what_is_not_well_is_said(progress, said):
    assert any(said in note for note in notes(progress))


def test_a_pipeline_that_never_ran_has_lost_no_slot():
    assert notes(replace(PROGRESS, saved=None, slot=None)) == ["pipeline shop has never run; start it with `headwater run`"]


def test_only_a_run_that_should_be_reading_is_stale():
    stopped = replace(SAVED, report=replace(REPORT, phase=Phase.STOPPED))

    assert replace(PROGRESS, slot=None).is_stale
    assert not replace(PROGRESS, slot=None, is_held=True).is_stale
    assert not replace(PROGRESS, saved=stopped, slot=replace(SLOT, active=False)).is_stale


def test_json_has_the_same_keys_whether_or_not_it_ran():
    ran, never = as_json(PROGRESS), as_json(replace(PROGRESS, saved=None, slot=None))

    assert ran.keys() == never.keys()
    assert (ran["position"], ran["lag_bytes"], ran["lag_seconds"]) == ("0/3E8:3", 2000, 90.0)
    assert ran["sinks"] == {"replica": {"changes": 10, "skipped": 1, "letters": 1, "seconds": 0.5}}
    assert ran["tables"] == {"public.orders": {"changes": 12, "last_committed_at": "2026-11-15T12:00:00+00:00"}}
    assert (never["phase"], never["lag_bytes"], never["tables"]) == (None, None, {})


def test_a_paused_pipeline_says_since_when_and_what_it_costs():
    paused = replace(SAVED, paused_at=NOW, report=replace(REPORT, phase=Phase.PAUSED))
    idle = replace(SLOT, active=False, retained_bytes=3 * 1024 * 1024)

    (said,) = notes(replace(PROGRESS, saved=paused, slot=idle))

    assert "paused since 2026-11-15 12:00:00+0000" in said
    assert "3.0 MiB" in said
    assert as_json(replace(PROGRESS, saved=paused))["paused_at"] == "2026-11-15T12:00:00+00:00"


def test_a_slot_that_nears_its_limit_is_said_before_it_is_lost():
    near = replace(PROGRESS, slot=replace(SLOT, safe_wal_size=10), limits=Limits(wal_bytes=100))

    assert any("has used 90% of max_slot_wal_keep_size" in note for note in notes(near))
    assert notes(replace(near, slot=replace(SLOT, safe_wal_size=60))) == []


def test_a_source_that_is_away_hides_nothing_of_what_the_state_database_says():
    away = replace(PROGRESS, slot=None, server=None)

    assert (away.lag_bytes, away.lag, away.is_stale) == (None, None, False)
    assert notes(away) == ["the source does not answer, so that nothing is known of the slot and the lag"]
    assert as_json(away)["rows"] == 12


def test_a_table_that_could_not_be_read_is_said_with_the_reason():
    load = TableLoad("public", "orders", "wanted", 2, 8, 1000, "locked by somebody")

    assert notes(replace(PROGRESS, loads=(load,))) == ["table public.orders could not be read: locked by somebody"]
    assert as_json(replace(PROGRESS, loads=(load,)))["loads"] == {
        "public.orders": {
            "state": "wanted",
            "pieces_done": 2,
            "pieces_total": 8,
            "rows_estimate": 1000,
            "error": "locked by somebody",
        }
    }
