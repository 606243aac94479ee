"""A test that leaves something behind fails in its own teardown, and is told what it left."""

import logging
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.cli.app import run as run_program
from tests.support.leak_guard import root_logger_restored
from tests.support.servers.embedded import shared_place, shared_root

ROOT = Path(__file__).parents[2]
CONFTEST = """
import pytest
from headwater.embedded import EmbeddedPostgres
from tests.support import leak_guard
from tests.support.servers.embedded import postgres_settings

leak_guard._GRACE_SECONDS = 1.0

def pytest_configure(config):
    config.pluginmanager.register(leak_guard.LeakGuard("leaky"))

@pytest.fixture(scope="session")
def server():
    with EmbeddedPostgres(postgres_settings(18)) as server:
        yield server
"""
LEAVES_PROCESS = "import subprocess\ndef test_it():\n    subprocess.Popen(['sleep', '60'])"
# Its parent ends at once, so that nobody above it is the test.
LEAVES_ORPHAN = "import subprocess\ndef test_it():\n    subprocess.run(['sh', '-c', 'sleep 60 & exit'])"
LEAVES_PORT = "import socket\nKEPT = []\ndef test_it():\n    KEPT.append(socket.create_server(('127.0.0.1', 0)))"
LEAVES_FILE = "import tempfile\ndef test_it():\n    tempfile.mkdtemp(prefix='mine-')"
# The server ends with the last test, and its slots with it.
LEAVES_SLOT = """
import psycopg
def test_it(server):
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("select pg_create_logical_replication_slot('mine', 'pgoutput')")
def test_other(server):
    pass
"""
LEAVES_NOTHING = """
import socket, subprocess, tempfile
def test_it(server):
    with tempfile.TemporaryDirectory(), socket.create_server(('127.0.0.1', 0)):
        subprocess.run(['true'])
"""
KILLED = """
import os, signal
def test_it(server):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def run(directory: Path, test: str) -> "subprocess.CompletedProcess[str]":
    (directory / "conftest.py").write_text(CONFTEST)
    (directory / "test_leaky.py").write_text(test)
    options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(directory)]
    command = [sys.executable, "-m", "pytest", *options, str(directory)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("test", "said"),
    [
        (LEAVES_PROCESS, "left behind: process "),
        (LEAVES_ORPHAN, "left behind: process "),
        (LEAVES_PORT, "left behind: listening port "),
        (LEAVES_FILE, "left behind: file "),
        (LEAVES_SLOT, "left behind: replication slot mine"),
    ],
    ids=["process", "orphan", "port", "file", "slot"],
)
def test_a_test_that_leaves_something_behind_fails_by_name(test: str, said: str, tmp_path: Path) -> None:
    ended = run(tmp_path, test)

    assert ended.returncode == 1
    assert said in ended.stdout
    assert "ERROR at teardown of test_it" in ended.stdout


@pytest.mark.timeout(60)
def test_a_test_that_cleans_up_beside_a_server_that_stays_passes(tmp_path: Path) -> None:
    ended = run(tmp_path, LEAVES_NOTHING)

    assert ended.returncode == 0, ended.stdout


@pytest.mark.timeout(60)
def test_a_run_that_was_killed_leaves_servers_and_files_that_the_next_one_removes(tmp_path: Path) -> None:
    """If it did not, this test itself would leave them behind."""
    assert run(tmp_path, KILLED).returncode == -signal.SIGKILL
    (abandoned,) = shared_place().glob("headwater-leaky-*")
    assert any((abandoned / shared_root().name / "servers").iterdir())

    assert run(tmp_path, "def test_it(): pass").returncode == 0

    assert not abandoned.exists()


def test_a_command_that_runs_in_a_test_leaves_the_root_logger_as_it_was(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level

    with root_logger_restored():
        assert run_program(["--log-format", "json", "--log-level", "debug", "run", "--file", "missing.toml"]) == 2
        assert (root.handlers, root.level) != before, "the command sets up logging, or this test shows nothing"

    assert (root.handlers, root.level) == before


def test_every_test_has_it_restored(request: pytest.FixtureRequest) -> None:
    assert "root_logger" in request.fixturenames
