"""The Makefile: one place to look, short enough to read at a glance."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)


def run_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as from a shell: one that is started by the make which runs the tests would warn of its job server."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_MAKE}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)


def targets() -> list[str]:
    return TARGET.findall((ROOT / "Makefile").read_text())


def test_there_are_at_most_twelve_targets():
    assert len(targets()) <= 12


def test_help_is_what_make_does_by_default_and_lists_every_target():
    shown = run_make()

    assert shown.returncode == 0
    assert [line.split()[1] for line in shown.stdout.splitlines()] == targets()
    assert all(len(line.split()) > 2 for line in shown.stdout.splitlines())


def test_no_target_is_mistaken_for_a_file_of_the_same_name():
    declared = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert declared
    assert declared[1].split() == targets()


def test_a_benchmark_without_a_name_is_asked_for():
    answer = run_make("bench")

    assert answer.returncode == 2
    assert "make bench needs NAME=" in answer.stderr


def test_an_unknown_benchmark_is_answered_with_the_known_ones():
    known = sorted(path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py"))

    answer = run_make("bench", "NAME=nothing")

    assert answer.returncode == 2
    assert sorted(answer.stderr.splitlines()[0].partition("one of:")[2].split()) == known


def test_a_check_is_style_format_types_import_order_documentation_and_tests() -> None:
    planned = run_make("--dry-run", "check").stdout

    for command in ("ruff check", "ruff format --check", "lint-imports", "mypy", "mkdocs build --strict", "pytest"):
        assert f"/{command}" in planned or f" {command}" in planned, command


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["STORY=nothing"], "make soak: there is no STORY=nothing; there are crash, "),
        (["SEED=seven"], "make soak: SEED=seven is not a number"),
        (["MINUTES=soon"], "make soak: MINUTES=soon is not a number"),
        (["MINUTES=0"], "make soak: MINUTES=0 is no time"),
    ],
)
def test_a_soak_that_cannot_be_run_is_refused_in_one_line(arguments: list[str], said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.soak", *_options(arguments)], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith(said)


def _options(arguments: list[str]) -> list[str]:
    """The options that the Makefile makes of its variables."""
    planned = run_make("--dry-run", "soak", *arguments).stdout
    (line,) = [line for line in planned.replace("\\\n", " ").splitlines() if "-m tests.soak" in line]
    return shlex.split(line.partition("-m tests.soak")[2])
