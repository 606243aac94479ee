"""The demo's report: when it says that nothing was lost, and how it looks."""

import dataclasses
from collections import Counter

import pytest

from headwater.cli.demo.compare import Comparison
from headwater.cli.demo.events import EventReport
from headwater.cli.demo.report import Lag, Report, Server, TableReport, Wal
from headwater.cli.demo.show import print_report
from headwater.cli.demo.tally import Large
from headwater.cli.demo.topic import GroupReport, TopicReport
from headwater.cli.demo.view import KINDS
from headwater.model import Op

WRITTEN = {**dict.fromkeys(KINDS, 0), Op.INSERT: 1200, Op.UPDATE_KEY: 3}


@pytest.fixture
def report():
    return Report(
        server=Server("me@db:5432/shop", "18.1", is_private=True),
        tables=[TableReport(WRITTEN, 1203, Comparison("item", equal=1200))],
        transactions=7,
        rolled_back=Counter(transactions=2, savepoints=1, rows=9),
        applied=1203,
        letters=0,
        rows_per_second=321.4,
        large=Large(1000, 0.5),
        lag=Lag(median=0.125, p99=1.5, largest=2.0),
        wal=Wal(written=3 * 1024 * 1024, peak_retained=2048, retained=1024, unconfirmed=0),
        events=EventReport(
            committed=500,
            rolled_back=40,
            while_away=170,
            arrived=500,
            lost=0,
            repeated=0,
            away_seconds=1.6,
            drained_seconds=0.25,
        ),
        topic=TopicReport(600, [GroupReport("billing", {"first": 350, "second": 250}, 0, 0, 0)], 2.5),
        seconds=12.0,
    )


def with_table(report, **changed):
    return dataclasses.replace(report, tables=[dataclasses.replace(report.tables[0], **changed)])


def test_a_report_is_equal_if_every_change_came_and_every_row_is_equal(report):
    assert report.is_equal
    assert report.changes == 1203


def test_a_change_that_was_written_and_not_delivered_is_a_difference(report):
    short = with_table(report, delivered=1202)

    assert not short.is_equal
    assert short.differences == ["item: 1,203 changes were written, 1,202 delivered"]


def test_a_change_that_came_again_and_was_left_out_by_the_target_is_none(report):
    assert with_table(report, delivered=1300).is_equal


def test_a_change_that_was_applied_twice_is_a_difference(report):
    assert dataclasses.replace(report, applied=1204).differences == ["1,203 changes were written, 1,204 applied"]


def test_a_change_that_the_target_could_not_take_is_a_difference(report):
    assert dataclasses.replace(report, letters=2).differences == ["2 changes were put aside as dead letters"]


def test_a_row_that_is_not_equal_is_a_difference(report):
    wrong = Comparison("item", equal=1199, missing=1, named=["item id=4 is missing in the target"])

    assert with_table(report, comparison=wrong).differences == ["item id=4 is missing in the target"]


def test_an_event_that_is_lost_or_came_twice_is_a_difference(report):
    lost = dataclasses.replace(report, events=dataclasses.replace(report.events, lost=2))
    twice = dataclasses.replace(report, events=dataclasses.replace(report.events, repeated=1))

    assert lost.differences == ["2 of 500 events of the outbox are lost, 0 came twice"]
    assert twice.differences == ["0 of 500 events of the outbox are lost, 1 came twice"]


def test_a_message_of_the_topic_that_a_group_has_not_had_or_twice_or_out_of_order_is_a_difference(report):
    group = GroupReport("billing", {"first": 350, "second": 251}, lost=1, repeated=2, out_of_order=3)
    wrong = dataclasses.replace(report, topic=dataclasses.replace(report.topic, groups=[group]))

    assert wrong.differences == [
        "group billing of the topic has lost 1 of 600 messages, got 2 twice and 3 out of order",
    ]


def test_the_report_for_programs_has_all_figures(report):
    given = report.as_json()

    assert given["events"]["while_away"] == 170
    assert given["events"]["away_seconds"] == 1.6
    assert given["topic"]["groups"][0]["members"] == {"first": 350, "second": 250}

    assert given["equal"] is True
    assert given["tables"] == {
        "item": {
            "written": {"inserts": 1200, "updates": 0, "key_changes": 3, "deletes": 0, "truncates": 0},
            "delivered": 1203,
            "rows": {"equal": 1200, "missing": 0, "extra": 0, "different": 0},
        }
    }
    assert given["large_transaction"] == {"rows": 1000, "seconds": 0.5, "per_second": 2000}
    assert given["lag_seconds"] == {"median": 0.125, "p99": 1.5, "largest": 2.0}
    assert (given["applied"], given["letters"], given["rows_per_second"]) == (1203, 0, 321)


def test_the_report_for_people_says_that_all_is_equal_and_what_to_try_next(report, capsys):
    print_report(report)

    text = capsys.readouterr().out
    assert "All 1,200 rows of 1 tables are equal in source and target, and no event or message was lost." in text
    assert "1,000 rows, in the target 0.5 s after the commit: 2,000 rows/s" in text
    assert "median 125 ms, 99 % within 1.5 s, at most 2.0 s" in text
    assert "600 messages, 350 and 250 by its two members; 0 lost, 0 repeated, 0 out of order" in text
    assert "headwater init" in text
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_the_report_for_people_names_every_difference_instead(report, capsys):
    print_report(with_table(report, delivered=1202))

    text = capsys.readouterr().out
    assert "Something was lost or changed on the way:" in text
    assert "item: 1,203 changes were written, 1,202 delivered" in text
    assert "are equal" not in text
    assert "none delivered" not in text
