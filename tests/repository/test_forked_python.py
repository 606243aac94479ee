"""The Python that starts quickly: a fork behaves as a process of its own, and ends with the program that asked for it."""

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.servers.forked_python import forked_python
from tests.support.waiting import eventually

PROBE = """
import json, os, sys
told = sys.stdin.read()
loaded = "headwater.spark.sources.changes" in sys.modules
print(json.dumps([sys.argv[1:], os.getcwd(), os.environ.get("PROBE"), told, __name__, loaded]))
print("to the standard error", file=sys.stderr)
sys.exit(7)
"""
WAITING = """
import os, sys, time
print(os.getpid(), flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def python() -> Iterator[Path]:
    with forked_python() as program:
        yield program


def test_a_fork_has_the_arguments_the_environment_the_files_and_the_exit_code_of_a_process(
    python: Path, tmp_path: Path
) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    ended = subprocess.run(
        [python, "-m", "probe", "one", "two words"],
        cwd=tmp_path,
        env={**os.environ, "PROBE": "ü\n"},
        input="a line",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (7, "to the standard error\n")
    assert json.loads(ended.stdout) == [["one", "two words"], str(tmp_path), "ü\n", "a line", "__main__", True]


def test_the_daemon_of_spark_is_run_without_a_warning_that_it_was_loaded_before(python: Path, tmp_path: Path) -> None:
    """It would come between the lines and the bars of a command on a terminal."""
    # Java has hung up already.
    ended = subprocess.run(
        [python, "-m", "headwater.python_daemon"],
        cwd=tmp_path,
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": "secret"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=15,
        check=False,
    )
    assert ended.stderr == b""


def test_failpoints_of_a_fork_are_armed_by_its_own_environment(python: Path, tmp_path: Path) -> None:
    (tmp_path / "armed.py").write_text("from headwater import failpoints\nfailpoints.hit('sink.written')\nprint('alive')\n")
    command, armed = [str(python), "-m", "armed"], {**os.environ, "HEADWATER_FAILPOINTS": "sink.written=kill"}
    killed = subprocess.run(command, cwd=tmp_path, env=armed, capture_output=True, text=True, check=False)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL & 0xFF, "")
    unarmed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (unarmed.returncode, unarmed.stdout) == (0, "alive\n")


def test_a_fork_ends_with_the_program_that_is_ended(python: Path, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    with subprocess.Popen([python, "-m", "waiting"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        fork = psutil.Process(int(program.stdout.readline()))
        assert fork.pid != program.pid
        program.terminate()
    eventually(lambda: not fork.is_running())


def test_a_fork_and_its_program_that_end_at_the_same_time_do_not_end_the_server(python: Path, tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    with subprocess.Popen([python, "-m", "waiting"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        fork = psutil.Process(int(program.stdout.readline()))
        with socket.socket(socket.AF_UNIX) as asking, Path(os.devnull).open("r+") as null:
            asking.connect(str(python.with_name("server")))
            socket.send_fds(asking, [(9).to_bytes(4, "big")], [null.fileno()] * 3)
            # Once it has read this, it waits for the rest of the request, and so learns of both ends at once.
            eventually(lambda: _unread(asking) == 0)
            fork.kill()
            program.kill()
            program.wait()
            eventually(lambda: fork.status() == psutil.STATUS_ZOMBIE)
    eventually(lambda: not fork.is_running())
    (tmp_path / "probe.py").write_text(PROBE)
    ended = subprocess.run([python, "-m", "probe"], cwd=tmp_path, input=b"", capture_output=True, check=False, timeout=15)
    assert ended.returncode == 7


def _unread(sent: socket.socket) -> int:
    """How many bytes the other end has not read."""
    (count,) = struct.unpack("i", fcntl.ioctl(sent, termios.TIOCOUTQ, bytes(4)))
    return int(count)


def test_forks_end_with_their_server(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(WAITING)
    with forked_python() as python:
        program = subprocess.Popen([python, "-m", "waiting"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        assert program.stdout is not None
        fork = psutil.Process(int(program.stdout.readline()))
    with program:
        eventually(lambda: not fork.is_running())
        assert program.wait(20) != 0


def test_a_program_whose_server_is_gone_fails(tmp_path: Path) -> None:
    with forked_python() as python:
        text = python.read_text()
    left = tmp_path / "python"
    left.write_text(text)
    ended = subprocess.run([sys.executable, left, "-m", "probe"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "FileNotFoundError" in ended.stderr
