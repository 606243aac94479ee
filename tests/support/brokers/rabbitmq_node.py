"""A private RabbitMQ node for tests, from Debian's package: ports and files of its own, stopped by its own number."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import pika
from pika.adapters.blocking_connection import BlockingChannel

from headwater.embedded.process import free_port
from tests.support.brokers.nats_credentials import certify
from tests.support.servers.embedded import shared_place, skip_or_fail
from tests.support.waiting import eventually

# The wrapper in /usr/sbin insists on root or its own user, and on directories of the system.
_PROGRAMS = Path("/usr/lib/rabbitmq/bin")
_USER = "headwater"
# Erlang's threads sleep when there is nothing to do, instead of looking for work: others need the cores, and each look gives
# one up for a slice of time. Beside busy processes a command took 25 s so, and takes one.
_SLEEPING = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none"
# Small enough to go beyond in a test.
MAX_MESSAGE_BYTES = 4 << 20
_START_SECONDS, _STOP_SECONDS = 60.0, 30.0
# What Erlang says of a port that is in use, and how often others are tried.
_TAKEN, _MOST_STARTS = "eaddrinuse", 3


class RabbitmqNode:
    """One node on 127.0.0.1, with a user and password of its own; nothing of it is left when it is stopped."""

    def __init__(self) -> None:
        self.password = secrets.token_urlsafe(18)
        self.port = self.tls_port = 0
        self._directory: Path | None = None
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"amqp://{_USER}:{self.password}@127.0.0.1:{self.port}/"

    @property
    def tls_url(self) -> str:
        return f"amqps://{_USER}:{self.password}@127.0.0.1:{self.tls_port}/"

    @property
    def authority(self) -> str:
        """The file of the authority that its certificate is of."""
        assert self._directory is not None
        return str(self._directory / "ca.pem")

    def __enter__(self) -> Self:
        if not (_PROGRAMS / "rabbitmq-server").exists():
            skip_or_fail("there is no RabbitMQ: install rabbitmq-server")
        for _ in range(_MOST_STARTS):
            said = self._start()
            if not said:
                return self
            self.__exit__()
            if _TAKEN not in said:
                break
        raise AssertionError(f"RabbitMQ does not start: {said}")

    def _start(self) -> str:
        """Start it on ports that are free now; what it said if it has ended, as when another has taken one since."""
        self._directory = Path(tempfile.mkdtemp(prefix="rabbitmq-", dir=shared_place()))
        try:
            self._environment = self._prepare(self._directory)
            # Ours to end, where one that the node starts by itself would stay behind.
            self._spawn("epmd", "-port", self._environment["ERL_EPMD_PORT"], "-address", "127.0.0.1")
            node = self._spawn(str(_PROGRAMS / "rabbitmq-server"))
            eventually(lambda: node.poll() is not None or self._answers(), seconds=_START_SECONDS)
            return "" if node.poll() is None else (self._directory / "out").read_text() or "nothing"
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exc_info: object) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self._processes.clear()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def control(self, *arguments: str) -> None:
        """Run rabbitmqctl on it."""
        command = [str(_PROGRAMS / "rabbitmqctl"), "--quiet", *arguments]
        subprocess.run(command, env=self._environment, check=True, stdout=subprocess.DEVNULL)

    @contextmanager
    def channel(self) -> Iterator[BlockingChannel]:
        """A channel of pika's blocking connection, to make queues and look into them."""
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        with closing(connection):
            yield connection.channel()

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        assert self._directory is not None
        with (self._directory / "out").open("ab") as out:
            process = subprocess.Popen(
                # Ends with the tests, also when these are killed.
                ["setpriv", "--pdeathsig", "TERM", *command],
                env=self._environment,
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _prepare(self, base: Path) -> dict[str, str]:
        self.port, self.tls_port, distribution_port, epmd_port = _free_ports(4)
        cookie = base / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)
        (base / "plugins").write_text("[].")
        certify(base, "node")
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
            "ssl_options.cacertfile": str(base / "ca.pem"),
            "ssl_options.certfile": str(base / "node.pem"),
            "ssl_options.keyfile": str(base / "node.key"),
            "default_user": _USER,
            "default_pass": self.password,
            "log.console": "false",
            "disk_free_limit.absolute": "50MB",
            "max_message_size": str(MAX_MESSAGE_BYTES),
        }
        (base / "rabbitmq.conf").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        return {
            "PATH": os.defpath,
            "LC_ALL": "C.UTF-8",
            "HOME": str(base),
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_MNESIA_BASE": str(base / "mnesia"),
            "RABBITMQ_LOG_BASE": str(base / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(base / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(base / "rabbitmq.conf"),
            "RABBITMQ_CONF_ENV_FILE": str(base / "none"),
            "RABBITMQ_PID_FILE": str(base / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": f"-kernel inet_dist_use_interface {{127,0,0,1}} {_SLEEPING}",
            "RABBITMQ_CTL_ERL_ARGS": _SLEEPING,
        }

    def _answers(self) -> bool:
        """Whether it speaks AMQP: the first byte of a method is 1."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                probe.settimeout(1)
                probe.sendall(b"AMQP\0\0\x09\x01")
                return probe.recv(1) == b"\x01"
        except OSError:
            return False


def start_rabbitmq() -> Iterator[RabbitmqNode]:
    with RabbitmqNode() as node:
        yield node


def _free_ports(count: int) -> list[int]:
    """So many different ports that nobody listens on now."""
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return list(ports)
