"""Failpoints: what arms them, what they do, and that the list of them is the truth."""

import ast
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headwater import failpoints
from headwater.failpoints import FAILPOINTS, LOG_VARIABLE, VARIABLE, hit, parse
from tests.support.failpoints import Failpoints, require_fired

ROOT = Path(__file__).parents[2]
HIT = re.compile(r'failpoints\.hit\("([a-z_.]+)"\)')
PROGRAM = (
    "from headwater.failpoints import hit\nfor number in range(3):\n    hit('sink.written')\n    print(number, flush=True)"
)


def run(armed: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    given: Mapping[str, str] = {**os.environ, VARIABLE: armed, **environment}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=given, capture_output=True, text=True, check=False)


def test_without_being_armed_a_point_does_nothing() -> None:
    hit("sink.written")
    assert run("").stdout.split() == ["0", "1", "2"]


def test_a_point_kills_its_process_at_the_hit_that_was_asked_for() -> None:
    ended = run("sink.written=kill@2")

    assert ended.stdout.split() == ["0"]
    assert ended.returncode == -signal.SIGKILL


def test_a_point_raises_the_loss_of_a_connection() -> None:
    ended = run("sink.written=error")

    assert ended.returncode == 1
    assert ended.stderr.strip().endswith("ConnectionLost: failpoint sink.written: the connection is lost")


def test_a_point_delays_its_process() -> None:
    began = time.monotonic()

    assert run("sink.written=sleep(0.5)").returncode == 0
    assert time.monotonic() - began >= 0.5


def test_a_point_counts_its_hits_from_when_another_has_fired(tmp_path: Path) -> None:
    log = {LOG_VARIABLE: str(tmp_path)}
    armed = "sink.written=kill@2 after slot.confirm"

    assert run(armed, **log).stdout.split() == ["0", "1", "2"]
    (tmp_path / "slot.confirm").touch()
    assert run(armed, **log).stdout.split() == ["0"]


def test_a_point_fires_once_however_often_processes_are_started(tmp_path: Path) -> None:
    log = {LOG_VARIABLE: str(tmp_path)}

    assert run("sink.written=kill", **log).returncode == -signal.SIGKILL
    assert run("sink.written=kill", **log).returncode == 0
    assert [path.name for path in tmp_path.iterdir()] == ["sink.written"]


@pytest.mark.parametrize(
    ("armed", "said"),
    [
        ("nothing=kill", "there is no failpoint 'nothing'; there are batch.begin, "),
        ("sink.written", "'sink.written' is not NAME=kill, NAME=error or NAME=sleep(SECONDS)"),
        ("sink.written=explode", "'sink.written=explode' is not NAME=kill"),
        ("sink.written=kill@0", "'sink.written=kill@0' is not NAME=kill"),
        ("sink.written=sleep(999999999999999)", "'sink.written=sleep(999999999999999)' is not NAME=kill"),
        ("sink.written=kill, sink.written=error", "sink.written is armed twice; name each point once"),
        ("sink.written=kill after sink.written", "'sink.written=kill after sink.written' waits for itself"),
        ("sink.written=kill after noon", "there is no failpoint 'noon'; there are batch.begin, "),
        ("sink.written=kill after slot.confirm", f"`after` needs {LOG_VARIABLE}, a directory"),
    ],
)
def test_what_cannot_be_armed_gets_one_clear_line_and_ends_the_process(armed: str, said: str) -> None:
    ended = run(armed)

    assert ended.returncode == 2
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith(f"{VARIABLE}: {said}")


def test_every_command_refuses_what_cannot_be_armed() -> None:
    command = [sys.executable, "-m", "headwater.cli", "--version"]
    given = {**os.environ, VARIABLE: "nothing=kill"}
    ended = subprocess.run(command, env=given, capture_output=True, text=True, check=False)

    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (2, "", 1)


@pytest.mark.parametrize("directory", ["", "missing", __file__])
def test_a_log_that_is_no_directory_gets_one_clear_line_and_ends_the_process(directory: str) -> None:
    ended = run("sink.written=kill", **{LOG_VARIABLE: directory})

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == f"{LOG_VARIABLE}: there is no directory {directory!r}; create it, or name another one\n"


def test_several_points_are_armed_at_once() -> None:
    armed = parse(" sink.written=kill , slot.confirm=sleep(0.25)@3,")

    assert {name: (one.action, one.seconds, one.hit) for name, one in armed.items()} == {
        "sink.written": ("kill", 0.0, 1),
        "slot.confirm": ("sleep", 0.25, 3),
    }


def test_the_list_of_points_is_that_of_the_code() -> None:
    found = {name for path in (ROOT / "src").rglob("*.py") for name in HIT.findall(path.read_text())}

    assert found == set(FAILPOINTS)


def test_every_point_is_armed_by_a_story() -> None:
    """Stories of `make soak` do not count: they draw their points, and not each round has each of them."""
    paths = [path for folder in ("acceptance", "integration") for path in (ROOT / "tests" / folder).rglob("*.py")]
    armed = {name for path in paths for text in _literals(ast.parse(path.read_text())) for name in _names(text)}

    assert set(FAILPOINTS) - armed == set()


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("POINTS = ('sink.written=kill@3', 'slot.confirm=sleep(1) after sink.written')", {"sink.written", "slot.confirm"}),
        ("arm('batch.begin=error, slot.confirm=kill')", {"batch.begin", "slot.confirm"}),
        ("POINTS = ('batch.begin', 'slot.confirm')\narm(f'{it}=kill@2' for it in POINTS)", {"batch.begin", "slot.confirm"}),
        ("POINTS = ('batch.begin',)\narm(f'{name} is killed' for name in POINTS)", set()),
        ("fired == {'sink.written'}", set()),
        ("# arm('sink.written=kill')", set()),
        ("arm('sink.written=explode')", set()),
    ],
)
def test_only_a_term_that_arms_a_point_counts(source: str, names: set[str]) -> None:
    assert {name for text in _literals(ast.parse(source)) for name in _names(text)} == names


def _names(text: str) -> set[str]:
    """The points that a text arms; none, unless the whole of it is terms that are accepted."""
    try:
        return set(parse(text))
    except ValueError:
        return set()


def _literals(module: ast.Module) -> Iterator[str]:
    """The strings of a module, and those of `f"{name}=kill" for name in NAMES` with each of the module's NAMES."""
    names = {
        target.id: [one.value for one in node.value.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        for node in module.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.GeneratorExp(
                elt=ast.JoinedStr(values=[ast.FormattedValue(value=ast.Name(each)), ast.Constant(value=str(action))]),
                generators=[ast.comprehension(target=ast.Name(target), iter=ast.Name(source))],
            ) if each == target:
                yield from (f"{name}{action}" for name in names.get(source, []))


def test_a_test_that_arms_a_point_which_never_fires_is_failed_by_name(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"armed, and never fired: slot\.confirm$"), require_fired():
        points = Failpoints(tmp_path, "sink.written=kill, slot.confirm=kill")
        assert run("sink.written=kill", **points.environment).returncode == -signal.SIGKILL
        assert points.fired == {"sink.written"}

    with pytest.raises(ZeroDivisionError), require_fired():
        Failpoints(tmp_path, "slot.confirm=kill")
        raise ZeroDivisionError("the error of the test is not hidden")


def test_this_process_has_none_armed() -> None:
    assert failpoints._ARMED == {}
