"""A Creek producer in a thread of the tests, on their Spark session: all of `creek produce` but its process."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

import pytest
from pyspark.sql import SparkSession

from headwater.cli.creek.environment import read_environment
from headwater.cli.creek.produce import settings_of
from headwater.cli.run import run_pipeline
from headwater.spark.settings import ChangesSettings
from tests.support.waiting import eventually

# Tests wait for the slot to move, which it does as often as this.
_STATUS_INTERVAL = timedelta(milliseconds=200)


class ProducerThread:
    """Publishes until it is stopped; `log` has the messages of the driver."""

    def __init__(self, environment: Mapping[str, str], checkpoint: Path) -> None:
        settings = settings_of(read_environment(environment), checkpoint=str(checkpoint))
        assert isinstance(settings.source, ChangesSettings)
        self._settings = replace(settings, source=replace(settings.source, status_interval=_STATUS_INTERVAL))
        self._stopping = Event()
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._run, name="creek producer")
        self.log: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop it as SIGTERM does; raises its failure, if it has failed."""
        self._stopping.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), self.log[-30:]
        if self._failure is not None:
            raise self._failure

    def require_life(self) -> None:
        assert self._thread.is_alive(), (self._failure, self.log[-30:])

    def wait_until(self, probe: Callable[[], object], seconds: float = 90) -> None:
        """Wait for an effect of the producer, as long as it runs."""

        def look() -> bool:
            self.require_life()
            return bool(probe())

        eventually(look, seconds=seconds)

    def _run(self) -> None:
        try:
            run_pipeline(self._settings, self._stopping, once=False)
        except BaseException as exc:  # noqa: BLE001 - it is raised by `stop`
            self._failure = exc


class _Lines(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())


@contextmanager
def producing(spark: SparkSession, environment: Mapping[str, str], checkpoint: Path) -> Iterator[ProducerThread]:
    producer = ProducerThread(environment, checkpoint)
    lines, logger = _Lines(producer.log), logging.getLogger("headwater")
    before = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwater.spark.session.build_session", lambda *_args, **_options: spark)
        patch.setattr("headwater.spark.session.end_session", lambda _session: None)
        producer.start()
        try:
            yield producer
        finally:
            producer.stop()
            logger.setLevel(before)
            logger.removeHandler(lines)
