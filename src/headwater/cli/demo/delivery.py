"""The data path: a pipeline from the demo's tables to its target database, on a Spark of its own.

It runs on a thread of its own, so that a signal finds the main thread waiting, and not in the midst of a call to Spark. On
the way out the pipeline ends the batch that it is at, Spark ends, and then its Java, with the files that it made.
"""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, Self

from headwater.cli.config import environment
from headwater.cli.demo.statements import PUBLICATION, SCHEMA, SLOT
from headwater.embedded import resolve_java, state_directory
from headwater.errors import PipelineFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headwater.spark.pipeline import Pipeline
    from headwater.spark.settings import PipelineSettings
    from headwater.spark.state import Report

NAME: Final = "demo"
SINK: Final = "target"
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Route:
    """From where to where; both databases go away in the end, so the pipeline's state may be in the target."""

    source_url: str
    target_url: str
    checkpoint: str

    def settings(self) -> "PipelineSettings":
        from headwater.spark.settings import ChangesSettings, PipelineSettings, PostgresSinkSettings, SnapshotRule

        return PipelineSettings(
            name=NAME,
            # Its tables are empty when it begins, and every change counts.
            source=ChangesSettings(
                url=self.source_url,
                tables=(f"{SCHEMA}.*",),
                slot=SLOT,
                publication=PUBLICATION,
                snapshot=SnapshotRule.NEVER,
            ),
            sinks=(PostgresSinkSettings(name=SINK, url=self.target_url),),
            checkpoint=self.checkpoint,
            state_url=self.target_url,
        )


class Delivery:
    """The pipeline of a route, for the length of a `with` block; `say` is told what is being waited for."""

    def __init__(self, route: Route, say: Callable[[str], None]) -> None:
        self._route, self._say = route, say
        self._stopping, self._ended = Event(), Event()
        self._thread = Thread(target=self._guarded, name="demo pipeline", daemon=True)
        self._pipeline: Pipeline | None = None
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._say("Stopping Spark")
        self._stopping.set()
        self._thread.join()

    @property
    def report(self) -> "Report | None":
        """How far the pipeline is, also after its end; nothing before Spark has started."""
        return self._pipeline.report if self._pipeline is not None else None

    def wait_until_running(self) -> None:
        """Returns when the pipeline waits for changes; raises what keeps it from that."""
        self._say("Starting Spark")
        self._wait(lambda: self._pipeline is not None)
        self._say("Starting the pipeline")
        self._wait(lambda: self.report is not None and self.report.phase == "running")

    def wait_for_rows(self, rows: int) -> None:
        """Returns when so many changes are delivered."""
        self._wait(lambda: self.report is not None and self.report.rows >= rows)

    def require_life(self) -> None:
        """Raise what has ended the pipeline, if anything has."""
        if self._failure is not None:
            raise self._failure
        if self._ended.is_set():
            raise PipelineFailed("the pipeline has ended by itself, and nothing was compared; run the demo again")

    def _wait(self, enough: Callable[[], bool]) -> None:
        while not enough():
            self.require_life()
            self._ended.wait(_LOOK_SECONDS)

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as exc:  # noqa: BLE001 - whatever ends the thread must reach the demo
            self._failure = exc
        finally:
            self._ended.set()

    def _run(self) -> None:
        from headwater.spark.pipeline import Pipeline
        from headwater.spark.session import build_session, end_session
        from headwater.spark.sinks.build import build_sinks

        settings = self._route.settings()
        sinks = build_sinks(settings)
        spark = build_session(NAME, java_home=resolve_java(environment(), state_directory()))
        try:
            _silence_workers(spark)
            self._pipeline = Pipeline(spark, settings, sinks, self._stopping)
            if not self._stopping.is_set():
                self._pipeline.run()
        finally:
            end_session(spark)


def _silence_workers(spark: "SparkSession") -> None:
    """Drop what Spark's Python processes print: what fails comes as an exception, and when stopped they may complain."""
    java: Any = spark._jvm
    nowhere = java.java.io.PrintStream(java.java.io.OutputStream.nullOutputStream())
    java.java.lang.System.setErr(nowhere)
