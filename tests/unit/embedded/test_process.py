import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from headwater.embedded.process import Command, Process, free_port, run, spawn, wait_until

STAT = "4711 (a ) strange (name) S 12 4711 4711 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 98765 1 2 3"


def here() -> Process:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    process = Process.parse(boot + Path("/proc/self/stat").read_text())
    assert process is not None
    return process


@pytest.fixture
def blocked(tmp_path):
    """A child that waits for ever, and a child of its own that does too."""
    child = subprocess.Popen(
        ["/bin/sh", "-c", "sleep 1000 & echo started; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "started\n"
    yield child
    child.stdout.close()
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def identify(pid: int) -> Process:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    process = Process.parse(boot + Path(f"/proc/{pid}/stat").read_text())
    assert process is not None
    return process


def test_a_record_is_read_whatever_the_name_of_the_process():
    assert Process.parse(f"b007\n{STAT}\n") == Process("b007", 4711, 98765)


@pytest.mark.parametrize("length", range(len("b007\n" + STAT) - len("98765 1 2 3")))
def test_a_record_that_is_cut_off_is_no_process(length):
    assert Process.parse(f"b007\n{STAT}"[:length]) is None


def test_a_missing_record_is_no_process(tmp_path):
    assert Process.read(tmp_path / "none") is None


def test_this_process_is_running():
    assert here().is_running()
    assert here().pid == os.getpid()


def test_a_later_process_with_the_same_number_is_not_taken_for_the_earlier_one():
    assert not replace(here(), started_ticks=here().started_ticks - 1).is_running()


def test_a_process_from_before_the_reboot_is_not_running():
    assert not replace(here(), boot="another").is_running()


def test_a_process_that_ended_but_was_not_collected_is_not_running(blocked):
    process = identify(blocked.pid)
    os.kill(blocked.pid, signal.SIGKILL)
    assert wait_until(lambda: not process.is_running(), 10)
    assert Path(f"/proc/{blocked.pid}").exists()


@pytest.mark.parametrize(
    "act", [lambda process: process.signal(signal.SIGKILL), lambda process: process.end(1), lambda process: process.kill()]
)
def test_another_process_with_the_same_number_is_not_touched_nor_are_its_children(blocked, act):
    stranger = identify(blocked.pid)
    (child,) = stranger._descendants()
    act(replace(stranger, started_ticks=1))
    # A kill takes effect at once, but not within the call.
    assert not wait_until(lambda: not (stranger.is_running() and child.is_running()), 0.1)


def test_ending_a_process_asks_it_before_it_is_forced(tmp_path):
    script = "import signal, sys; signal.signal(signal.SIGINT, lambda *_: sys.exit(7)); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        identify(child.pid).end(grace_seconds=10)
    assert child.returncode == 7


def test_killing_a_process_takes_its_children_with_it(blocked):
    process = identify(blocked.pid)
    (child,) = process._descendants()
    process.kill()
    assert wait_until(lambda: not child.is_running(), 10)
    assert not process.is_running()


def test_a_spawned_process_records_itself_and_logs_to_a_file(tmp_path):
    read, write = os.pipe()
    command = Command(["/bin/sh", "-c", "echo out; echo err >&2; exec sleep 1000"])
    child = spawn(command, record=tmp_path / "process", log=tmp_path / "log", hold=write)
    try:
        assert wait_until(lambda: (tmp_path / "log").read_text() == "out\nerr\n", 10)
        process = Process.read(tmp_path / "process")
        assert process is not None
        assert process.pid == child.pid
        assert process.is_running()
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
    finally:
        child.kill()
        child.wait()
        os.close(read)
        os.close(write)


def test_a_program_is_run_without_our_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PGPORT", "1")
    with (tmp_path / "held").open("wb") as held:
        result = run(Command(["/usr/bin/env"]), hold=held.fileno())
    assert result.returncode == 0
    assert "PGPORT" not in result.stdout


def test_waiting_looks_once_even_without_time():
    assert wait_until(lambda: True, 0)
    assert not wait_until(lambda: False, 0)


def test_waiting_ends_when_the_condition_holds():
    calls = count(1)
    assert wait_until(lambda: next(calls) == 3, 10)
    assert next(calls) == 4


def test_a_free_port_can_be_bound_and_is_not_one_for_outgoing_connections():
    port = free_port()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
    assert 20_000 <= port < 32_000


def test_a_port_that_is_taken_is_not_offered(monkeypatch):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setattr(
            "headwater.embedded.process._PORTS", range(*(listener.getsockname()[1] + step for step in (0, 1)))
        )
        monkeypatch.setattr("headwater.embedded.process._PORT_PICKS", 1)
        assert free_port() != listener.getsockname()[1]
