"""Where a mail server is, and how to get in: a plain value, checked when it is made."""

import ssl
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final

from headwater.comms.address import check_line
from headwater.errors import SettingsError
from headwater.model.settings import find_strangers, find_too_small


class Tls(StrEnum):
    """No encryption; a plain connection that is encrypted before anything is said; or encrypted from its beginning."""

    NONE = "none"
    STARTTLS = "starttls"
    TLS = "tls"


_PORTS: Final = {Tls.NONE: 25, Tls.STARTTLS: 587, Tls.TLS: 465}


@dataclass(frozen=True, slots=True, kw_only=True)
class SmtpSettings:
    """A mail server. Without `port` it is 587, 465 with `tls`, and 25 without encryption."""

    host: str
    port: int = 0
    tls: Tls = Tls.STARTTLS
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    # For a connection, and for each answer.
    timeout: timedelta = timedelta(seconds=30)
    # Servers hang up on those who say nothing, many after a minute or less.
    idle: timedelta = timedelta(seconds=20)
    # Some servers take only so many messages of a connection.
    messages_per_connection: int = 100
    # The name that we give ourselves; that of the machine, if it is left out.
    hello: str | None = None
    tls_ca: str | None = None

    def __post_init__(self) -> None:
        faults = list(find_strangers(self, "the mail server")) or [
            *find_too_small(self, "the mail server", {"port": 0}),
            *self._faults(),
        ]
        if faults:
            raise SettingsError(*faults)
        if self.port == 0:
            object.__setattr__(self, "port", _PORTS[self.tls])

    def _faults(self) -> list[str]:
        faults = []
        if not self.host or self.host.split() != [self.host]:
            faults.append("the host of the mail server is no name; write it as smtp.example.com, and its port apart")
        if self.port > 65535:
            faults.append(f"port of the mail server is {self.port}; give one up to 65535")
        if (self.user is None) != (self.password is None):
            faults.append("user and password of the mail server go together; give both or neither")
        if self.tls is Tls.NONE and self.tls_ca is not None:
            faults.append('tls_ca of the mail server needs tls = "starttls" or tls = "tls"')
        if self.tls is Tls.NONE and self.password is not None and self.host not in ("localhost", "127.0.0.1", "::1"):
            faults.append('a password would go to the mail server in the open; give tls = "starttls" or tls = "tls"')
        if self.hello is not None:
            faults += _hello_faults(self.hello)
        return faults

    def describe(self) -> str:
        """Where it is, for messages."""
        return f"smtp {self.host}:{self.port}"

    def tls_context(self) -> ssl.SSLContext | None:
        """None without encryption; raises SettingsError for a file that is none."""
        if self.tls is Tls.NONE:
            return None
        try:
            return ssl.create_default_context(cafile=self.tls_ca)
        except (OSError, ssl.SSLError) as exc:
            raise SettingsError(f"cannot use {self.tls_ca} as tls_ca of the mail server: {exc}; name a file in PEM") from exc


def _hello_faults(hello: str) -> list[str]:
    try:
        check_line(hello, 255)
    except ValueError as exc:
        return [f"hello of the mail server {exc}"]
    return [] if hello.isascii() and hello.split() == [hello] else ["hello of the mail server is no name of a host"]
