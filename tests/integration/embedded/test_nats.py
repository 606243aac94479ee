import json
import os
import socket
import stat
from dataclasses import replace
from urllib.parse import urlsplit

import nats
import psutil
import pytest
from nats.js.api import StreamConfig

from headwater.embedded import EmbeddedNats, NatsSettings
from headwater.embedded.process import free_port
from headwater.errors import HeadwaterError, SettingsError
from tests.support.servers.owner_process import abandoned


@pytest.fixture
def settings(state):
    return NatsSettings(root=state, max_file_bytes=64 * 1024**2)


async def test_a_published_message_is_acknowledged_by_jetstream(settings):
    with EmbeddedNats(settings) as server:
        connection = await nats.connect(server.url, allow_reconnect=False)
        stream = connection.jetstream()
        await stream.add_stream(StreamConfig(name="events", subjects=["events.>"]))
        acknowledged = await stream.publish("events.one", b"hello")
        assert (acknowledged.stream, acknowledged.seq) == ("events", 1)
        assert (await stream.account_info()).limits.max_storage in (-1, 64 * 1024**2)
        await connection.close()


async def test_messages_survive_a_crash_on_the_same_port_and_a_restart(settings, state):
    lasting = replace(settings, directory=state / "lasting", is_synced=True)
    with EmbeddedNats(lasting) as server:
        connection = await nats.connect(server.url, allow_reconnect=False)
        await connection.jetstream().add_stream(StreamConfig(name="events", subjects=["events.>"]))
        await connection.jetstream().publish("events.one", b"hello")
        await connection.close()
        url = server.url
        server.kill()
        assert server.start().url == url
        assert await stored(url) == 1
    with EmbeddedNats(lasting) as server:
        assert await stored(server.url) == 1


async def stored(url: str) -> int:
    connection = await nats.connect(url, allow_reconnect=False)
    info = await connection.jetstream().stream_info("events")
    await connection.close()
    return info.state.messages


@pytest.mark.parametrize("password", [None, "wrong"])
def test_nobody_comes_in_without_the_password(settings, password):
    given = {} if password is None else {"user": "headwater", "pass": password}
    with EmbeddedNats(settings) as server:
        assert "Authorization Violation" in answer_to(server.port, given)
        right = urlsplit(server.url).password
        assert right
        assert answer_to(server.port, {"user": "headwater", "pass": right}).startswith("PONG")
        assert right not in repr(server)
        assert right not in (server.directory / "log").read_text()


def answer_to(port: int, given: dict[str, str]) -> str:
    """What the server answers to a greeting; a refused client is never closed by the driver, so it is not used here."""
    options = json.dumps({"verbose": False, "pedantic": False, "tls_required": False, **given})
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rwb") as stream:
        assert stream.readline().startswith(b"INFO ")
        stream.write(f"CONNECT {options}\r\nPING\r\n".encode())
        stream.flush()
        return stream.readline().decode()


def test_a_server_listens_on_this_machine_only_and_keeps_its_files_to_itself(settings):
    with EmbeddedNats(settings) as server:
        listening = [one for one in psutil.Process(server.pid).net_connections("all") if one.status == psutil.CONN_LISTEN]
        assert [one.laddr for one in listening] == [("127.0.0.1", server.port)]
        for name in ("nats.conf", "log"):
            assert stat.S_IMODE((server.directory / name).stat().st_mode) & 0o077 == 0


@pytest.mark.parametrize("is_synced", [True, False])
def test_acknowledged_messages_are_on_disk_if_asked_for(settings, is_synced):
    with EmbeddedNats(replace(settings, is_synced=is_synced)) as server:
        assert ('"sync_interval": "always"' in (server.directory / "nats.conf").read_text()) == is_synced


def test_a_server_whose_owner_was_killed_is_stopped_by_the_next_start(settings, state):
    owner = abandoned("nats", root=state)
    with EmbeddedNats(settings):
        assert not owner.is_server_running()
        assert not owner.directory.exists()


def test_a_port_taken_between_picking_and_binding_is_replaced(settings, monkeypatch):
    with EmbeddedNats(settings) as first:
        offered = iter([first.port, free_port()])
        monkeypatch.setattr("headwater.embedded.server.free_port", lambda: next(offered))
        with EmbeddedNats(settings) as second:
            assert second.port != first.port


def test_a_server_that_cannot_start_is_an_error_with_its_log(settings, state):
    directory = state / "lasting"
    directory.mkdir(mode=0o700)
    (directory / "jetstream").touch()
    with pytest.raises(HeadwaterError, match="its log ends with:"):
        EmbeddedNats(replace(settings, directory=directory)).start()
    assert list((state / "servers").iterdir()) == []


def test_without_the_wheel_the_error_says_what_to_install(settings, monkeypatch, tmp_path):
    monkeypatch.setattr("sysconfig.get_path", lambda _: os.fspath(tmp_path))
    with pytest.raises(SettingsError, match=r"install `headwater\[embedded\]`, or configure the URL"):
        EmbeddedNats(settings).start()
