"""Places in a topic as people write them."""

from datetime import UTC, datetime

import pytest

from headwater.cli.topics.place import parse_place
from headwater.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("0", 0),
        ("42", 42),
        ("2026-11-16T10:00:00Z", datetime(2026, 11, 16, 10, tzinfo=UTC)),
    ],
)
def test_a_place_is_an_end_or_an_offset_or_a_time(text, place):
    assert parse_place("--from", text) == place


@pytest.mark.parametrize("text", ["", "first", "-1", "1.5", "٣"])
def test_anything_else_is_refused_with_what_is_possible(text):
    with pytest.raises(SettingsError, match="--from must be earliest, latest, an offset such as 42, or a time such as"):
        parse_place("--from", text)


def test_a_time_without_a_zone_is_asked_for_one():
    with pytest.raises(SettingsError, match="does not say in which time zone; write it as 2026-11-16T00:00:00Z"):
        parse_place("--to", "2026-11-16")
