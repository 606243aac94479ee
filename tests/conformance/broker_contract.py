"""What the suite of brokers asks of each: a server, a broker that writes to it, and a look at what is stored.

A target is one class in a file of its own, `broker_targets/<name>.py`, under the name `TARGET`; the suite finds it there.
"""

import socket
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa

from headwater.brokers.base import Broker
from headwater.model import MESSAGE, Messages
from tests.support.servers.tcp_proxy import Proxy

SOURCE = "urn:headwater:tests"
CREATED_AT = datetime(2026, 11, 16, 12, 30, 1, 123456, UTC)
CREATED_AT_TEXT = "2026-11-16T12:30:01.123456Z"


@dataclass(frozen=True)
class Kept:
    """A message as the broker has it.

    `headers` are the user's own, `event` the attributes of the CloudEvent without their prefix and decoded; `key` is None
    where a message has none.
    """

    id: str
    key: str | None
    type: str
    payload: bytes
    content_type: str
    headers: Mapping[str, str] = field(default_factory=dict)
    event: Mapping[str, str] = field(default_factory=dict)


class Door(Proxy):
    """A proxy that is cut by what goes through it, and that tells how many it has turned away."""

    def __init__(self, url: str) -> None:
        self.turned_away, self._is_closed = 0, False
        super().__init__(url)
        # Everything is cut once these bytes have come through to the server, with whatever came along with them.
        self.cut_after: bytes | None = None

    # The proxy asks once for each connection.
    @property
    def refuse(self) -> bool:
        self.turned_away += self._is_closed
        return self._is_closed

    @refuse.setter
    def refuse(self, is_closed: bool) -> None:
        self._is_closed = is_closed

    def _pump(self, source: socket.socket, target: socket.socket, frozen: Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
                if self.cut_after is not None and self.cut_after in data:
                    self.cut_after = None
                    self.cut()
            target.shutdown(socket.SHUT_RDWR)


class BrokerTarget(ABC):
    """A broker under test, for one test; `server` is what `serving` gave, and lives as long as the run.

    Every broker of a target reaches the server through its `door`, a proxy that can be cut and closed. A target whose client
    cannot be led through one has `is_cut_off` False, and the tests of outages are skipped for it.
    """

    name: ClassVar[str]
    # A payload that the broker takes, and one that it never will.
    large_bytes: ClassVar[int] = 500_000
    oversized_bytes: ClassVar[int]
    # The longest key, in characters.
    longest_key: ClassVar[int] = 1000
    # Whether it has logins, refuses what has nowhere to go, and can be cut off.
    has_logins: ClassVar[bool] = True
    # Whether a login can be told without a place to write to.
    checks_logins: ClassVar[bool] = True
    has_unroutable: ClassVar[bool] = True
    is_cut_off: ClassVar[bool] = True
    # Whether it leaves out what it has stored already.
    knows_duplicates: ClassVar[bool] = False
    door: Door

    def __init__(self, server: Any) -> None:
        self.server = server

    @classmethod
    @abstractmethod
    def serving(cls) -> Iterator[Any]:
        """Start the server, yield what targets need of it, and stop it."""

    @property
    @abstractmethod
    def secret(self) -> str:
        """What must not show up anywhere: the password or key in the settings."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """Around a test; the door is open meanwhile."""
        with Door(self.server.url) as self.door:
            yield

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Meanwhile, new brokers find somebody who takes connections and never says a word."""
        open_door, url = self.door, urlsplit(self.server.url)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            with Door(url._replace(netloc=url.netloc.replace(f":{url.port}", f":{port}")).geturl()) as self.door:
                yield
        self.door = open_door

    @abstractmethod
    def broker(self, timeout: timedelta, *, secret: str | None = None) -> Broker:
        """A broker with `SOURCE` as the source of events, through the door; with another secret, one that is not let in."""

    @abstractmethod
    def destination(self) -> str:
        """A topic that nobody else has; what is published to it is stored."""

    def nowhere(self) -> str:
        """A topic that nothing stores."""
        return f"nowhere-{uuid.uuid4().hex}"

    @abstractmethod
    def stored(self, topic: str) -> list[Kept]:
        """All that is stored of a topic, in order; it may be taken out by this."""

    @abstractmethod
    def descriptions(self, broker: Broker) -> Sequence[str]:
        """What settings and broker say about themselves: repr and the like."""


def all_targets() -> dict[str, type[BrokerTarget]]:
    """The targets by name, one of each file."""
    files = sorted((Path(__file__).parent / "broker_targets").glob("*.py"))
    return {file.stem: import_module(f"tests.conformance.broker_targets.{file.stem}").TARGET for file in files}


def message(topic: str, payload: bytes = b"{}", **values: object) -> dict[str, Any]:
    """One message by its columns, with an id of its own unless one is given."""
    return {
        "id": str(uuid.uuid4()),
        "topic": topic,
        "type": "OrderPlaced",
        "key": None,
        "payload": payload,
        "content_type": "application/json",
        "headers": None,
        "created_at": CREATED_AT,
        **values,
    }


def messages(*rows: Mapping[str, object]) -> Messages:
    prepared = [{**row, "headers": _pairs(row["headers"])} for row in rows]
    return Messages(pa.RecordBatch.from_pylist(prepared, schema=MESSAGE))


def numbered(topic: str, count: int, start: int = 0, **values: object) -> list[dict[str, Any]]:
    """Messages whose payloads tell their place."""
    return [message(topic, b"%06d" % number, **values) for number in range(start, start + count)]


def _pairs(headers: object) -> list[tuple[str, str]] | None:
    return list(headers.items()) if isinstance(headers, Mapping) else None
