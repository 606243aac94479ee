"""Arms measured in turns, and the numbers made of their seconds: rates, ratios and percentiles."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from benchmarks.report import Output


def in_turns(arms: Mapping[str, Callable[[], float]], rounds: int, what: str, output: Output) -> dict[str, list[float]]:
    """The seconds of each arm, turn by turn."""
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds):
        for name, arm in arms.items():
            with output.console.status(f"{what}, {name}, turn {turn + 1} of {rounds}"):
                seconds[name].append(arm())
    return seconds


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """The median of the turns' ratios; above 1 ours is the faster one."""
    return round(statistics.median(their / our for their, our in zip(theirs, ours, strict=True)), 3)


def rate(rows: int, seconds: Sequence[float]) -> int:
    """Rows in a second of the median turn."""
    return round(rows / statistics.median(seconds))


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent of all do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
