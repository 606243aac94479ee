"""SIGTERM as a clean stop: the first one asks, the second one ends the process at once."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):
    """SIGTERM came; not an `Exception`, so that nothing but `main`, and `finally`, takes notice."""


@contextmanager
def stop_on_sigterm(*, interrupt: bool = False, or_ctrl_c: bool = False) -> Iterator[threading.Event]:
    """Within it, the first SIGTERM sets the event, and with `interrupt` also raises `Stopped` in the main thread.

    A loop that looks at the event drains at a place of its choosing; `interrupt` is for code that waits without looking. A
    second SIGTERM has its default effect. Leave `main` with an exit code of 0 by returning, or by `Stopped`.

    With `or_ctrl_c` the same holds for SIGINT: for commands that have no other end, and must not be torn out of a statement.
    """
    stopping = threading.Event()

    def stop(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        stopping.set()
        if interrupt:
            raise Stopped

    heard = [signal.SIGTERM, signal.SIGINT] if or_ctrl_c else [signal.SIGTERM]
    before = [(one, signal.signal(one, stop)) for one in heard]
    try:
        yield stopping
    finally:
        for one, handler in before:
            signal.signal(one, handler)
