"""What differs from the daemon of PySpark: what is there after the first task is not collected, and no traceback comes."""

import gc
import os
import socket

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
    gc.unfreeze()
    yield tasks
    gc.unfreeze()


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
