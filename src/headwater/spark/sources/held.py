"""Changes that have to wait until the rows of their tables are delivered, kept on disk.

The file has no name, so nothing is left behind. After a restart the slot gives the same changes again.
"""

import errno
import pickle
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from headwater.errors import SourceError
from headwater.model import Position
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.cut import Index
from headwater.spark.sources.lanes import self_contained


@dataclass(frozen=True, slots=True)
class _Place:
    start: Position
    end: Position
    offset: int
    size: int


class Held:
    """Batches of some tables' changes, in order."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory or Path(tempfile.gettempdir())
        self._file = cast("BinaryIO", tempfile.TemporaryFile(dir=directory))  # noqa: SIM115 - `close` ends it
        self._places: list[_Place] = []

    def add(self, batch: Batch) -> None:
        index, data = Index.of(batch), pickle.dumps(self_contained(batch), pickle.HIGHEST_PROTOCOL)
        offset = self._places[-1].offset + self._places[-1].size if self._places else 0
        try:
            self._file.seek(offset)
            self._file.write(data)
            self._file.flush()
        except OSError as exc:
            remedy = "make room there" if exc.errno == errno.ENOSPC else "see to it"
            raise SourceError(
                f"cannot keep changes of tables that are being read in {self._directory}: {exc.strerror}; {remedy}, or name "
                "another directory as spillDirectory"
            ) from exc
        self._places.append(_Place(index.start, index.end, offset, len(data)))

    def bound(self, start: Position, limit: Position, max_bytes: int) -> Position:
        """The end of the next range, within so many bytes; `limit`, before which all is here, when nothing is left."""
        size = 0
        for place in self._places:
            if place.end <= start:
                continue
            if size and size + place.size > max_bytes:
                return place.start
            size += place.size
        return limit

    def between(self, start: Position, end: Position) -> list[Batch]:
        parts = [self._read(place).between(start, end) for place in self._places if place.end > start and place.start < end]
        return [part for part in parts if part is not None]

    def forget(self, before: Position) -> None:
        """Nothing before a position will be asked for again."""
        self._places = [place for place in self._places if place.end > before]

    def close(self) -> None:
        self._file.close()

    def _read(self, place: _Place) -> Index:
        self._file.seek(place.offset)
        batch: Batch = pickle.loads(self._file.read(place.size))
        return Index.of(batch)
