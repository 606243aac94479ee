"""`headwater run` as a program: exit codes, what it says, and that nothing noisy is printed."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from headwater.embedded import EmbeddedPostgres
from headwater.postgres.connect import connect_sync
from tests.support.servers.embedded import fresh_database
from tests.support.servers.shared_spark import commands_on
from tests.support.servers.spark_session import story_environment
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

Headwater = Callable[..., tuple[int, str, str]]


@pytest.fixture
def target(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        yield url


def _write_file(directory: Path, source: str, target: str, more: str = "") -> Path:
    file = directory / "headwater.toml"
    file.write_text(
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
"""
    )
    return file


@contextmanager
def _killed_on_error(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill a process that did not do what was waited for, instead of waiting for its end."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


def _rows(url: str) -> list[tuple[object, ...]]:
    with closing(connect_sync(url)) as connection:
        return connection.execute("select * from item order by 1").fetchall()


def test_on_a_terminal_bars_show_what_is_read_ctrl_c_stops_the_pipeline_and_a_run_once_delivers_the_rest(
    spark: SparkSession, database: str, target: str, tmp_path: Path, headwater: Headwater
) -> None:
    with closing(connect_sync(database)) as source, closing(connect_sync(target)) as replica:
        source.execute("create table item (id int primary key, v text)")
        source.execute("insert into item select g, 'v' || g from generate_series(1, 2000) g")
        source.execute("analyze item")
        replica.execute("create table item (id int primary key, v text)")
        file = _write_file(tmp_path, database, target)
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "headwater.cli", "run"]
        environment = {**os.environ, **story_environment()}
        with (
            subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as process,
            _killed_on_error(process),
        ):
            os.close(theirs)
            # The table cannot be exchanged while it is locked, so that there is time for a bar.
            with replica.transaction():
                replica.execute("lock table item in share mode")
                said = _read_until(ours, r"public\.item .*of about 2,000 rows")
                assert "read as a whole" not in said
            said += _read_until(ours, "read as a whole, and followed from now on")
            assert _noise(said.partition("read as a whole")[0]) == []
            process.send_signal(signal.SIGINT)
            # Linux says that nobody is at the other end with an error.
            with suppress(OSError):
                while data := os.read(ours, 65536):
                    said += data.decode(errors="replace")
            os.close(ours)
        assert process.returncode == 130, said
        assert len(_rows(target)) == 2000
        _, output, _ = headwater("status", "--file", str(file), "--json")
        status = json.loads(output)
        assert (status["phase"], status["error"]) == ("stopped", None)

        source.execute("insert into item select g, 'v' || g from generate_series(2001, 2100) g")
        with commands_on(spark):
            code, output, errors = headwater("--log-format", "text", "run", "--file", str(file), "--once")
    assert (code, output) == (0, ""), errors
    assert _rows(target) == _rows(database)
    assert all("pipeline=shop" in line for line in errors.splitlines()), errors


def test_ctrl_c_while_spark_starts_ends_the_run_and_leaves_no_java_behind(
    database: str, target: str, tmp_path: Path
) -> None:
    _write_file(tmp_path, database, target)
    command, pipe = [sys.executable, "-m", "headwater.cli", "run"], subprocess.PIPE
    # A group of its own, as a terminal gives to a command.
    process = subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, process_group=0)
    with process, _killed_on_error(process):
        javas = eventually(lambda: _javas(process.pid), seconds=60)
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (130, b""), errors
    assert b"Exception" not in errors
    assert b"Traceback" not in errors
    eventually(lambda: not any(java.is_running() for java in javas))


def _javas(pid: int) -> list[psutil.Process]:
    """The Java that has become a Spark driver, or is about to."""
    found = []
    for child in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "org.apache.spark.deploy.SparkSubmit" in child.cmdline():
                found.append(child)
    return found


def _read_until(terminal: int, pattern: str) -> str:
    said = ""
    while not re.search(pattern, said):
        said += os.read(terminal, 65536).decode(errors="replace")
    return said


def _noise(said: str) -> list[str]:
    """Lines on a terminal that are neither a log line of ours nor a bar, such as those of Java or of Spark's workers."""
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", said))
    return [line for line in lines if line and not re.match(r"\d\d:\d\d:\d\d info headwater\.|public\.item ", line)]


def test_a_transform_that_does_not_parse_ends_the_run_with_one_line(
    spark: SparkSession, database: str, target: str, tmp_path: Path, headwater: Headwater
) -> None:
    with closing(connect_sync(database)) as connection:
        connection.execute("create table item (id int primary key, v text)")
    file = _write_file(tmp_path, database, target, '[transform]\nsql = "selec * from changes"')
    with commands_on(spark):
        code, output, errors = headwater("--log-format", "text", "run", "--file", str(file), "--once")
    assert (code, output) == (1, "")
    assert [line for line in errors.splitlines() if line.startswith("error:")] == errors.splitlines()[-1:]
    assert "transform.sql" in errors
    assert "Traceback" not in errors


def test_a_file_that_is_wrong_is_refused_with_exit_code_2_before_anything_starts(
    tmp_path: Path, headwater: Headwater
) -> None:
    file = tmp_path / "headwater.toml"
    file.write_text('name = "shop"\n[sorce]\nurl = ""\n')
    code, _, errors = headwater("run", "--file", str(file))
    assert code == 2
    assert "sorce" in errors
    assert "source" in errors


def test_an_address_that_is_taken_ends_the_run_with_one_line_before_anything_starts(
    tmp_path: Path, headwater: Headwater
) -> None:
    # Nobody listens on port 1: a run that began would fail with another error.
    away = "postgresql://127.0.0.1:1/far_away"
    file = _write_file(tmp_path, away, away)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, _, errors = headwater("run", "--file", str(file), "--listen", address)
    assert code == 2
    assert errors.startswith(f"error: cannot listen on {address}: address already in use; name another address")
    assert len(errors.splitlines()) == 1
