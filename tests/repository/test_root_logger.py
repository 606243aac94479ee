"""Tests that run a command in their own process leave no log handler behind, whose stream ends with the test."""

import logging

import pytest

from headwater.cli.app import run
from tests.support.root_logger import root_logger_restored


def test_a_command_that_runs_in_a_test_leaves_the_root_logger_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level

    with root_logger_restored():
        assert run(["--log-format", "json", "--log-level", "debug", "run", "--file", "missing.toml"]) == 2
        assert (root.handlers, root.level) != before, "the command sets up logging, or this test shows nothing"

    assert (root.handlers, root.level) == before


def test_every_test_has_it_restored(request: pytest.FixtureRequest) -> None:
    assert "root_logger" in request.fixturenames
