"""The benchmark of snapshots: its arguments, and how turns become ratios and rates."""

import pytest

from benchmarks import snapshot
from benchmarks.pipelines.output import Output
from benchmarks.snapshots.stage import in_turns, rate, ratio


def test_all_parts_are_measured_unless_one_is_named():
    assert snapshot.parse_arguments([]) == (False, ["jdbc", "copy", "verify"])
    assert snapshot.parse_arguments(["--quick", "--only", "verify"]) == (True, ["verify"])


@pytest.mark.parametrize("arguments", [["--quik"], ["--only", "nothing"]])
def test_an_unknown_option_or_part_is_refused(arguments):
    with pytest.raises(SystemExit):
        snapshot.parse_arguments(arguments)


def test_arms_take_turns():
    turns = []

    def arm(name, seconds):
        return lambda: turns.append(name) or seconds

    found = in_turns({"ours": arm("ours", 1.0), "theirs": arm("theirs", 2.0)}, 2, "measuring", Output())

    assert turns == ["ours", "theirs", "ours", "theirs"]
    assert found == {"ours": [1.0, 1.0], "theirs": [2.0, 2.0]}


def test_a_ratio_is_the_median_of_the_turns_and_a_rate_that_of_the_seconds():
    assert ratio([10.0, 10.0, 10.0], [5.0, 1.0, 20.0]) == 2.0
    assert rate(1000, [1.0, 2.0, 100.0]) == 500
