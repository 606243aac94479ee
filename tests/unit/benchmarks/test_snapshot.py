"""The benchmark of snapshots: how turns become ratios and rates."""

from benchmarks.pipelines.output import Output
from benchmarks.snapshots.stage import in_turns, rate, ratio


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
