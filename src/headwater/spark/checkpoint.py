"""The range of a batch, from the log of offsets that Spark keeps in its checkpoint directory.

Spark tells the number of a batch and no more. It writes where a batch ends before it runs it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.sql import SparkSession

from headwater.errors import PositionError
from headwater.model import Lsn, Position
from headwater.spark.sinks.sink import Loading, Span
from headwater.spark.sources.content import Content
from headwater.spark.sources.offset import Offset
from headwater.spark.sources.step import Step, step_between

BEGINNING = Position(Lsn(0), 0)


class Checkpoint:
    """A checkpoint directory: on this machine, or wherever Spark can read."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark, self._location = spark, location
        self._last: tuple[int, dict[str, Any]] | None = None

    def bounds_of(self, batch: int) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """Where a batch starts and ends; the first one of a directory starts at an unknown place."""
        known = self._last if self._last is not None and self._last[0] == batch - 1 else None
        before = known[1] if known else (self.logged(batch - 1) if batch > 0 else None)
        end = self.logged(batch)
        self._last = (batch, end)
        return before, end

    def logged(self, batch: int) -> dict[str, Any]:
        """The end of a batch, as its source has written it."""
        try:
            lines = self._read(f"offsets/{batch}").splitlines()
        except OSError as exc:
            raise PositionError(f"the checkpoint directory {self._location} was removed or changed while in use") from exc
        found: dict[str, Any] = json.loads(lines[-1])
        return found

    def _read(self, name: str) -> str:
        place = self._location
        if "://" not in place and not place.startswith("file:"):
            return Path(place, name).read_text(encoding="utf-8")
        if place.startswith("file:"):
            return Path(unquote(urlsplit(place).path), name).read_text(encoding="utf-8")
        # PySpark has no door of its own to Hadoop's file systems.
        jvm: Any = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{self._location.rstrip('/')}/{name}")
        stream = path.getFileSystem(self._spark._jsc.hadoopConfiguration()).open(path)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()


def span_of(logged: Mapping[str, Any] | None, end: Mapping[str, Any]) -> tuple[Span, Position, Content]:
    """The range of a batch of changes, by the offsets at its start and its end; where it ends, and what it holds."""
    before, last = None if logged is None else Offset.from_json(logged), Offset.from_json(end)
    if before is not None and before.generation != last.generation:
        # The slot was lost in between: what was before says nothing of where this one starts.
        before = None
    step = step_between(before, last)
    return Span(step.start if before else BEGINNING, step.end, _loading(step)), last.position, last.content


def _loading(step: Step) -> Loading | None:
    load = step.load
    if load is None:
        return None
    return Loading(load.attempt, load.tables, step.first, step.last, step.completes, load.position)
