"""Failpoints armed for processes that a test starts, and a wait for each to fire."""

from collections.abc import Mapping
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
