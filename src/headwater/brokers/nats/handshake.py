"""Getting in: TCP, the server's greeting, TLS, who we are, and the server's answer to it."""

import json
import socket
import ssl
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from headwater.brokers.nats import protocol
from headwater.brokers.nats.access import NatsAccess, Server
from headwater.brokers.nats.nkeys import Login, read_credentials, read_nkey
from headwater.brokers.nats.protocol import Control, Inbound
from headwater.brokers.nats.refusal import translated
from headwater.brokers.nats.wire import Wire
from headwater.errors import BrokerError, BrokerUnavailable

_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server says about itself."""

    max_payload: int
    has_headers: bool
    has_jetstream: bool
    wants_tls: bool
    offers_tls: bool
    nonce: str | None = field(repr=False)

    @classmethod
    def parse(cls, text: bytes) -> "ServerInfo":
        info: dict[str, Any] = json.loads(text)
        return cls(
            max_payload=int(info["max_payload"]),
            has_headers=bool(info.get("headers")),
            has_jetstream=bool(info.get("jetstream")),
            wants_tls=bool(info.get("tls_required")),
            offers_tls=bool(info.get("tls_required") or info.get("tls_available")),
            nonce=info.get("nonce"),
        )


def open_wire(access: NatsAccess, server: Server) -> tuple[Wire, Inbound, ServerInfo]:
    """A connection on which we are logged in; raises `BrokerUnavailable` or `BrokerError`."""
    entrance = _Entrance(access, server)
    try:
        info = entrance.enter()
    except BaseException:
        entrance.socket.close()
        raise
    return Wire(entrance.socket, server.address), entrance.inbound, info


class _Entrance:
    """One attempt to get in, with one deadline for all its steps."""

    def __init__(self, access: NatsAccess, server: Server) -> None:
        self._access, self._server = access, server
        self._seconds = access.timeout.total_seconds()
        self._deadline = time.monotonic() + self._seconds
        self.inbound = Inbound()
        try:
            self.socket = socket.create_connection((server.host, server.port), self._seconds)
        except OSError as error:
            raise self._unreachable(error) from error
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def enter(self) -> ServerInfo:
        try:
            return self._greet()
        except ssl.SSLError as error:
            raise self._no_tls(error) from error
        except OSError as error:
            raise self._unreachable(error) from error

    def _greet(self) -> ServerInfo:
        if self._access.is_tls_first:
            self._start_tls()
        info = ServerInfo.parse(self._expect(b"INFO"))
        if not info.has_headers:
            raise BrokerError(f"the NATS server at {self._server.address} knows no headers; version 2.10 or later is needed")
        if (info.wants_tls or self._wants_tls()) and not self._access.is_tls_first:
            if not info.offers_tls:
                raise BrokerError(
                    f"the NATS server at {self._server.address} offers no TLS; configure it there, or connect with "
                    "nats:// and without TLS settings"
                )
            self._start_tls()
        self.socket.sendall(protocol.connect(self._introduction(info)) + b"PING\r\n")
        self._expect(b"PONG")
        return info

    def _wants_tls(self) -> bool:
        return self._server.is_tls or self._access.wants_tls

    def _start_tls(self) -> None:
        self.socket.settimeout(self._left())
        self.socket = self._access.tls_context().wrap_socket(self.socket, server_hostname=self._server.host)

    def _introduction(self, info: ServerInfo) -> dict[str, object]:
        return {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
            "lang": "python",
            "version": version("headwater"),
            "name": self._access.name,
            "tls_required": isinstance(self.socket, ssl.SSLSocket),
            **_credentials(self._access, self._server, info.nonce),
        }

    def _expect(self, verb: bytes) -> bytes:
        """Read until that line; an error before it is raised."""
        while True:
            match self.inbound.take():
                case Control(b"-ERR", text):
                    raise translated(text, self._access, self._server.address)
                case Control(found, text) if found == verb:
                    return text
                case None:
                    self._read()

    def _read(self) -> None:
        self.socket.settimeout(self._left())
        data = self.socket.recv(_READ_BYTES)
        if not data:
            raise BrokerUnavailable(
                f"the NATS server at {self._server.address} hung up before it let us in{self._tls_hint()}"
            )
        self.inbound.add(data)

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _unreachable(self, error: OSError) -> BrokerUnavailable:
        if isinstance(error, TimeoutError):
            reason = f"no answer within {self._seconds:g} s{self._tls_hint()}"
        else:
            reason = error.strerror or str(error)
        return BrokerUnavailable(f"cannot reach NATS at {self._server.address}: {reason}; check that the server runs")

    def _no_tls(self, error: ssl.SSLError) -> BrokerError:
        if isinstance(error, ssl.SSLCertVerificationError):
            reason, remedy = (
                error.verify_message,
                "give the authority that signed it as tls_ca, and a host name that it is for",
            )
        else:
            reason, remedy = error.reason or str(error), "check tls_ca, tls_cert and tls_key, and what the server asks for"
        return BrokerError(f"no TLS with the NATS server at {self._server.address}: {reason}; {remedy}")

    def _tls_hint(self) -> str:
        if self._access.is_tls_first:
            return "; does it begin with TLS (handshake_first)?"
        return "; if it begins with TLS (handshake_first), say so with is_tls_first" if self._wants_tls() else ""


def _credentials(access: NatsAccess, server: Server, nonce: str | None) -> dict[str, object]:
    """What of the settings, or else of the URL, tells the server who we are."""
    if login := read_login(access):
        signature = {"sig": login.sign(nonce)} if nonce is not None else {}
        return {"jwt": login.jwt, **signature} if login.jwt is not None else {"nkey": login.public_key, **signature}
    if access.token is not None:
        return {"auth_token": access.token}
    if access.user is not None:
        return {"user": access.user, "pass": access.password or ""}
    if server.token is not None:
        return {"auth_token": server.token}
    return {"user": server.user, "pass": server.password or ""} if server.user is not None else {}


def read_login(access: NatsAccess) -> Login | None:
    """The key that the settings name, if they name one."""
    if access.creds_file is not None:
        return read_credentials(access.creds_file)
    return read_nkey(access.nkey_file) if access.nkey_file is not None else None
