"""Failpoints armed for processes that a test starts, and a wait for each to fire."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from headwater.failpoints import LOG_VARIABLE, VARIABLE, parse
from tests.support.waiting import eventually

# Those of the test that runs, for the check at its end.
_armed: list["Failpoints"] = []


class Failpoints:
    """Points that fire once each, in whichever process comes to them first; `environment` is for those processes."""

    def __init__(self, directory: Path, armed: str) -> None:
        self._log, self._names = directory / "failpoints", parse(armed).keys()
        self._log.mkdir(exist_ok=True)
        self.environment: Mapping[str, str] = {VARIABLE: armed, LOG_VARIABLE: str(self._log)}
        _armed.append(self)

    @property
    def fired(self) -> set[str]:
        return {path.name for path in self._log.iterdir()}

    @property
    def unfired(self) -> set[str]:
        return self._names - self.fired

    def wait_for(self, name: str, seconds: float = 120) -> None:
        """Wait until a process is at the point; one that it kills may live for a moment longer."""
        eventually(lambda: name in self.fired, seconds=seconds)


@contextmanager
def require_fired() -> Iterator[None]:
    """Fail a block that arms a point and ends, without an error, before the point has fired: it has shown nothing."""
    try:
        yield
        unfired = sorted({name for points in _armed for name in points.unfired})
    finally:
        _armed.clear()
    if unfired:
        pytest.fail(f"armed, and never fired: {', '.join(unfired)}", pytrace=False)
