"""What `scripts/setup` says when it cannot begin; that it works is shown by every run of these tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup"


@pytest.fixture
def empty_tree(tmp_path: Path) -> Path:
    """A tree that holds the script and no environment."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    return tmp_path


def set_up(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment}
    return subprocess.run([tree / "scripts" / "setup", *arguments], env=environment, capture_output=True, text=True)


def test_an_unknown_set_is_answered_with_the_known_ones(empty_tree):
    answer = set_up(empty_tree, "everything")

    assert (answer.returncode, answer.stderr) == (2, "usage: scripts/setup run|dev\n")


def test_an_interpreter_that_is_too_old_or_none_is_refused_by_name(empty_tree):
    answer = set_up(empty_tree, "run", PYTHON="/bin/false")

    assert answer.returncode == 1
    assert "PYTHON=/bin/false is not a CPython 3.11, 3.12 or 3.13" in answer.stderr


def test_a_machine_without_python_is_told_what_to_do(empty_tree):
    programs = empty_tree / "programs"
    programs.mkdir()
    (programs / "dirname").symlink_to(shutil.which("dirname") or "dirname")

    answer = set_up(empty_tree, "run", PATH=str(programs), PYTHON="")

    assert answer.returncode == 1
    assert "no Python 3.11, 3.12 or 3.13 on PATH" in answer.stderr
    assert not (empty_tree / ".venv").exists()


def test_the_lock_names_all_that_is_needed_since_nothing_else_is_installed():
    answer = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)

    assert (answer.returncode, answer.stdout.strip()) == (0, "No broken requirements found.")
