"""What people write for times and rates."""

from datetime import UTC, datetime, timedelta

import pytest

from headwater.cli.queue.options import parse_ago, parse_rate, parse_when, rate_text
from headwater.errors import SettingsError

NOW = datetime(2026, 11, 17, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "rate", "written"),
    [
        ("100/second", (100, timedelta(seconds=1)), "100/second"),
        ("5/s", (5, timedelta(seconds=1)), "5/second"),
        ("10/minute", (10, timedelta(minutes=1)), "10/minute"),
        ("1000/hour", (1000, timedelta(hours=1)), "1,000/hour"),
        ("2/day", (2, timedelta(days=1)), "2/day"),
        ("5/10s", (5, timedelta(seconds=10)), "5/10s"),
        ("1/500ms", (1, timedelta(milliseconds=500)), "1/0.5s"),
    ],
)
def test_a_rate_is_read_and_written(text, rate, written):
    assert parse_rate("--rate", text) == rate
    assert rate_text(*rate) == written


@pytest.mark.parametrize(
    "text", ["", "5", "/second", "5/", "-5/second", "0/second", "5/0s", "5/week", "x/second", "3000000000/s"]
)
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(SettingsError, match="--rate must be a rate such as 100/second"):
        parse_rate("--rate", text)


def test_a_time_or_an_age_is_before_now_and_a_time_or_a_duration_after():
    assert parse_ago("--before", "7d", NOW) == NOW - timedelta(days=7)
    assert parse_ago("--before", "2026-11-10T00:00:00Z", NOW) == datetime(2026, 11, 10, tzinfo=UTC)
    assert parse_when("--run-at", "2090-01-01T00:00:00+01:00") == datetime(2089, 12, 31, 23, tzinfo=UTC)
    assert timedelta(minutes=9) < parse_when("--run-at", "10 minutes") - datetime.now(UTC) < timedelta(minutes=11)


@pytest.mark.parametrize("text", ["soon", "", "7", "2026-11-10"])
def test_what_is_neither_is_refused(text):
    with pytest.raises(SettingsError, match=r"--before (must be a time such as .*, or an age such as 7d|.* time zone)"):
        parse_ago("--before", text, NOW)
