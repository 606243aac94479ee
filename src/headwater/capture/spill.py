"""A transaction that is still in progress, kept on disk until it commits or aborts.

The file has no name in the file system, so that nothing is left behind, however the process ends. It holds blocks of
messages; only their places are in memory.
"""

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from headwater.errors import SourceError
from headwater.postgres.replication.batch import Bounds, lay_out


class Block(NamedTuple):
    data: bytes
    bounds: Bounds


class _Place(NamedTuple):
    offset: int
    messages: int
    size: int


class Spill:
    """The messages of one transaction, in order. Add to it, then read it once from the start."""

    def __init__(self, xid: int, directory: Path, block_bytes: int) -> None:
        self._xid, self._directory, self._block_bytes = xid, directory, block_bytes
        self._file: BinaryIO | None = None
        self._places: list[_Place] = []
        self._pending: list[memoryview] = []
        self._pending_bytes = 0

    def add(self, message: memoryview) -> None:
        self._pending.append(message)
        self._pending_bytes += len(message)
        if self._pending_bytes >= self._block_bytes:
            self.write()

    def write(self) -> None:
        """Move what is in memory to disk."""
        if not self._pending:
            return
        data, bounds = lay_out(self._pending)
        with self._translated():
            self._append(data, bounds)
        self._pending, self._pending_bytes = [], 0

    def blocks(self) -> Iterator[tuple[Block, bool]]:
        """All messages, block by block, each with whether it is the last; at least one, which may be empty."""
        for place in self._places:
            with self._translated():
                block = self._read(place)
            yield block, not self._pending and place is self._places[-1]
        if self._pending or not self._places:
            yield Block(*lay_out(self._pending)), True

    def close(self) -> None:
        """Free the disk."""
        if self._file is not None:
            self._file.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            is_limit = exc.errno in (errno.EMFILE, errno.ENFILE)
            remedy = "raise the limit of open files" if is_limit else "make room there or name another directory for it"
            raise SourceError(
                f"cannot keep transaction {self._xid}, which is still in progress, in {self._directory}: {exc.strerror}; "
                f"{remedy}"
            ) from exc

    def _append(self, data: bytes, bounds: Bounds) -> None:
        if self._file is None:
            opened = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115 - `close` ends it
            self._file = cast("BinaryIO", opened)
        offset = self._places[-1].offset + _block_size(self._places[-1]) if self._places else 0
        self._file.seek(offset)
        self._write_all(bounds.tobytes())
        self._write_all(data)
        self._places.append(_Place(offset, len(bounds) - 1, len(data)))

    def _write_all(self, data: bytes) -> None:
        """Write everything: an unbuffered write may take only a part, as it does when a disk is nearly full."""
        view = memoryview(data)
        while view:
            written = cast("BinaryIO", self._file).write(view)
            view = view[written:]

    def _read(self, place: _Place) -> Block:
        file = cast("BinaryIO", self._file)
        file.seek(place.offset)
        bounds = np.frombuffer(file.read((place.messages + 1) * 8), np.int64)
        return Block(file.read(place.size), bounds)


def _block_size(place: _Place) -> int:
    return (place.messages + 1) * 8 + place.size
