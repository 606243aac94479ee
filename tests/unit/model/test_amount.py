"""How durations and sizes are written."""

from datetime import timedelta

import pytest

from headwater.model.amount import parse_duration, parse_size


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("2s", timedelta(seconds=2)),
        ("1.5 s", timedelta(seconds=1.5)),
        ("3m", timedelta(minutes=3)),
        ("1h", timedelta(hours=1)),
        ("7 days", timedelta(days=7)),
        ("2 minutes", timedelta(minutes=2)),
        ("1 hour", timedelta(hours=1)),
    ],
)
def test_durations(written, meant):
    assert parse_duration(written) == meant


@pytest.mark.parametrize("written", ["", "5", "5 parsecs", "-1s", "ms", "1s 2s"])
def test_what_is_no_duration_is_refused_with_examples(written):
    with pytest.raises(ValueError, match="such as 500ms, 2s or 1m"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("written", "meant"), [("512KiB", 524288), ("32MiB", 33554432), ("1 MB", 1000000), ("0.5GiB", 536870912), ("7B", 7)]
)
def test_sizes(written, meant):
    assert parse_size(written) == meant


@pytest.mark.parametrize("written", ["", "32", "32mib", "32M", "MiB"])
def test_what_is_no_size_is_refused_with_examples(written):
    with pytest.raises(ValueError, match="such as 512KiB or 32MiB"):
        parse_size(written)
