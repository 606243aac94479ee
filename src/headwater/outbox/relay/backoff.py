"""How long to wait before another attempt, with full jitter: anything between nothing and a time that doubles. Pure."""

from datetime import timedelta


def full_jitter(first: timedelta, longest: timedelta, failures: int, chance: float) -> float:
    """Seconds to wait after so many failures in a row, by a `chance` between 0 and 1.

    The whole range is used, so that many who failed together do not come back together.
    """
    # The exponent is bounded only so that a float can hold the product before it is cut.
    doubled = first.total_seconds() * 2.0 ** min(max(failures - 1, 0), 64)
    return chance * min(longest.total_seconds(), doubled)
