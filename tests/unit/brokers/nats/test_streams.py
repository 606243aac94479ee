from datetime import UTC, datetime, timedelta

import pytest

from headwater.brokers.nats import StreamLimits
from headwater.brokers.nats.streams import covers, merged_subjects, parse_time


@pytest.mark.parametrize(
    ("pattern", "subject", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.*", "a.*", True),
        ("a.*", "a.>", False),
        ("a.>", "a.*", True),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("a.b", "a.*", False),
        ("a.b", "a", False),
        ("a", "a.b", False),
        ("*.b.>", "a.b.c", True),
        ("*.b.>", "a.c.b", False),
    ],
)
def test_a_subject_is_covered_when_all_that_it_matches_is_matched(pattern, subject, expected):
    assert covers(pattern, subject) == expected


def test_subjects_are_added_to_those_that_are_there():
    assert merged_subjects(["R.a.wal.>"], ["R.b.wal.>"]) == ["R.a.wal.>", "R.b.wal.>"]


def test_a_subject_that_is_covered_already_is_not_added():
    assert merged_subjects(["R.>"], ["R.b.wal.>"]) == ["R.>"]


def test_a_wider_subject_replaces_those_that_it_covers():
    assert merged_subjects(["R.a.wal.>", "S.x"], ["R.*.wal.>"]) == ["S.x", "R.*.wal.>"]


def test_limits_that_are_not_given_are_not_written():
    assert StreamLimits().config() == {}


def test_limits_are_written_as_jetstream_has_them():
    limits = StreamLimits(replicas=3, max_age=timedelta(hours=1), max_bytes=0, max_msgs=10, retention="interest")
    assert limits.config() == {
        "num_replicas": 3,
        "max_age": 3600 * 10**9,
        "max_bytes": -1,
        "max_msgs": 10,
        "retention": "interest",
    }


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [("2024-05-06T07:08:09Z", 0), ("2024-05-06T07:08:09.1Z", 100_000), ("2024-05-06T07:08:09.123456789Z", 123_456)],
)
def test_times_of_go_are_read(text, microseconds):
    assert parse_time(text) == datetime(2024, 5, 6, 7, 8, 9, microseconds, UTC)
