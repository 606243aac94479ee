"""Where a RabbitMQ is, how to get in, and where messages go: a plain value, which travels to Spark's tasks."""

import ssl
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import SplitResult, unquote, urlsplit

from headwater.brokers.base import check_template
from headwater.errors import SettingsError

_PORTS = {"amqp": 5672, "amqps": 5671}
# The width of a short string in AMQP 0.9.1.
SHORT_BYTES = 255


@dataclass(frozen=True, slots=True)
class Server:
    """The URL, taken apart."""

    host: str
    port: int
    is_tls: bool
    virtual_host: str
    user: str = field(repr=False)
    password: str = field(repr=False)

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RabbitmqAccess:
    """A RabbitMQ and how messages are published to it.

    `url` is amqp://user:password@host:5672/vhost, or amqps:// for TLS; without a path it is the virtual host `/`. Each
    message goes to `exchange` under a routing key made of `routing_key`, where {topic} and {type} stand for those of the
    message. The exchange without a name takes the routing key for the name of a queue.
    """

    url: str = field(repr=False)
    exchange: str = ""
    routing_key: str = "{topic}"
    # What no queue takes is refused as unroutable; off, RabbitMQ drops it and says nothing.
    mandatory: bool = True
    # Make a durable quorum queue for each new routing key, of the exchange without a name only. For a first try: who has
    # consumers declares the queues there, with the limits and dead letters that they want.
    declare: bool = False
    # `source` of the CloudEvents.
    source: str = "headwater"
    # For a confirm, for a connection, and for the broker to come back.
    timeout: timedelta = timedelta(seconds=30)
    # A connection on which nothing comes for twice as long is dead.
    heartbeat: timedelta = timedelta(seconds=30)
    # Unconfirmed publishes.
    max_pending: int = 5000
    # Larger payloads are refused: 128 MiB is the most that any version takes, and 16 MiB the default of RabbitMQ 4. What
    # the broker tells of a smaller limit is obeyed, too.
    max_bytes: int = 128 << 20
    # Without `tls_ca` the system's authorities are trusted. They need amqps://.
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    name: str = "headwater"

    def __post_init__(self) -> None:
        server = self.server
        check_template("routing_key for RabbitMQ", self.routing_key)
        if len(self.exchange.encode()) > SHORT_BYTES:
            raise SettingsError(f"the exchange for RabbitMQ has a name of more than {SHORT_BYTES} bytes")
        if self.declare and self.exchange:
            raise SettingsError(
                f"declare makes queues for the exchange without a name only; declare those of {self.exchange!r} and their "
                "bindings yourself, or leave exchange out"
            )
        if not self.source:
            raise SettingsError("the source of CloudEvents is empty; name the application, as in https://example.com/shop")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("tls_cert and tls_key for RabbitMQ go together; give both or neither")
        if not server.is_tls and (self.tls_ca or self.tls_cert):
            raise SettingsError("tls_ca, tls_cert and tls_key for RabbitMQ need a url with amqps://")
        if self.timeout <= timedelta(0):
            raise SettingsError("the timeout for RabbitMQ must be more than 0 s")
        if self.heartbeat < timedelta(seconds=1):
            raise SettingsError("the heartbeat for RabbitMQ must be at least 1 s")
        if min(self.max_pending, self.max_bytes) < 1:
            raise SettingsError("max_pending and max_bytes for RabbitMQ must be at least 1")

    @property
    def server(self) -> Server:
        return _parse(self.url)

    def describe(self) -> str:
        """Where it is, for messages."""
        return self.server.address

    def tls_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert is not None:
                context.load_cert_chain(self.tls_cert, self.tls_key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(name for name in (self.tls_ca, self.tls_cert, self.tls_key) if name is not None)
            raise SettingsError(f"cannot use the TLS files for RabbitMQ ({files}): {error}") from error
        return context


def _parse(url: str) -> Server:
    parts = urlsplit(url)
    host, port = _place(parts)
    if parts.scheme not in _PORTS or not host:
        raise SettingsError("a RabbitMQ url must look like amqp://user:password@host:5672/vhost, or amqps:// for TLS")
    if parts.query or parts.fragment:
        raise SettingsError(
            "a RabbitMQ url ends with the virtual host, and has no parameters; write amqps:// for TLS, ? and # in a name or "
            "password as %3F and %23, and give timeout, tls_ca and the like as settings of their own"
        )
    if "/" in parts.path[1:]:
        raise SettingsError("a RabbitMQ url ends with the virtual host; write / in its name as %2F")
    # The login that a new RabbitMQ has, for connections from the same machine only.
    user = "guest" if parts.username is None else unquote(parts.username)
    password = "guest" if parts.username is None else unquote(parts.password or "")
    return Server(host, port, parts.scheme == "amqps", unquote(parts.path[1:]) or "/", user, password)


def _place(parts: SplitResult) -> tuple[str, int]:
    try:
        return parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError:
        # The text itself may hold a password, so it is not repeated; nor is it chained as the cause.
        raise SettingsError("the port in a RabbitMQ url is no number from 1 to 65535") from None
