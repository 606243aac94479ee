"""Processes that enqueue and work, so that neither waits for the other's interpreter: the same for all arms.

They live as long as a part of the benchmark, since a new one takes a second to begin.
"""

import ctypes
import multiprocessing
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Board:
    """What a process and the benchmark tell each other: each value is written by one of them, and read by the other."""

    is_ready: ctypes.c_longlong
    handled: ctypes.c_longlong
    is_over: ctypes.c_longlong

    def clear(self) -> None:
        self.is_ready.value = self.handled.value = self.is_over.value = 0

    def note(self) -> None:
        """One more job has been handled."""
        self.handled.value += 1


class Task(Protocol):
    def run(self, board: Board) -> object: ...


class Helper:
    """A process that runs one task after the other."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        values = [context.RawValue(ctypes.c_longlong, 0) for _ in range(3)]
        self.board = Board(*values)
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, *values), daemon=True)
        self._process.start()

    def begin(self, task: Task) -> None:
        self.board.clear()
        self._pipe.send(task)

    def is_done(self, seconds: float) -> bool:
        return self._pipe.poll(seconds)

    def result(self) -> object:
        found = self._pipe.recv()
        if isinstance(found, BaseException):
            raise found
        return found

    def run(self, task: Task) -> object:
        self.begin(task)
        return self.result()

    def finish(self) -> object:
        """Tell the task that it is over; its result."""
        self.board.is_over.value = 1
        return self.result()

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


@contextmanager
def helping(count: int) -> Iterator[list[Helper]]:
    helpers = [Helper() for _ in range(count)]
    try:
        yield helpers
    finally:
        for helper in helpers:
            helper.close()


def _serve(pipe: Pipe, is_ready: ctypes.c_longlong, handled: ctypes.c_longlong, is_over: ctypes.c_longlong) -> None:
    board = Board(is_ready, handled, is_over)
    while (task := pipe.recv()) is not None:
        try:
            pipe.send(task.run(board))
        except Exception as exc:  # noqa: BLE001 - it is for the one who gave the task
            pipe.send(RuntimeError("".join(traceback.format_exception(exc))))
