"""The differences from PySpark's daemon: preloaded modules, objects that are not collected, and no traceback."""

import gc
import os
import socket
import subprocess
import sys

import pytest
from pyspark import daemon

from headwater import python_daemon


@pytest.fixture
def served(monkeypatch):
    """The tasks that PySpark was given."""
    tasks: list[object] = []
    monkeypatch.setattr(daemon, "worker", python_daemon.serve_first)

    def serve(_sock, authenticated):
        tasks.append(authenticated)
        return 7

    monkeypatch.setattr(python_daemon, "_serve", serve)
    freeze = gc.freeze
    gc.unfreeze()
    yield tasks
    # As it is for all tests.
    freeze()


def test_what_is_there_after_the_first_task_is_frozen_once(served, monkeypatch):
    here, there = socket.socketpair()
    with here, there:
        assert daemon.worker(here, True) == 7
        assert gc.get_freeze_count() > 0
        monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("it was frozen again"))
        assert daemon.worker(here, False) == 7
    assert served == [True, False]


def test_a_worker_whose_java_has_hung_up_ends_at_once(served, monkeypatch):
    def hang_up(sock, authenticated):
        raise BrokenPipeError

    class Ended(Exception):
        pass

    def end(code):
        raise Ended(code)

    monkeypatch.setattr(python_daemon, "_serve", hang_up)
    monkeypatch.setattr(os, "_exit", end)
    here, there = socket.socketpair()
    with here, there, pytest.raises(Ended, match="1"):
        daemon.worker(here, True)


# Each worker of a daemon prints what it has; the daemon waits for one before it forks the next.
_PRELOAD = """
import os, sys
from headwater import python_daemon

python_daemon.preload()
print("daemon", len(os.listdir("/proc/self/task")), flush=True)
for _ in range(2):
    if os.fork() == 0:
        import numpy
        before = set(sys.modules)
        import pyspark.worker, pyspark.sql.worker.plan_data_source_read, pyarrow
        import headwater.spark.sources.changes, headwater.spark.sinks.postgres.task
        pyarrow.array([1])
        print("worker", len(set(sys.modules) - before), numpy.random.bytes(8).hex(), flush=True)
        os._exit(0)
    os.wait()
"""


def _run(program, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split() for line in done.stdout.splitlines()]


@pytest.mark.timeout(60)
def test_a_worker_is_forked_with_the_modules_of_a_task_from_a_process_without_threads():
    daemon_line, first, second = _run(_PRELOAD)

    assert daemon_line == ["daemon", "1"]
    assert (first[:2], second[:2]) == (["worker", "0"], ["worker", "0"])
    assert first[2] != second[2], "two workers have the same random numbers"


@pytest.mark.timeout(60)
def test_nothing_is_preloaded_if_the_environment_asks_for_threads():
    program = "import sys; from headwater import python_daemon as d; d.preload(); print('numpy' in sys.modules)"

    assert _run(program, OMP_NUM_THREADS="4") == [["False"]]
