"""A command of the program in the tests' own process, on their Spark session, until a thread that tells a story stops it.

The command runs in the main thread, which is the one that gets signals.
"""

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from types import FrameType

from pyspark.sql import SparkSession

from headwater.cli.app import run
from tests.support.servers.shared_spark import commands_on
from tests.support.waiting import eventually


class CommandRun:
    """A command that runs, as a story sees it; `records` are its log."""

    def __init__(self) -> None:
        self.records: list[logging.LogRecord] = []
        self._ended = Event()
        self._code: int | None = None

    def times_said(self, words: str) -> int:
        """How many messages of the log have the words in them."""
        return sum(words in record.getMessage() for record in self.records)

    def require_life(self) -> None:
        said = [record.getMessage() for record in self.records[-30:]]
        assert not self._ended.is_set(), f"it has ended with {self._code}: {said}"

    def wait_until(self, probe: Callable[..., object], seconds: float = 120) -> None:
        """Wait for an effect of the command, as long as it runs."""

        def look() -> bool:
            self.require_life()
            return bool(probe())

        eventually(look, seconds=seconds)

    def run(self, arguments: Sequence[str]) -> int:
        try:
            self._code = run(arguments)
        finally:
            self._ended.set()
        return self._code

    def stop(self) -> None:
        """Send SIGTERM, once the command listens to it; one that has ended by itself needs none."""
        eventually(lambda: self._ended.is_set() or signal.getsignal(signal.SIGTERM) is not _pass_over, seconds=60)
        os.kill(os.getpid(), signal.SIGTERM)


def run_until_told(spark: SparkSession, arguments: Sequence[str], story: Callable[[CommandRun], None]) -> int:
    """Run a command while a thread tells a story, at whose end the command gets SIGTERM; returns the exit code."""
    command = CommandRun()

    def tell() -> None:
        try:
            story(command)
        finally:
            command.stop()

    with commands_on(spark), _logged(command), _sigterm_passed_over(), ThreadPoolExecutor(1) as pool:
        telling = pool.submit(tell)
        code = command.run(arguments)
        telling.result()
    return code


class _Records(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)


@contextmanager
def _logged(command: CommandRun) -> Iterator[None]:
    """Not by the root logger, whose handlers the program replaces."""
    handler, logger = _Records(command.records), logging.getLogger("headwater")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _pass_over(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; unlike a signal that is ignored, this is not passed on to processes that are started meanwhile."""


@contextmanager
def _sigterm_passed_over() -> Iterator[None]:
    """Within it, a SIGTERM that comes when the command has ended by itself does not end the tests."""
    before = signal.signal(signal.SIGTERM, _pass_over)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
