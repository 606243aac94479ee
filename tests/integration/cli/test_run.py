"""`headwater run` as a program: exit codes, what it says, and that nothing noisy is printed."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.postgres.connect import connect_sync
from tests.servers import fresh_database
from tests.spark import java_home, quick_settings

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


@pytest.fixture
def target(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        yield url


def _write_file(directory: Path, source: str, target: str, more: str = "") -> None:
    spark = "\n".join(f'"{key}" = """{value}"""' for key, value in quick_settings(java_home()).items())
    (directory / "headwater.toml").write_text(
        f"""
name = "shop"
[source]
url = "{source}"
tables = ["public.item"]
slot = "shop_{source.rpartition("_")[2][:16].partition("?")[0]}"
{more}
[[sinks]]
type = "postgres"
url = "{target}"
[spark]
master = "local[2]"
{spark}
"""
    )


def _headwater(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headwater.cli", "--log-format", "text", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=250)


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """One that did not do what was waited for is not waited for."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


def _rows(url: str) -> list[tuple[object, ...]]:
    with closing(connect_sync(url)) as connection:
        return connection.execute("select * from item order by 1").fetchall()


def test_runs_once_after_once_deliver_everything_and_say_little(database, target, tmp_path):
    with closing(connect_sync(database)) as connection:
        connection.execute("create table item (id int primary key, v text)")
        _write_file(tmp_path, database, target)
        first = _headwater(tmp_path, "run", "--once")
        assert (first.returncode, first.stdout) == (0, ""), first.stderr
        connection.execute("insert into item select g, 'v' || g from generate_series(1, 100) g")
        second = _headwater(tmp_path, "run", "--once")
    assert second.returncode == 0, second.stderr
    assert _rows(target) == _rows(database)
    assert all("pipeline=shop" in line for line in second.stderr.splitlines()), second.stderr


def test_on_a_terminal_bars_show_what_is_read_and_ctrl_c_leaves_a_pipeline_that_has_stopped(database, target, tmp_path):
    with closing(connect_sync(database)) as connection:
        connection.execute("create table item (id int primary key, v text)")
        connection.execute("insert into item select g, repeat('v', 300) || g from generate_series(1, 300000) g")
        connection.execute("analyze item")
    _write_file(tmp_path, database, target)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "headwater.cli", "run"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs) as process, ended(process):
        os.close(theirs)
        said = ""
        while "read as a whole, and followed from now on" not in said:
            said += os.read(ours, 65536).decode(errors="replace")
        process.send_signal(signal.SIGINT)
        # Linux says that nobody is at the other end with an error.
        with suppress(OSError):
            while data := os.read(ours, 65536):
                said += data.decode(errors="replace")
        os.close(ours)
    assert process.returncode == 130, said
    assert re.search(r"public\.item .*of about 300,000 rows", said), said
    assert len(_rows(target)) == 300_000
    status = json.loads(_headwater(tmp_path, "status", "--json").stdout)
    assert (status["phase"], status["error"]) == ("stopped", None)


def test_a_transform_that_does_not_parse_ends_the_run_with_one_line(database, target, tmp_path):
    with closing(connect_sync(database)) as connection:
        connection.execute("create table item (id int primary key, v text)")
    _write_file(tmp_path, database, target, '[transform]\nsql = "selec * from changes"')
    done = _headwater(tmp_path, "run", "--once")
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if line.startswith("error:")] == done.stderr.splitlines()[-1:]
    assert "transform.sql" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_is_wrong_is_refused_with_exit_code_2_before_anything_starts(tmp_path):
    (tmp_path / "headwater.toml").write_text('name = "shop"\n[sorce]\nurl = ""\n')
    done = _headwater(tmp_path, "run")
    assert done.returncode == 2
    assert "sorce" in done.stderr
    assert "source" in done.stderr


def test_an_address_that_is_taken_ends_the_run_with_one_line_before_anything_starts(database, target, tmp_path):
    _write_file(tmp_path, database, target)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = _headwater(tmp_path, "run", "--listen", address)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: cannot listen on {address}: address already in use; name another address")
    assert len(done.stderr.splitlines()) == 1
