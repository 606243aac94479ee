"""How far a topic is read, as Spark logs it."""

import json
from datetime import UTC, datetime

import pytest

from headwater.errors import PositionError
from headwater.spark.sources.content import Content
from headwater.spark.sources.topic.offset import TopicOffset

OFFSET = TopicOffset("orders", "2026-11-16", {10: 4, 2: 7}, Content(3, datetime(2026, 11, 16, tzinfo=UTC), {"orders": 3}))


def test_an_offset_is_the_same_when_it_was_logged():
    logged = json.loads(json.dumps(OFFSET.to_json()))
    assert TopicOffset.from_json(logged) == OFFSET
    assert list(logged["next"]) == ["2", "10"], "Spark compares texts"


@pytest.mark.parametrize("change", [{"source": "outbox"}, {"version": 2}, {"next": None}, {"holds": {}}])
def test_what_another_source_has_logged_is_refused(change):
    with pytest.raises(PositionError, match="not one of a `headwater"):
        TopicOffset.from_json({**OFFSET.to_json(), **change})
