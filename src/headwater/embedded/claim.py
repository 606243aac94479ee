"""Who owns a server's directory, so that no server outlives its owner for good.

The owner holds a lock on `owner.lock` that dies with it, whatever kills it. The server and all its children hold one on
`server.lock`, which they inherit. A user's state directory lists all servers under `servers`: a directory there is a
temporary server, a link leads to a lasting one. Whoever starts a server first stops those whose owner is gone.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

from headwater.embedded.directory import is_ours, make_directory
from headwater.embedded.lock import is_free, lock_within, locked, try_lock, unlock
from headwater.embedded.process import Process, wait_until
from headwater.errors import HeadwaterError, SettingsError

# For a fast shutdown of an abandoned server, and then for the last of its children to notice.
_GRACE_SECONDS = 10.0
_GONE_SECONDS = 10.0
# A child that another thread starts holds all our locks until it has become its program.
_FORK_SECONDS = 1.0


class Claim:
    """A server's directory, ours until `release` or until this process is gone."""

    def __init__(self, directory: Path, entry: Path, lock: int) -> None:
        self.directory = directory
        self.record = directory / "process"
        self.log = directory / "log"
        self._entry = entry
        self._lock = lock

    @property
    def is_temporary(self) -> bool:
        return not self._entry.is_symlink()

    @contextmanager
    def hold(self) -> Iterator[int]:
        """The descriptor by which a child shows that it lives; it must be inherited before the block ends."""
        lock = lock_within(self.directory / "server.lock", _FORK_SECONDS)
        if lock is None:
            raise HeadwaterError(f"processes of an earlier server still run in {self.directory}; end them and try again")
        try:
            yield lock
        finally:
            os.close(lock)

    def end_server(self, grace_seconds: float) -> None:
        """Stop the server with all its children; it may be one that an earlier owner left behind."""
        if not _end_server(self.directory, grace_seconds):
            raise HeadwaterError(f"the server in {self.directory} does not end; end its processes and try again")

    def release(self) -> None:
        """Give the directory back, without its files when it was a temporary one. The server must have ended."""
        _forget(self._entry)
        unlock(self._lock)


def claim_directory(root: Path, directory: Path | None, kind: str) -> Claim:
    """Take a directory, a new temporary one if None, after stopping every server of this user whose owner is gone."""
    servers = make_directory(make_directory(root) / "servers")
    # One start at a time: the others wait here while abandoned servers are stopped.
    with locked(root / "servers.lock"):
        _stop_abandoned(servers)
        if directory is None:
            entry = Path(mkdtemp(prefix=f"{kind}-", dir=servers))
            entry.chmod(servers.stat().st_mode & 0o777)
            return Claim(entry, entry, _take(entry))
        directory = make_directory(directory.resolve())
        lock = _take(directory)
        entry = servers / sha256(os.fsencode(directory)).hexdigest()[:16]
        with suppress(FileExistsError):
            entry.symlink_to(directory)
    claim = Claim(directory, entry, lock)
    try:
        claim.end_server(_GRACE_SECONDS)
    except BaseException:
        unlock(lock)
        raise
    return claim


def _stop_abandoned(servers: Path) -> None:
    for entry in servers.iterdir():
        # An owner that ends meanwhile removes its directory, which is all that is wanted.
        with suppress(FileNotFoundError):
            _stop_if_abandoned(entry)


def _stop_if_abandoned(entry: Path) -> None:
    # Behind a link, somebody else may have put a directory and a record that leads us to an innocent process.
    if not is_ours(entry.resolve()):
        _forget(entry)
        return
    lock = try_lock(entry / "owner.lock")
    if lock is None:
        return
    try:
        if _end_server(entry, _GRACE_SECONDS):
            _forget(entry)
    finally:
        unlock(lock)


def _end_server(directory: Path, grace_seconds: float) -> bool:
    record, lock = directory / "process", directory / "server.lock"
    # A server that is just starting has the lock before its record.
    wait_until(lambda: is_free(lock) or Process.read(record) is not None, _GONE_SECONDS)
    process = Process.read(record)
    if process is not None:
        process.end(grace_seconds)
    return wait_until(lambda: is_free(lock), _GONE_SECONDS)


def _forget(entry: Path) -> None:
    if entry.is_symlink():
        entry.unlink(missing_ok=True)
    else:
        shutil.rmtree(entry, ignore_errors=True)


def _take(directory: Path) -> int:
    lock = lock_within(directory / "owner.lock", _FORK_SECONDS)
    if lock is None:
        raise SettingsError(
            f"directory {directory} is in use by another process; stop that one, or choose another directory"
        )
    return lock
