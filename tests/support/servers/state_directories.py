"""Places for embedded servers that every user can pass through, which pytest's temporary directories are not."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp

from tests.support.servers.embedded import shared_place


@contextmanager
def temporary_state() -> Iterator[Path]:
    path = Path(mkdtemp(prefix="headwater-test-", dir=shared_place()))
    path.chmod(0o711)
    try:
        yield path
    finally:
        shutil.rmtree(path)
