"""Waiting for something to become true, with a deadline, where the other side gives no signal."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(probe: Callable[[], T], *, seconds: float = 15) -> T:
    """The first true answer of `probe`; fails when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = probe()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"still {answer!r} after {seconds} seconds"
        time.sleep(0.02)
