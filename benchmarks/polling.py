"""Wait for a condition that another process brings about."""

import time
from collections.abc import Callable

_LOOK_SECONDS = 0.01


def wait_until(is_true: Callable[[], bool], what: str, seconds: float) -> None:
    """Raises if it is not true in time."""
    deadline = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited in vain for {what}, {seconds:.0f} s")
        time.sleep(_LOOK_SECONDS)
