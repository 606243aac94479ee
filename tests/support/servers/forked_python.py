"""A Python that starts quickly: a program that has a server fork, which has loaded PySpark and Headwater.

Spark starts Python processes for each query, which load their modules for 0.7 s of CPU each; a fork takes 0.05 s. The
session that the tests of a worker share has it, and while that runs, so have the commands of stories. The demo and the
examples start their Python as Spark does, so that a module which a planner or a task does not load itself is missed there.
"""

import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module, reload
from pathlib import Path
from tempfile import TemporaryDirectory

from headwater import failpoints
from headwater.python_daemon import preload

# The modules that Spark has Python run, and those of the sources and tasks that they are given.
_RUN = ("pyspark.daemon", "headwater.python_daemon", "pyspark.sql.streaming.python_streaming_source_runner")
_LOADED = (
    *_RUN,
    "pyspark.sql.worker.create_data_source",
    "headwater.spark.sources.creek.source",
    "headwater.spark.sources.outbox.source",
    "headwater.spark.sources.topic.source",
)
# Sends what it was started with, and ends as the fork does. Without `site`, which would take longer than all of it.
_PROGRAM = """#!{python} -IS
import os, socket
from sys import argv
with socket.socket(socket.AF_UNIX) as server:
    server.connect({path!r})
    given = [os.getcwd(), str(len(argv) - 1), *argv[1:], *(text for pair in os.environ.items() for text in pair)]
    request = "\\0".join(given).encode(errors="surrogateescape")
    socket.send_fds(server, [len(request).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(request)
    os.closerange(0, 3)
    code = server.recv(1)
os._exit(code[0] if code else 1)
"""


@contextmanager
def forked_python() -> Iterator[Path]:
    """The program, with a server that ends with the block, and its forks with it."""
    with TemporaryDirectory(prefix="headwater-") as directory:
        program, path = Path(directory, "python"), str(Path(directory, "server"))
        program.write_text(_PROGRAM.format(python=sys.executable, path=path))
        program.chmod(0o755)
        command = [sys.executable, "-m", __name__, path]
        root = Path(__file__).parents[3]
        with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdin is not None and server.stdout is not None
            assert server.stdout.readline(), "the server of forks has ended before it was ready"
            try:
                yield program
            finally:
                server.stdin.close()
                server.wait(20)


@dataclass(frozen=True)
class _Request:
    """The directory, arguments and environment that the program was started with."""

    directory: str
    arguments: list[str]
    environment: dict[str, str]

    @classmethod
    def parse(cls, sent: bytes) -> "_Request":
        directory, count, *texts = sent.decode(errors="surrogateescape").split("\0")
        arguments, pairs = texts[: int(count)], texts[int(count) :]
        return cls(directory, arguments, dict(zip(pairs[::2], pairs[1::2], strict=True)))


class _Server:
    """Forks for each program that connects, and tells it when the fork has ended.

    A program that ends takes its fork along.
    """

    def __init__(self, path: str) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(64)
        self._clients: dict[int, socket.socket] = {}
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)

    def serve(self) -> _Request | None:
        """The request of a fork, in the fork; None in the server, when its owner has ended."""
        # One that keeps nothing in the kernel, which forks would share.
        with selectors.PollSelector() as selector:
            for file in (self._listener, self._woken, 0):
                selector.register(file, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj == 0:
                        self._end()
                        return None
                    if key.fileobj is self._woken:
                        self._reap(selector)
                    elif key.fileobj is self._listener:
                        request = self._fork(selector)
                        if request is not None:
                            return request
                    elif key.data in self._clients:
                        # Java has ended the program, or has ended itself; a fork that has ended as well is reaped by now.
                        selector.unregister(key.fileobj)
                        with suppress(ProcessLookupError):
                            os.kill(key.data, signal.SIGTERM)

    def _fork(self, selector: selectors.BaseSelector) -> _Request | None:
        client, _ = self._listener.accept()
        size, files, _, _ = socket.recv_fds(client, 4, 3)
        if not files:
            # The program was ended before it could ask.
            client.close()
            return None
        request = client.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
        pid = os.fork()
        if pid == 0:
            client.close()
            self._become(files)
            return _Request.parse(request)
        for file in files:
            os.close(file)
        self._clients[pid] = client
        selector.register(client, selectors.EVENT_READ, pid)
        return None

    def _become(self, files: list[int]) -> None:
        """Leave the server behind, in a fork that has its files instead."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for each in (self._listener, self._woken, self._waker, *self._clients.values()):
            each.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)

    def _reap(self, selector: selectors.BaseSelector) -> None:
        self._woken.recv(4096)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                client = self._clients.pop(ended[0])
                with suppress(KeyError):
                    selector.unregister(client)
                with client, suppress(OSError):
                    client.send(bytes([os.waitstatus_to_exitcode(ended[1]) & 0xFF]))

    def _end(self) -> None:
        for pid in self._clients:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _load() -> None:
    preload()
    for name in _LOADED:
        import_module(name)
    for name in _RUN:
        # What is run is not loaded before.
        del sys.modules[name]


def _run(request: _Request) -> None:
    """Do what `python -m module argument...` does."""
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.directory)
    # Armed as they are loaded, by the environment.
    reload(failpoints)
    option, module, *arguments = request.arguments
    assert option == "-m", request.arguments
    sys.path[0:1] = [request.directory, *filter(None, request.environment.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _load()
    server = _Server(sys.argv[1])
    os.write(1, b"ready\n")
    if (given := server.serve()) is not None:
        _run(given)
