"""A pipeline that runs in a thread of the tests' own process, where the death of a process is not the point."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from pyspark.sql import SparkSession

from headwater.errors import HeadwaterError
from headwater.spark.pipeline import Pipeline
from headwater.spark.settings import PipelineSettings
from headwater.spark.sinks.build import build_sinks

# A stop waits for the batch that is being delivered.
_STOP_SECONDS = 90


class PipelineThread:
    """A running pipeline; `error` is what it ended with, if it ended by itself."""

    def __init__(self, spark: SparkSession, settings: PipelineSettings) -> None:
        self.error: HeadwaterError | None = None
        self._stopping = Event()
        self._pipeline = Pipeline(spark, settings, build_sinks(settings), self._stopping)
        self._thread = Thread(target=self._run, name=f"pipeline {settings.name}")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._pipeline.run()
        except HeadwaterError as exc:
            self.error = exc

    def require_life(self) -> None:
        assert self._thread.is_alive(), f"the pipeline has ended: {self.error}"

    def wait_for_error(self) -> HeadwaterError:
        """Wait until the pipeline has ended by itself."""
        self._thread.join(_STOP_SECONDS)
        assert not self._thread.is_alive(), "the pipeline still runs"
        assert self.error is not None, "the pipeline has ended without an error"
        return self.error

    def stop(self) -> None:
        """Ask the pipeline to end, and wait for that."""
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)
        assert not self._thread.is_alive(), "the pipeline still runs"


@contextmanager
def pipeline_thread(spark: SparkSession, settings: PipelineSettings) -> Iterator[PipelineThread]:
    thread = PipelineThread(spark, settings)
    try:
        yield thread
    finally:
        thread.stop()
