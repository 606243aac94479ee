"""The demo's report: when it says that nothing was lost, and how it looks."""

import dataclasses
from collections import Counter

import pytest

from headwater.cli.demo.replica import Comparison
from headwater.cli.demo.report import Report, Server, TableReport, Wal
from headwater.cli.demo.show import print_report
from headwater.cli.demo.tally import Large
from headwater.cli.demo.view import KINDS
from headwater.model import Op

COUNTS = {**dict.fromkeys(KINDS, 0), Op.INSERT: 1200, Op.UPDATE_KEY: 3}


@pytest.fixture
def report():
    return Report(
        server=Server("me@db:5432/shop", "18.1", is_private=True),
        tables=[TableReport(COUNTS, COUNTS, Comparison("item", equal=1200))],
        transactions_written=7,
        transactions_captured=7,
        rolled_back=Counter(transactions=2, savepoints=1, rows=9),
        largest=Large(1000, 0.5, 0.75),
        latency_median_ms=1.25,
        latency_p99_ms=1500.0,
        kept_values=11,
        wal=Wal(written=3 * 1024 * 1024, peak_retained=2048, retained=1024, unconfirmed=0),
        seconds=12.0,
    )


def with_table(report, **changed):
    return dataclasses.replace(report, tables=[dataclasses.replace(report.tables[0], **changed)])


def test_a_report_is_equal_if_every_count_and_every_row_is(report):
    assert report.is_equal
    assert report.changes == 1203


def test_a_change_that_was_written_and_not_captured_is_named_by_table_and_kind(report):
    short = with_table(report, captured={**COUNTS, Op.UPDATE_KEY: 2})

    assert not short.is_equal
    assert short.differences == ["item: 3 key changes were written, 2 captured"]


def test_a_transaction_that_was_not_captured_is_a_difference(report):
    assert dataclasses.replace(report, transactions_captured=6).differences == ["7 transactions were committed, 6 captured"]


def test_a_row_that_is_not_equal_is_a_difference(report):
    wrong = Comparison("item", equal=1199, missing=1, named=["item id=4 is missing in the replica"])

    assert with_table(report, comparison=wrong).differences == ["item id=4 is missing in the replica"]


def test_the_report_for_programs_has_all_figures(report):
    given = report.as_json()

    assert given["equal"] is True
    assert given["tables"] == {
        "item": {
            "written": {"inserts": 1200, "updates": 0, "key_changes": 3, "deletes": 0, "truncates": 0},
            "captured": {"inserts": 1200, "updates": 0, "key_changes": 3, "deletes": 0, "truncates": 0},
            "rows": {"equal": 1200, "missing": 0, "extra": 0, "different": 0, "strays": 0},
        }
    }
    assert given["largest_transaction"] == {
        "changes": 1000,
        "seconds": 0.5,
        "seconds_after_commit": 0.75,
        "per_second": 2000,
    }
    assert given["latency_ms"] == {"median": 1.25, "p99": 1500.0}


def test_the_report_for_people_says_that_all_is_equal_and_what_to_try_next(report, capsys):
    print_report(report)

    text = capsys.readouterr().out
    assert "All 1,200 rows of 1 tables are equal in source and replica." in text
    assert "1,000 rows at 2,000 rows/s" in text
    assert "median 1.2 ms, 99 % within 1.50 s" in text
    assert "headwater tail" in text
    assert not any(line != line.rstrip() for line in text.splitlines())


def test_the_report_for_people_names_every_difference_instead(report, capsys):
    print_report(dataclasses.replace(report, transactions_captured=6))

    text = capsys.readouterr().out
    assert "The replica is NOT equal to the source:" in text
    assert "7 transactions were committed, 6 captured" in text
    assert "are equal" not in text
    assert "none captured" not in text
