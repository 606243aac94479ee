"""Findings about a server's version and settings."""

from dataclasses import replace

import pytest

from headwater.cli.check.finding import Level
from headwater.cli.check.server import check_server
from tests.support.capture.catalog_values import SERVER


def found(subject, *, needs_slot=True, **facts):
    findings = {finding.subject: finding for finding in check_server(replace(SERVER, **facts), needs_slot=needs_slot)}
    return findings.get(subject)


def test_a_well_set_server_has_nothing_but_good_news():
    assert {finding.level for finding in check_server(SERVER, needs_slot=True)} == {Level.OK}


@pytest.mark.parametrize(
    ("subject", "facts", "level"),
    [
        ("server version", {"version_number": 140010, "version": "14.10"}, Level.ERROR),
        ("server version", {"version_number": 150000, "version": "15.0"}, Level.OK),
        ("server version", {"version_number": 190000, "version": "19.0"}, Level.WARNING),
        ("wal_level", {"wal_level": "replica"}, Level.ERROR),
        ("standby", {"in_recovery": True, "version_number": 150000}, Level.ERROR),
        ("standby", {"in_recovery": True}, Level.WARNING),
        ("replication slots", {"used_replication_slots": 10}, Level.ERROR),
        ("replication slots", {"used_replication_slots": 9}, Level.WARNING),
        ("replication slots", {"used_replication_slots": 8}, Level.OK),
        ("WAL senders", {"used_wal_senders": 10}, Level.ERROR),
        ("WAL senders", {"used_wal_senders": 9}, Level.WARNING),
        ("max_slot_wal_keep_size", {"max_slot_wal_keep_bytes": None}, Level.WARNING),
        ("wal_sender_timeout", {"wal_sender_timeout_ms": 0}, Level.WARNING),
        ("wal_sender_timeout", {"wal_sender_timeout_ms": 1000}, Level.WARNING),
        ("idle_replication_slot_timeout", {"idle_replication_slot_timeout_seconds": 60}, Level.WARNING),
    ],
)
def test_a_setting_is_judged_and_what_is_not_well_has_a_remedy(subject, facts, level):
    finding = found(subject, **facts)

    assert finding is not None
    assert finding.level is level
    assert bool(finding.remedy) is (level is not Level.OK)


def test_a_slot_that_is_there_already_needs_no_free_one():
    finding = found("replication slots", needs_slot=False, used_replication_slots=10)

    assert finding is not None and finding.level is Level.WARNING


def test_what_does_not_apply_is_not_mentioned():
    assert found("standby") is None
    assert found("idle_replication_slot_timeout") is None
