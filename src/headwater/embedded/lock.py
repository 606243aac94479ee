"""Locks between processes that no crash leaves behind: flock(2) on files that nobody else may open."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.01


def try_lock(path: Path) -> int | None:
    """Lock a file, created if need be, until the returned descriptor is closed; None while somebody else holds it.

    Children do not inherit the descriptor unless they are given it; then the lock lasts until they have closed it too.
    """
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def lock_within(path: Path, seconds: float) -> int | None:
    """As `try_lock`, but somebody who lets go within the given time is waited for."""
    deadline = time.monotonic() + seconds
    while (descriptor := try_lock(path)) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return descriptor


def unlock(descriptor: int) -> None:
    """Give a lock up, also for those who inherited it."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock during the block; wait for it as long as it takes."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        unlock(descriptor)


def is_free(path: Path) -> bool:
    descriptor = try_lock(path)
    if descriptor is None:
        return False
    unlock(descriptor)
    return True


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
