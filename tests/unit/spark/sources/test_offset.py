"""Offsets as Spark logs them: always the same text for the same position, and nothing else is taken for one."""

import json
from datetime import UTC, datetime

import pytest

from headwater.errors import PositionError
from headwater.model import Lsn, Position, Snapshot, SnapshotRead
from headwater.spark.settings import LaneRule
from headwater.spark.sources.content import Content
from headwater.spark.sources.load import Join, Load
from headwater.spark.sources.offset import Offset

CONTENT = Content(3, datetime(2026, 11, 15, 21, 36, 8, 120000, tzinfo=UTC), {"public.a": 2, "public.b": 1})
READ = SnapshotRead(Snapshot.parse("10:20:10,14"), Lsn.parse("16/B374D999"))
OFFSET = Offset(
    "7708530643186114187",
    "shop",
    Position(Lsn.parse("16/B374D848"), 5),
    2,
    4,
    LaneRule.KEY,
    CONTENT,
    dropped=(("public", "later"),),
    added=(("public", "b"),),
    generation="f00",
    load=Load("abc", (("public", "b"),), (2,), Position(Lsn.parse("16/B374D840"), 1), READ, 9, 4, is_complete=False),
    joins=(Join((("public", "a"),), READ),),
)
LOGGED = (
    '{"version": 1, "system": "7708530643186114187", "slot": "shop", "lsn": "16/B374D848", "ordinal": 5, "timeline": 2, '
    '"lanes": 4, "by": "key", "holds": {"changes": 3, "committed_at": "2026-11-15T21:36:08.120000+00:00", '
    '"tables": {"public.a": 2, "public.b": 1}}, "dropped": [["public", "later"]], "added": [["public", "b"]], '
    '"generation": "f00", "load": {"attempt": "abc", "tables": [["public", "b"]], "requests": [2], '
    '"lsn": "16/B374D840", "ordinal": 1, '
    '"snapshot": "10:20:10,14", "until": "16/B374D999", "pieces": 9, "delivered": 4, "complete": false}, '
    '"joins": [{"tables": [["public", "a"]], "snapshot": "10:20:10,14", "until": "16/B374D999"}]}'
)


def test_the_text_of_an_offset_stays_as_it_is():
    """Spark compares texts, and later releases have to read what this one has logged."""
    assert json.dumps(OFFSET.to_json()) == LOGGED
    assert Offset.from_json(json.loads(LOGGED)) == OFFSET


def test_a_range_without_changes_has_content_too():
    empty = Offset("1", "shop", Position(Lsn(0), 0), 1, 1, LaneRule.TABLE)
    assert Offset.from_json(json.loads(json.dumps(empty.to_json()))) == empty


FOREIGN = [5, "5", None, [], {}, {"offset": 7}, {"version": 1}, {"topic": {"0": 12}}]
BROKEN: list[tuple[str, object]] = [
    ("lsn", "later"),
    ("lsn", None),
    ("ordinal", -1),
    ("ordinal", "x"),
    ("lanes", 0),
    ("by", "column"),
    ("timeline", 0),
    ("holds", None),
    ("holds", {"changes": 1, "committed_at": "soon", "tables": {}}),
    ("holds", {"changes": 1, "committed_at": None, "tables": []}),
    ("dropped", None),
    ("load", {}),
    ("joins", [{"tables": [], "snapshot": "3", "until": "0/0"}]),
]


@pytest.mark.parametrize("logged", [*FOREIGN, *({**json.loads(LOGGED), name: value} for name, value in BROKEN)], ids=repr)
def test_what_another_source_has_logged_is_refused_with_the_remedy(logged):
    with pytest.raises(PositionError, match=r"not one of a `headwater\.changes` source; name another, or remove it"):
        Offset.from_json(logged)


def test_the_offset_of_another_release_is_refused_with_both_versions():
    with pytest.raises(PositionError, match=r"another release \(version 2, not 1\)"):
        Offset.from_json({**json.loads(LOGGED), "version": 2})
