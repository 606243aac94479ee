"""The Makefile: one place to look, short enough to read at a glance."""

import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import tests.soak
from tests.soak.__main__ import STORIES
from tests.support.servers.embedded import PLACE_VARIABLE, shared_place
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
_OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES")
TARGET = re.compile(r"^([a-z]+):", re.MULTILINE)


def run_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as from a shell: one that is started by the make which runs the tests would warn of its job server."""
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=_environment())


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_MAKE}


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


@pytest.mark.timeout(60)
def test_a_path_without_tests_is_named() -> None:
    command = [sys.executable, "-m", "pytest", "-n", "2", "tests/unit/nothing.py::test_it"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr.strip()) == (
        4,
        "ERROR: file or directory not found: tests/unit/nothing.py::test_it",
    )


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("STORY", "nothing", "make soak: there is no STORY=nothing; there are crash, "),
        ("STORY", "--help", "make soak: there is no STORY=--help; there are crash, "),
        ("STORY", "it's", "make soak: there is no STORY=it's; there are crash, "),
        ("SEED", "seven", "make soak: SEED=seven is not a whole number; give one such as SEED=7"),
        ("SEED", "1.5", "make soak: SEED=1.5 is not a whole number"),
        ("MINUTES", "soon", "make soak: MINUTES=soon is not a number"),
        ("MINUTES", "0", "make soak: MINUTES=0 is no time"),
        ("MINUTES", "-inf", "make soak: MINUTES=-inf is no time"),
        ("MINUTES", "nan", "make soak: MINUTES=nan is no time"),
        ("HEADWATER_FAILPOINTS", "sink.written=kill", "make soak: HEADWATER_FAILPOINTS is set; unset it"),
    ],
)
def test_a_soak_that_cannot_be_run_is_refused_in_one_line(name: str, value: str, said: str) -> None:
    ended = _soak(**{name: value})

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith(said)


def test_make_passes_its_variables_to_a_soak_as_they_are(tmp_path: Path) -> None:
    """By the environment, and so past the shell."""
    (recipe,) = [line for line in run_make("--dry-run", "soak").stdout.splitlines() if "-m tests.soak" in line]
    assert recipe.endswith(" -m tests.soak")
    makefile = tmp_path / "Makefile"
    makefile.write_text("soak:\n\t@printenv STORY\n")
    command = ["make", "-f", str(makefile), 'STORY=it\'s; "one"']
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment())
    assert said.stdout == 'it\'s; "one"\n'


@pytest.mark.timeout(60)
def test_a_soak_that_is_interrupted_says_so_and_leaves_nothing_behind() -> None:
    """The leak guard looks for the rest; the directory of a round is where servers of tests are."""
    before = set(shared_place().glob("headwater-soak-*"))
    command, environment = [sys.executable, "-m", "tests.soak"], {**os.environ, "STORY": "mutations", "MINUTES": "5"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=pipe, stderr=pipe, text=True) as soak:
        eventually(lambda: set(shared_place().glob("headwater-soak-*")) - before, seconds=30)
        soak.send_signal(signal.SIGINT)
        output, errors = soak.communicate(timeout=30)
    assert (soak.returncode, errors) == (130, "")
    assert output.splitlines()[-1].startswith("interrupted in round 1; before that: 0 rounds: committed 0, lost 0")
    assert set(shared_place().glob("headwater-soak-*")) == before


_INTERRUPTED_IN_A_CALLBACK = '''
import gc, signal, sys, threading, time, types
from tests.soak.__main__ import main

class SlowThread(threading.Thread):
    """As on a machine that has no time for the main thread, which starts it in the hook for exceptions that are dropped."""
    def start(self):
        super().start()
        time.sleep(0.5)

def interrupt(phase, info):
    gc.callbacks.remove(interrupt)
    signal.raise_signal(signal.SIGINT)

def run(given):
    threading.Thread = SlowThread
    gc.callbacks.append(interrupt)
    gc.collect()
    time.sleep(10)

sys.modules["tests.soak.mutations"] = story = types.ModuleType("tests.soak.mutations")
story.run = run
sys.exit(main())
'''


@pytest.mark.timeout(60)
def test_a_soak_that_is_interrupted_in_a_callback_of_garbage_collection_ends_all_the_same() -> None:
    """Hypothesis has such a callback, and Python drops the exceptions of them all."""
    command, environment = [sys.executable, "-c", _INTERRUPTED_IN_A_CALLBACK], {**os.environ, "STORY": "mutations"}
    soak = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (soak.returncode, soak.stderr) == (130, "")


_STUB_STORY = """
import sys, types
import pytest
from tests.soak.__main__ import main
from tests.soak.story import Counts

def run(round):
    return {outcome}

sys.modules["tests.soak.mutations"] = story = types.ModuleType("tests.soak.mutations")
story.run = run
sys.exit(main())
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("outcome", "code", "last"),
    [
        (
            "Counts(10, repeated=3, allowed_repeats=3)",
            0,
            "1 rounds: committed 10, lost 0, repeated 3 of at most 3 ",
        ),
        ("Counts(0)", 1, "violation: replay it with "),
        ("Counts(10, lost=1)", 1, "violation: replay it with `make soak MINUTES=1 STORY=mutations SEED=7`"),
        ("Counts(10, repeated=4, allowed_repeats=3)", 1, "violation: replay it with "),
        ("Counts(10, out_of_order=1)", 1, "violation: replay it with "),
        ("1 / 0", 1, "violation: replay it with "),
    ],
)
def test_a_soak_ends_at_the_first_violation_with_the_command_that_replays_it(
    outcome: str, code: int, last: str, tmp_path: Path
) -> None:
    ended = _stub_soak(outcome, tmp_path)
    assert ended.returncode == code
    assert ended.stdout.splitlines()[-1].startswith(last)
    # The logs of a round that failed are kept.
    assert [path.name.rpartition("-")[0] for path in tmp_path.iterdir()] == ["headwater-soak-mutations-7"] * code


@pytest.mark.timeout(60)
def test_every_module_of_the_soak_with_a_run_is_a_story() -> None:
    modules = [import_module(f"tests.soak.{module.name}") for module in iter_modules(tests.soak.__path__)]
    assert sorted(STORIES) == sorted(module.__name__.rpartition(".")[2] for module in modules if hasattr(module, "run"))


@pytest.mark.timeout(60)
def test_a_soak_whose_story_lacks_a_package_says_so(tmp_path: Path) -> None:
    ended = _stub_soak("pytest.skip('there is no RabbitMQ')", tmp_path)
    assert (ended.returncode, ended.stderr) == (2, "make soak: mutations cannot be run: there is no RabbitMQ\n")
    assert list(tmp_path.iterdir()) == []


def _stub_soak(outcome: str, directory: Path) -> "subprocess.CompletedProcess[str]":
    """A soak of one round of a story with an outcome, which has its files in a directory."""
    given = {"STORY": "mutations", "SEED": "7", "MINUTES": "1e-9", PLACE_VARIABLE: str(directory)}
    command, environment = [sys.executable, "-c", _STUB_STORY.format(outcome=outcome)], {**os.environ, **given}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def _soak(**given: str) -> "subprocess.CompletedProcess[str]":
    command, environment = [sys.executable, "-m", "tests.soak"], {**os.environ, **given}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
