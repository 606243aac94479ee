"""The directory of a Parquet sink: who owns it, how far it is written, and how files appear in it.

    <path>/_headwater/owner       the pipeline and the sink that write here
    <path>/_headwater/lock        locked by the run that writes here
    <path>/_headwater/committed   the bound behind all that is written, and the files of the last range
    <path>/<folder>/date=.../     files; `.` in front of the name as long as their range is not committed, or their table not
                                  loaded

Tasks write files under hidden names. When all are on disk, `committed` is replaced: from then on the range counts. Only then
the files get their visible names, and if the process dies in between, the next one to open the directory makes up for it. So
what is visible was committed, and stays; a range that is not committed leaves only hidden files, which are removed. Files
with rows of a table that is read as a whole are committed under their hidden names, and get the visible ones all at once
with the range that completes the attempt, or go if it has died. Spark, pyarrow and others read no names that begin with `_`
or `.`.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from headwater.errors import SinkError, SinkUnavailable
from headwater.model import Lineage, Lsn, Position, TimelineSwitch
from headwater.spark.sinks.parquet.columns import Table

_OURS: Final = "_headwater"
# Names of files that tasks write; those of replayed letters begin otherwise, and are nobody's to remove.
PREFIX: Final = "changes-"
LOADED: Final = "rows-"


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that a task wrote: its folder under the directory, and its hidden and its later name."""

    folder: str
    hidden: str
    visible: str


@dataclass(frozen=True, slots=True)
class LoadedPieces:
    """The pieces before `last` of an attempt at reading tables as a whole, in files that are still hidden."""

    attempt: str
    tables: tuple[Table, ...]
    last: int
    files: tuple[StagedFile, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """All changes before `end` are written. `lineage` is what their positions belong to, None if no frame told it.

    Of the tables in `behind` only those before a position of their own are: they were held back while the table was loaded.
    `completed` is the last attempt that was.
    """

    end: Position
    lineage: Lineage | None = None
    files: tuple[StagedFile, ...] = ()
    loads: tuple[LoadedPieces, ...] = ()
    behind: tuple[tuple[Table, Position], ...] = ()
    completed: str | None = None

    @property
    def waiting(self) -> set[StagedFile]:
        return {file for load in self.loads for file in load.files}


NOTHING: Final = Committed(Position(Lsn(0), 0))


class Directory:
    """The directory as the driver sees it."""

    def __init__(self, path: Path, *, sink: str) -> None:
        self.path, self._sink = path, sink
        self._lock: TextIO | None = None
        self.committed = NOTHING

    def open(self, owner: str) -> None:
        """Take the directory over: nobody else writes to it until `close`."""
        with self._translated():
            (self.path / _OURS).mkdir(parents=True, exist_ok=True)
            self.require_owner(owner)
            self._take_lock()
            self._claim(owner)
            self._recover()

    def require_owner(self, owner: str) -> None:
        """Raise SinkError if the directory is another one's."""
        file = self.path / _OURS / "owner"
        found = file.read_text().strip() if file.exists() else owner
        if found != owner:
            raise SinkError(
                self._sink,
                f"{self.path} belongs to {found}, and two writers would skip each other's changes; "
                "give this sink a path of its own",
            )

    def commit(self, committed: Committed) -> None:
        """Make the files of a range count, and visible; all of it is on disk on return."""
        with self._translated():
            known = self.committed.waiting
            new = [*committed.files, *(file for file in committed.waiting if file not in known)]
            self._require_files(new)
            self._sync_folders(new)
            self._replace("committed", json.dumps(asdict(committed)))
            self.committed = committed
            self._reveal(committed.files)
            if known - committed.waiting - set(committed.files):
                self._remove_hidden()

    def discard(self) -> None:
        """Remove what a failed attempt has left, or finish it if it failed after it was committed."""
        with self._translated():
            self._recover()

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _claim(self, owner: str) -> None:
        if not (self.path / _OURS / "owner").exists():
            self._replace("owner", f"{owner}\n")
        self.require_owner(owner)

    def _take_lock(self) -> None:
        if self._lock is not None:
            return
        lock = (self.path / _OURS / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise SinkUnavailable(
                self._sink, f"another run of the pipeline still writes to {self.path}; wait until it has ended, or end it"
            ) from None
        self._lock = lock

    def _recover(self) -> None:
        """Bring the files in line with what is committed on disk, whatever this process believes."""
        self.committed = self.read()
        self._reveal(self.committed.files)
        self._remove_hidden()

    def _remove_hidden(self) -> None:
        """Remove the hidden files that do not wait for anything."""
        waiting = {self.path / file.folder / file.hidden for file in self.committed.waiting}
        for prefix in (PREFIX, LOADED):
            for file in self.path.glob(f"*/date=*/.{prefix}*"):
                if file not in waiting:
                    file.unlink(missing_ok=True)

    def read(self) -> Committed:
        """What is committed on disk, also by another run."""
        file = self.path / _OURS / "committed"
        if not file.exists():
            return NOTHING
        try:
            return _committed(json.loads(file.read_text()))
        except (ValueError, KeyError, TypeError) as exc:
            raise SinkError(
                self._sink, f"{file} is damaged; restore it, or give the sink a new path and begin there again"
            ) from exc

    def _require_files(self, files: Iterable[StagedFile]) -> None:
        for file in files:
            if not (self.path / file.folder / file.hidden).exists():
                raise SinkError(
                    self._sink,
                    f"{self.path / file.folder} does not have the file that a task wrote there; "
                    "driver and executors must see the same directory",
                )

    def _sync_folders(self, files: Iterable[StagedFile]) -> None:
        """See that new names, and the folders that they are in, survive a loss of power."""
        folders = {self.path / file.folder for file in files}
        parents = {folder.parent for folder in folders}
        for folder in sorted({*folders, *parents, *({self.path} if folders else ())}):
            sync(folder)

    def _reveal(self, files: Sequence[StagedFile]) -> None:
        for file in files:
            folder = self.path / file.folder
            # One that is not hidden any more is visible, or was since removed by its user.
            if (folder / file.hidden).exists():
                (folder / file.hidden).rename(folder / file.visible)
        for folder in sorted({self.path / file.folder for file in files}):
            if folder.exists():
                sync(folder)

    def _replace(self, name: str, text: str) -> None:
        """Write a file of ours whole or not at all."""
        folder = self.path / _OURS
        partial = folder / f"{name}.partial"
        with partial.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / name)
        sync(folder)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise unwritable(self._sink, self.path, exc) from exc


def unwritable(sink: str, path: Path, error: OSError) -> SinkUnavailable:
    reason = error.strerror or type(error).__name__
    return SinkUnavailable(sink, f"cannot write to {path}: {reason}; make room there, or correct the path and its rights")


def sync(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _committed(facts: dict[str, Any]) -> Committed:
    lsn, ordinal = facts["end"]
    found = facts["lineage"]
    if found is not None:
        switches = tuple(TimelineSwitch(switch["timeline"], Lsn(switch["end"])) for switch in found["switches"])
        found = Lineage(**{**found, "switches": switches})
    return Committed(
        Position(Lsn(lsn), ordinal),
        found,
        _files(facts["files"]),
        tuple(_loaded(load) for load in facts["loads"]),
        tuple(((schema, table), Position(Lsn(lsn), ordinal)) for (schema, table), (lsn, ordinal) in facts["behind"]),
        facts["completed"],
    )


def _loaded(facts: dict[str, Any]) -> LoadedPieces:
    tables = tuple((schema, table) for schema, table in facts["tables"])
    return LoadedPieces(facts["attempt"], tables, facts["last"], _files(facts["files"]))


def _files(facts: list[dict[str, Any]]) -> tuple[StagedFile, ...]:
    return tuple(StagedFile(**file) for file in facts)
