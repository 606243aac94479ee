"""The life of a server, shown with a shell script in its place."""

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from headwater.embedded import url_or_embedded
from headwater.embedded.claim import Claim
from headwater.embedded.process import Command, Process, wait_until
from headwater.embedded.server import EmbeddedServer, ServerSettings
from headwater.errors import HeadwaterError

SERVE = "echo ready >&2; exec sleep 1000"


class Script(EmbeddedServer):
    """Serves nothing, and is ready when it says so."""

    kind = "script"

    def __init__(self, script: str, settings: ServerSettings) -> None:
        super().__init__(settings)
        self.script = script
        self.ports: list[int] = []

    @property
    def url(self) -> str:
        return f"script://127.0.0.1:{self.port}"

    def _prepare(self, claim: Claim) -> None:
        pass

    def _command(self, claim: Claim, port: int) -> Command:
        self.ports.append(port)
        return Command(["/bin/sh", "-c", self.script, "script", str(port)])

    def _is_ready(self, claim: Claim, pid: int) -> bool:
        return "ready\n" in claim.log.read_text()


class Interrupted(Script):
    """A Ctrl-C comes while it starts."""

    def _is_ready(self, claim: Claim, pid: int) -> bool:
        if super()._is_ready(claim, pid):
            raise KeyboardInterrupt
        return False


@pytest.fixture
def settings(tmp_path):
    return ServerSettings(root=tmp_path, start_timeout=timedelta(seconds=10), stop_timeout=timedelta(seconds=5))


def is_alive(pid: int) -> bool:
    """Not one that ended and was not collected."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    try:
        process = Process.parse(boot + Path(f"/proc/{pid}/stat").read_text())
    except OSError:
        return False
    return process is not None and process.is_running()


def left_in(root: Path) -> list[Path]:
    return list((root / "servers").iterdir())


def test_a_server_runs_inside_the_block_and_leaves_nothing(settings, tmp_path):
    with Script(SERVE, settings) as server:
        pid = server.pid
        assert is_alive(pid)
        assert server.directory.is_dir()
    assert not is_alive(pid)
    assert left_in(tmp_path) == []


def test_a_started_server_is_not_started_twice(settings):
    with Script(SERVE, settings) as server:
        pid = server.pid
        assert server.start().pid == pid


def test_a_restarted_server_keeps_its_port_and_directory(settings):
    with Script(SERVE, settings) as server:
        before = server.pid, server.port, server.directory
        server.restart()
        assert server.pid != before[0]
        assert (server.port, server.directory) == before[1:]


def test_a_killed_server_comes_back_where_it_was(settings):
    with Script(SERVE, settings) as server:
        before = server.pid, server.port, server.directory
        server.kill()
        assert not is_alive(before[0])
        server.start()
        assert server.pid != before[0]
        assert (server.port, server.directory) == before[1:]


def test_a_server_that_died_by_itself_comes_back_too(settings):
    with Script(SERVE, settings) as server:
        pid = server.pid
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not is_alive(pid), 10)
        assert server.start().pid != pid


def test_a_port_that_was_taken_meanwhile_is_replaced_by_another(settings, monkeypatch):
    offered = iter([11, 12, 13])
    monkeypatch.setattr("headwater.embedded.server.free_port", lambda: next(offered))
    script = f'[ "$1" = 13 ] || {{ echo "bind: Address already in use" >&2; exit 1; }}; {SERVE}'
    with Script(script, settings) as server:
        assert server.port == 13
        assert server.ports == [11, 12, 13]


def test_a_machine_without_free_ports_is_an_error(settings, tmp_path):
    with pytest.raises(HeadwaterError, match="ports taken"):
        Script('echo "address already in use" >&2; exit 1', settings).start()
    assert left_in(tmp_path) == []


def test_a_server_that_ends_at_once_is_an_error_with_the_end_of_its_log(settings, tmp_path):
    with pytest.raises(HeadwaterError) as caught:
        Script("seq 1 1000 >&2; echo no disk >&2; exit 3", settings).start()
    assert "ended with exit code 3; its log ends with:\n982\n" in str(caught.value)
    assert str(caught.value).endswith("\n1000\nno disk")
    assert left_in(tmp_path) == []


def test_a_server_that_does_not_get_ready_is_an_error_and_ended(tmp_path):
    settings = ServerSettings(root=tmp_path, start_timeout=timedelta(milliseconds=200))
    server = Script(f"echo $$ >{tmp_path}/pid; echo waiting >&2; exec sleep 1000", settings)
    with pytest.raises(HeadwaterError, match=r"is not ready after 0\.2 s; its log ends with:\nwaiting"):
        server.start()
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert left_in(tmp_path) == []


def test_a_start_that_is_interrupted_leaves_nothing(settings, tmp_path):
    server = Interrupted(f"echo $$ >{tmp_path}/pid; {SERVE}", settings)
    with pytest.raises(KeyboardInterrupt):
        server.start()
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert left_in(tmp_path) == []


def test_a_stop_that_is_interrupted_stops_at_once(settings, tmp_path, monkeypatch):
    end, interrupts = Process.end, [KeyboardInterrupt]

    def interrupted_once(process: Process, grace_seconds: float) -> None:
        if interrupts:
            raise interrupts.pop()
        end(process, grace_seconds)

    server = Script(SERVE, settings).start()
    pid = server.pid
    monkeypatch.setattr(Process, "end", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        server.stop()
    assert not is_alive(pid)
    assert left_in(tmp_path) == []


def test_a_server_that_ignores_requests_to_end_is_ended_all_the_same(tmp_path):
    settings = ServerSettings(root=tmp_path, stop_timeout=timedelta(milliseconds=50))
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); import os; os.write(2, b'ready\\n'); signal.pause()"
    )
    with Script(f'exec {sys.executable} -c "{script}"', settings) as server:
        pid = server.pid
    assert not is_alive(pid)


def test_a_terminal_does_not_interrupt_the_server_before_us(settings):
    with Script(SERVE, settings) as server:
        assert os.getsid(server.pid) == server.pid
        assert os.getpgid(server.pid) != os.getpgid(0)


def test_a_configured_url_wins_over_the_embedded_server(settings, tmp_path):
    server = Script(SERVE, settings)
    with url_or_embedded("script://elsewhere", server) as url:
        assert url == "script://elsewhere"
        assert server.ports == []
    assert list(tmp_path.iterdir()) == []


def test_without_a_configured_url_the_embedded_server_runs_during_the_block(settings):
    server = Script(SERVE, settings)
    with url_or_embedded(None, server) as url:
        assert url == server.url
        pid = server.pid
        assert is_alive(pid)
    assert not is_alive(pid)
