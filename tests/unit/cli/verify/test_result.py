"""What is said of a comparison, and when source and target count as equal."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from headwater.cli.verify.result import SinkResult, TableResult, as_json, verdict
from headwater.model import Lsn
from headwater.postgres.comparison import Compared, Counts, Finding, Layout, Moment

MOMENT = Moment(datetime(2026, 11, 16, 12, tzinfo=UTC), Lsn(0x1F8A430), "UTF8")
LAYOUT = Layout(("id", "v"), ("id",))
EQUAL = TableResult("public.a", Compared(5, 5, Counts()), LAYOUT)
DIFFERENT = TableResult("public.b", Compared(5, 4, Counts(missing=1)), LAYOUT, [Finding("missing", {"id": "7"})])
FAILED = TableResult("public.c", error="it is missing in the target")
SINK = SinkResult("replica", MOMENT, MOMENT, True, True, [EQUAL])


def test_all_is_equal_only_if_every_table_was_compared_and_no_row_differs():
    assert SINK.is_equal
    assert not replace(SINK, tables=[EQUAL, DIFFERENT]).is_equal
    assert not replace(SINK, tables=[EQUAL, FAILED]).is_equal
    assert verdict([SINK, SINK]) == "all 10 rows of 2 tables are equal"
    assert verdict([replace(SINK, tables=[EQUAL, DIFFERENT, FAILED])]) == "2 of 3 tables not shown to be equal"


def test_a_column_that_the_target_lacks_is_a_difference():
    lacking = replace(EQUAL, layout=replace(LAYOUT, lacking=("w",)))

    assert not lacking.is_equal
    assert lacking.notes == ["the target lacks column w; add it, or read the table as a whole again"]


def test_what_was_compared_when_is_said_as_it_was():
    assert SINK.said == (
        "sink replica: source at 0/1F8A430, 2026-11-16 12:00:00+0000; target at 2026-11-16 12:00:00+0000, "
        "when the pipeline had delivered all that the source shows"
    )
    assert "the pipeline is behind" in replace(SINK, has_caught_up=False).said
    assert "the pipeline does not run" in replace(SINK, is_running=False, has_caught_up=False).said


def test_what_changed_meanwhile_and_what_could_not_be_judged_is_said():
    moving = replace(EQUAL, compared=Compared(5, 5, Counts(), changed=1200, unsettled=2))

    assert moving.is_equal
    assert moving.notes == [
        "1,200 keys changed meanwhile, were looked at again, and are equal",
        "2 keys changed whenever they were looked at, and could not be judged",
    ]


def test_more_differences_than_can_be_looked_at_again_are_said():
    found = replace(EQUAL, compared=Compared(200_000, 0, Counts(missing=200_000), uncertain=Counts(missing=100_000)))

    assert found.notes == ["there are too many differences for a second look at each; some may only have been on their way"]


def test_json_has_the_same_keys_for_a_table_that_could_not_be_compared():
    found: dict[str, Any] = as_json("shop", [replace(SINK, tables=[DIFFERENT, FAILED])])

    (sink,) = found["sinks"]
    different, failed = sink["tables"]
    assert different.keys() == failed.keys()
    assert (found["equal"], sink["source"]["lsn"], failed["missing"]) == (False, "0/1F8A430", None)
    assert different["differences"] == [{"kind": "missing", "key": {"id": "7"}, "columns": ()}]
