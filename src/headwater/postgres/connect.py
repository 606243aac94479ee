"""Connections by libpq URI or key-value string, with `PG*` variables for what is not given, and libpq's errors translated.

An empty string means: everything from the environment. No password ever reaches a log or an error: a server is named by
`describe`, and libpq's complaints about a malformed string, which repeat that string, are not passed on.
"""

import asyncio
import logging
import re
import select
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

import psycopg
from psycopg import pq
from psycopg.abc import PQGen
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.waiting import Ready, Wait

from headwater.errors import ConnectionLost, HeadwaterError, SettingsError, SourceError
from headwater.model import Lsn

_log = logging.getLogger(__name__)

Connection: TypeAlias = psycopg.Connection[Any]
AsyncConnection: TypeAlias = psycopg.AsyncConnection[Any]

# A server that does not answer is given up after this many seconds, so that a reconnect loop can say so.
_CONNECT_SECONDS = 10

# To bring to its end what nobody wants any more. A server that is there answers sooner, and no other has a connection of it.
_GIVE_UP_SECONDS = 1.0

# Parts of an answer that are read in one turn of the event loop: some megabytes, so that others have their turn too.
_READS = 64

# Connection failures carry no SQLSTATE, so the server's words are all there is to tell a wrong password from a server
# that is starting up. What matches none of these is taken for passing trouble, which a retry may cure.
_REFUSALS = (
    (re.compile(r"password authentication failed|no password supplied"), "check user and password (PGPASSWORD, ~/.pgpass)"),
    (re.compile(r"no pg_hba\.conf entry|pg_hba\.conf rejects"), "allow this client in the server's pg_hba.conf"),
    (re.compile(r"database .* does not exist"), "create the database or correct its name"),
    (re.compile(r"role .* does not exist|is not permitted to log in"), "create the role with LOGIN or correct its name"),
    (
        re.compile(r"must be superuser or replication role|permission denied to start WAL sender"),
        "run `alter role {user} replication` as a superuser",
    ),
    (re.compile(r"does not support SSL|SSL .* required|certificate verify failed"), "correct sslmode and sslrootcert"),
)


class _AsyncConnection(psycopg.AsyncConnection[Any]):
    async def wait(self, gen: PQGen[Any], *args: Any, **options: Any) -> Any:
        """As psycopg has it, but that nothing hides a cancellation, and that is not waited for what is there.

        It waits for the server once more when it is cancelled; if the connection is lost then, that is what it raises, and
        one who goes on after a lost connection would never end.
        """
        task = cast("asyncio.Task[object]", asyncio.current_task())
        before = task.cancelling()
        try:
            return await super().wait(_eager(gen, self.pgconn.socket), *args, **options)
        except psycopg.Error as exc:
            if task.cancelling() > before:
                raise asyncio.CancelledError from exc
            raise


def _eager(gen: PQGen[Any], fileno: int) -> PQGen[Any]:
    """A generator of psycopg that goes on at once where its socket has something to read.

    Of a large answer the next part mostly has come while one was dealt with, and a turn of the event loop costs more than
    that part.
    """
    socket = select.poll()
    socket.register(fileno, select.POLLIN)
    reads = 0
    try:
        wanted = next(gen)
        while True:
            if wanted == Wait.R and reads < _READS and socket.poll(0):
                reads += 1
                wanted = gen.send(Ready.R)
            else:
                reads = 0
                wanted = gen.send((yield wanted))
    except StopIteration as end:
        return end.value


class _LsnLoader(Loader):
    def load(self, data: Buffer) -> Lsn:
        return Lsn.parse(bytes(data).decode())


class _LsnDumper(Dumper):
    oid = psycopg.adapters.types["pg_lsn"].oid

    def dump(self, obj: Lsn) -> bytes:
        return str(obj).encode()


def connect_sync(url: str, **parameters: str) -> Connection:
    """Open a connection in autocommit mode."""
    conninfo = complete(url, **parameters)
    with translated(conninfo):
        connection = psycopg.connect(conninfo, autocommit=True)
    _adapt(connection)
    _log_connected(connection, conninfo)
    return connection


async def connect(url: str, **parameters: str) -> AsyncConnection:
    """Open an async connection in autocommit mode."""
    conninfo = complete(url, **parameters)
    with translated(conninfo):
        connection = await _through(_AsyncConnection.connect(conninfo, autocommit=True))
    _adapt(connection)
    _log_connected(connection, conninfo)
    return connection


async def _through(connecting: Coroutine[Any, Any, AsyncConnection]) -> AsyncConnection:
    """Brought to its end also for one who is cancelled, and closed then.

    psycopg would leave the connection half open until it is collected. The server would wait for its password, and whoever
    drops a database for that.
    """
    task = asyncio.create_task(connecting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_close_unwanted)
        # The event loop may end next, and with it what would close it.
        await asyncio.wait([task], timeout=_GIVE_UP_SECONDS)
        raise


def _close_unwanted(task: "asyncio.Task[AsyncConnection]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().pgconn.finish()


def complete(url: str, **parameters: str) -> str:
    """The connection string with Headwater's defaults for what it leaves open; raises SettingsError if it is malformed."""
    if not isinstance(url, str):
        raise SettingsError(f"a database is named by a connection string, not by a {type(url).__name__}; give its URL")
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise _malformed() from None
    if _is_torn(given):
        raise _malformed()
    environment = _environment()
    defaults = {"application_name": "headwater", "connect_timeout": str(_CONNECT_SECONDS)}
    chosen = {key: value for key, value in defaults.items() if key not in environment}
    chosen.update({key: str(value) for key, value in given.items()}, client_encoding="UTF8", **parameters)
    return make_conninfo("", **chosen)


def _malformed() -> SettingsError:
    return SettingsError(
        "the PostgreSQL connection string is malformed; write it as postgresql://user@host:5432/database or "
        "host=... dbname=..., and in the former percent-encode what is special in a password (@ as %40, / as %2F, # as %23)"
    )


def _is_torn(given: Mapping[str, object]) -> bool:
    """Whether a password with special characters has made its way into other parts, from where it would be shown."""
    ports = str(given.get("port") or "").split(",")
    return any(port and not port.isdecimal() for port in ports) or any(
        "@" in str(given.get(k) or "") for k in ("host", "dbname")
    )


def describe(url: str) -> str:
    """The server that a connection string names, as `user@host:port/database`, without any secret.

    Several hosts are listed as libpq pairs them with ports: `user@one:5432,two:5433/database`.
    """
    known = _environment() | {key: str(value) for key, value in conninfo_to_dict(url).items()}
    user = known.get("user", "")
    hosts = (known.get("host") or known.get("hostaddr") or "localhost").split(",")
    ports = (known.get("port") or "5432").split(",")
    # One port is meant for all hosts.
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = ",".join(f"{host or 'localhost'}:{port or '5432'}" for host, port in zip(hosts, ports, strict=False))
    return f"{user}@{places}/{known.get('dbname', user)}"


@contextmanager
def translated(url: str) -> Iterator[None]:
    """Turn what psycopg raises about a connection into our errors, naming the server and the remedy."""
    try:
        yield
    except (psycopg.OperationalError, psycopg.errors.IdleInTransactionSessionTimeout) as exc:
        raise translate(exc, url) from exc


def translate(error: psycopg.Error, url: str) -> HeadwaterError:
    """Our error for one that psycopg raised on a connection to `url`."""
    text, server = _said(error), describe(url)
    for pattern, remedy in _REFUSALS:
        if pattern.search(text):
            user = server.split("@")[0]
            return SourceError(f"PostgreSQL at {server} refused the connection: {text}; {remedy.format(user=user)}")
    return ConnectionLost(f"no connection to PostgreSQL at {server}: {text}; check that the server runs and is reachable")


def is_passing(error: psycopg.Error) -> bool:
    """Whether an error is about the connection, or what the server is short of at the moment: class 08, 53, 57P or none."""
    state = error.sqlstate
    return isinstance(error, psycopg.OperationalError) and (state is None or state.startswith(("08", "53", "57P")))


def _environment() -> dict[str, str]:
    """What libpq takes from the environment, or knows by itself, for what a connection string leaves open."""
    return {item.keyword.decode(): item.val.decode() for item in pq.Conninfo.get_defaults() if item.val}


def _said(error: psycopg.Error) -> str:
    """What the server, or else libpq, gave as the reason: its last FATAL line, or the first line there is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    fatal = [line.split("FATAL:")[1].strip() for line in lines if "FATAL:" in line]
    return (fatal[-1:] or lines or [type(error).__name__])[0]


def _log_connected(connection: psycopg.BaseConnection[Any], conninfo: str) -> None:
    facts = {"server": describe(conninfo), "backend_pid": connection.info.backend_pid}
    _log.debug("connected to PostgreSQL", extra={**facts, "server_version": connection.info.server_version})


def _adapt(connection: psycopg.BaseConnection[Any]) -> None:
    connection.adapters.register_loader("pg_lsn", _LsnLoader)
    connection.adapters.register_dumper(Lsn, _LsnDumper)
