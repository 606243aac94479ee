"""The end of a benchmark: tables for people on stderr, one line of JSON on stdout."""

import json
from typing import Any

import numpy
import pytest

from benchmarks.report import Bar, as_json_line, parse_arguments, report, wants_quick


def test_the_last_line_on_stdout_is_the_agreed_json(capsys):
    bars = [Bar("read_ratio_1", 0.8, at_least=0.7), Bar("big_transaction_rss_mb", 250, at_most=200)]

    report("capture", quick=True, figures={"rows": 10_000, "server": "18.4"}, bars=bars)

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1
    assert json.loads(lines[0]) == {
        "bench": "capture",
        "quick": True,
        "figures": {"rows": 10_000, "server": "18.4"},
        "bars": [
            {"name": "read_ratio_1", "value": 0.8, "at_least": 0.7, "ok": True},
            {"name": "big_transaction_rss_mb", "value": 250, "at_most": 200, "ok": False},
        ],
    }


def test_a_missed_bar_is_shown_as_missed_and_a_kept_one_is_not(capsys):
    report("capture", quick=False, figures={}, bars=[Bar("too_slow", 5, at_least=6), Bar("fine", 6, at_least=6)])

    shown = {line.split()[1]: line for line in capsys.readouterr().err.splitlines() if "at least" in line}
    assert "MISSED" in shown["too_slow"]
    assert "MISSED" not in shown["fine"]


@pytest.mark.parametrize("bounds", [{}, {"at_least": 1, "at_most": 2}])
def test_a_bar_has_exactly_one_bound(bounds):
    with pytest.raises(ValueError, match="'speed' needs exactly one"):
        Bar("speed", 1, **bounds)


@pytest.mark.parametrize(
    ("bar", "ok"),
    [
        (Bar("reached", 1, at_least=1), True),
        (Bar("not_reached", 0.999, at_least=1), False),
        (Bar("not_passed", 1, at_most=1), True),
        (Bar("passed", 1.001, at_most=1), False),
        (Bar("nothing_lost", 0, at_most=0), True),
    ],
    ids=lambda value: value.name if isinstance(value, Bar) else None,
)
def test_a_bar_is_kept_up_to_its_bound(bar, ok):
    assert bar.ok is ok


def test_what_was_not_measured_is_null_and_missed():
    line = json.loads(as_json_line("capture", False, {"p99": float("inf")}, [Bar("lost", float("nan"), at_most=1)]))

    assert line["figures"] == {"p99": None}
    assert line["bars"] == [{"name": "lost", "value": None, "at_most": 1, "ok": False}]


def test_numbers_of_numpy_are_plain_numbers_in_json():
    rows: Any = numpy.int64(3)

    line = json.loads(as_json_line("decode", False, {"rows": rows}, [Bar("speed", numpy.float64(2.5), at_least=2)]))

    assert line["figures"] == {"rows": 3}
    assert line["bars"][0]["value"] == 2.5


def test_the_short_form_is_asked_for_by_an_option():
    assert wants_quick(["--quick"])
    assert not wants_quick([])


def test_an_unknown_option_of_a_benchmark_is_refused():
    with pytest.raises(SystemExit):
        wants_quick(["--quik"])


def test_all_parts_are_measured_unless_one_is_named():
    assert parse_arguments(["one", "two"], []) == (False, ["one", "two"])
    assert parse_arguments(["one", "two"], ["--quick", "--only", "two"]) == (True, ["two"])


@pytest.mark.parametrize("arguments", [["--quik"], ["--only", "nothing"]])
def test_an_unknown_option_or_part_is_refused(arguments):
    with pytest.raises(SystemExit):
        parse_arguments(["one"], arguments)
