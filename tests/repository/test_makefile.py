"""The Makefile: one place to look, short enough to read at a glance."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)


def run_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "--no-print-directory", *arguments], cwd=ROOT, capture_output=True, text=True)


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
    known = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in {"__init__", "report"})

    answer = run_make("bench", "NAME=nothing")

    assert answer.returncode == 2
    assert sorted(answer.stderr.splitlines()[0].partition("one of:")[2].split()) == known
