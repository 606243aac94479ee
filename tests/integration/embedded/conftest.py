"""What all tests of embedded servers need."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.state_directories import temporary_state


@pytest.fixture
def state() -> Iterator[Path]:
    """A state directory of its own, so that no test meets the servers of another."""
    with temporary_state() as path:
        yield path


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root runs servers as somebody else")
