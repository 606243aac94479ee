"""The root logger, given back as it was: a command that runs in a test's process logs to the standard error of that test."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def root_logger_restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers, root.level = handlers, level
