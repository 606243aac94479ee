"""Where a NATS server is and how to get in: a plain value, which travels to Spark's tasks and shows no secret."""

import ssl
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import SplitResult, unquote, urlsplit

from headwater.errors import SettingsError

_DEFAULT_PORT = 4222


@dataclass(frozen=True, slots=True)
class Server:
    """One of the URLs, taken apart."""

    host: str
    port: int
    is_tls: bool
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsAccess:
    """Servers of one NATS system, and what they are told about us.

    `url` is one or more of nats://host:port or tls://host:port, with commas between; they are tried in turn, and the rest of
    a cluster is not asked for. user:password@ or token@ in a URL is used unless `user` or `token` is given.
    """

    url: str = field(repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    # A file with the seed of an nkey (SU...), or with a user's JWT and seed as `nsc` writes it.
    nkey_file: str | None = None
    creds_file: str | None = None
    # Any of these asks for TLS; without `tls_ca` the system's authorities are trusted.
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    # The server greets only after the TLS handshake (`handshake_first` in its configuration).
    is_tls_first: bool = False
    # For an acknowledgement or an answer, for a connection, and for the server to come back.
    timeout: timedelta = timedelta(seconds=30)
    # Unacknowledged publishes per writer.
    max_pending: int = 4000
    name: str = "headwater"
    # Where answers come in; of interest where the account's permissions give each user a prefix of its own.
    inbox_prefix: str = "_INBOX"

    def __post_init__(self) -> None:
        if not self.servers:
            raise SettingsError("the NATS url names no server; write nats://host:4222")
        if sum(way is not None for way in (self.user, self.token, self.nkey_file, self.creds_file)) > 1:
            raise SettingsError("give one of user, token, nkey_file and creds_file for NATS, not several")
        if self.password is not None and self.user is None:
            raise SettingsError("a NATS password needs a user")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("tls_cert and tls_key for NATS go together; give both or neither")
        if self.timeout <= timedelta(0):
            raise SettingsError("the timeout for NATS must be more than 0 s")
        if self.max_pending < 1:
            raise SettingsError("max_pending for NATS must be at least 1")

    @property
    def servers(self) -> tuple[Server, ...]:
        return tuple(_parse_server(part.strip()) for part in self.url.split(",") if part.strip())

    @property
    def wants_tls(self) -> bool:
        """Whether the settings ask for TLS, whatever a single URL says."""
        return self.is_tls_first or any(given is not None for given in (self.tls_ca, self.tls_cert))

    def describe(self) -> str:
        """The servers' addresses, for messages."""
        return ", ".join(server.address for server in self.servers)

    def tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert is not None:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(name for name in (self.tls_ca, self.tls_cert, self.tls_key) if name is not None)
            raise SettingsError(f"cannot use the TLS files for NATS ({files}): {error}") from error
        return context


def _parse_server(text: str) -> Server:
    parts = urlsplit(text if "://" in text else f"nats://{text}")
    host, port = _place(parts)
    if parts.scheme not in ("nats", "tls") or not host:
        raise SettingsError(
            f"a NATS url must look like nats://host:4222 or tls://host:4222; that of {host or 'a server'} does not"
        )
    if parts.query or parts.fragment or parts.path not in ("", "/"):
        raise SettingsError(
            "a NATS url ends with the port, and has no parameters; write tls:// for TLS, / ? and # in a secret as %2F, %3F "
            "and %23, and give timeout, tls_ca and the like as settings of their own"
        )
    user = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    # A name without a password is a token; the URL has no other way to write one.
    token, user = (user, None) if password is None else (None, user)
    return Server(host, port, parts.scheme == "tls", user, password, token)


def _place(parts: SplitResult) -> tuple[str, int]:
    try:
        return parts.hostname or "", parts.port or _DEFAULT_PORT
    except ValueError:
        # The text itself may hold a password, so it is not repeated; nor is it chained as the cause.
        raise SettingsError("the port in a NATS url is no number from 1 to 65535") from None
