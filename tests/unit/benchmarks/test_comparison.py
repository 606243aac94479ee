"""Arms in turns, and how their seconds become ratios, rates and percentiles."""

from collections.abc import Callable

from benchmarks.comparison import in_turns, percentile, rate, ratio
from benchmarks.report import Output


def test_arms_take_turns():
    turns: list[str] = []

    def arm(name: str, seconds: float) -> Callable[[], float]:
        def run() -> float:
            turns.append(name)
            return seconds

        return run

    found = in_turns({"ours": arm("ours", 1.0), "theirs": arm("theirs", 2.0)}, 2, "measuring", Output())

    assert turns == ["ours", "theirs", "ours", "theirs"]
    assert found == {"ours": [1.0, 1.0], "theirs": [2.0, 2.0]}


def test_a_ratio_is_the_median_of_the_turns_and_a_rate_that_of_the_seconds():
    assert ratio([10.0, 10.0, 10.0], [5.0, 1.0, 20.0]) == 2.0
    assert rate(1000, [1.0, 2.0, 100.0]) == 500


def test_a_percentile_is_not_exceeded_by_so_many_percent():
    values = [float(number) for number in range(101)]

    assert (percentile(values, 50), percentile(values, 99)) == (50.0, 99.0)
