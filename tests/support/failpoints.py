"""Failpoints armed for processes that a test starts, and a wait for each to fire."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headwater.failpoints import LOG_VARIABLE, VARIABLE
from tests.support.waiting import eventually


class Failpoints:
    """Points that fire once each, in whichever process comes to them first; `environment` is for those processes."""

    def __init__(self, directory: Path, armed: str) -> None:
        self._log = directory / "failpoints"
        self._log.mkdir(exist_ok=True)
        self.environment: Mapping[str, str] = {VARIABLE: armed, LOG_VARIABLE: str(self._log)}

    @property
    def fired(self) -> set[str]:
        return {path.name for path in self._log.iterdir()}

    def wait_for(self, name: str, seconds: float = 120) -> None:
        eventually(lambda: name in self.fired, seconds=seconds)


@contextmanager
def armed(directory: Path, terms: str) -> Iterator[Failpoints]:
    """Arm points for all processes that are started meanwhile; this one has read its environment already."""
    points = Failpoints(directory, terms)
    before = {name: os.environ.get(name) for name in points.environment}
    os.environ.update(points.environment)
    try:
        yield points
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
