"""Settings of a subscriber are checked before anything starts."""

import re
from datetime import UTC, datetime, timedelta

import pytest

from headwater.errors import SettingsError
from headwater.topics import SubscriberSettings


@pytest.mark.parametrize("start", ["earliest", "latest", 0, 17, datetime(2026, 1, 1, tzinfo=UTC)])
def test_a_place_to_start_at_is_taken(start):
    assert SubscriberSettings(start=start).start == start


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mode": "both"}, "mode of a subscriber is 'both'; give partition or shared"),
        ({"delivery": "exactly-once"}, "delivery of a subscriber is 'exactly-once'; give at-least-once or at-most-once"),
        ({"on_expired": "ignore"}, "on_expired of a subscriber is 'ignore'; give fail or earliest"),
        ({"max_messages": 0}, "max_messages of a subscriber is 0; give 1 or more"),
        ({"max_attempts": -1}, "max_attempts of a subscriber is -1; give 1 or more"),
        ({"lease": timedelta(0)}, "lease of a subscriber is 0 s; give a time that is more than 0 s"),
        ({"poll_longest": timedelta(milliseconds=1)}, "poll_longest of a subscriber is shorter than poll_least"),
        ({"start": "now"}, "'now' is no place in a topic; give earliest, latest, an offset, or a datetime"),
        ({"start": True}, "True is no place in a topic"),
        ({"start": -1}, "offset -1 is below 0"),
        ({"start": datetime(2026, 1, 1)}, "has no time zone; give one"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(changes, said):
    with pytest.raises(SettingsError, match=re.escape(said)) as caught:
        SubscriberSettings(**changes)
    assert caught.value.faults


def test_all_faults_are_told_at_once():
    with pytest.raises(SettingsError) as caught:
        SubscriberSettings(max_messages=0, max_bytes=0)
    assert len(caught.value.faults) == 2
