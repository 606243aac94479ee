"""A blocking connection to NATS, for bulk work: requests, and the raw stream for those who publish and read in bulk.

One thread owns a link. It answers the server's PINGs whenever it is used; one that was left alone for minutes may be closed
by the server, and opens again at the next request.
"""

import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from re import Pattern
from typing import Self

from headwater.brokers.nats import protocol
from headwater.brokers.nats.access import NatsAccess, Server
from headwater.brokers.nats.handshake import ServerInfo, open_wire
from headwater.brokers.nats.protocol import Control, Inbound, Message
from headwater.brokers.nats.refusal import translated
from headwater.brokers.nats.wire import Wire
from headwater.errors import BrokerError, BrokerUnavailable

# The subscription that takes all answers.
INBOX_SID = 1


class Link:
    """One connection to one of the servers; the first that lets us in, in the order of the URLs."""

    def __init__(self, access: NatsAccess) -> None:
        self._access = access
        self._seconds = access.timeout.total_seconds()
        self._asked = 0
        self.inbound = Inbound()
        self._open()

    @property
    def max_payload(self) -> int:
        return self.info.max_payload

    @property
    def where(self) -> str:
        """The server's address, for messages."""
        return self._server.address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._wire.close()

    def request(self, subject: str, payload: bytes) -> bytes:
        """Ask and wait for the answer; nobody listening, and no answer in time, is `BrokerUnavailable`."""
        answer = self.ask(subject, payload)
        if answer is None:
            raise BrokerUnavailable(f"nobody answers requests on {subject!r} at NATS {self.where}")
        return answer.payload

    def ask(self, subject: str, payload: bytes) -> Message | None:
        """The answer; None when the server says that nobody listens. Other messages that come are kept for their taker."""
        self.revive()
        self._asked += 1
        reply = f"{self.inbox}.q{self._asked}"
        self.send(protocol.publish(subject, reply, payload))
        deadline = time.monotonic() + self._seconds
        others: list[Message] = []
        answer: Message | None = None
        while answer is None:
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"no answer from NATS at {self.where} on {subject!r} within {self._seconds:g} s")
            self.pump(deadline - time.monotonic())
            for message in self.messages():
                if message.subject == reply.encode():
                    answer = message
                elif message.sid != INBOX_SID:
                    others.append(message)
        self._aside.extend(others)
        return None if answer.status is not None and answer.status.code == 503 else answer

    def subscribe_inbox(self, sid: int) -> str:
        """A subject of our own besides that of the answers; a link that has one does not open again by itself."""
        self._is_subscribed = True
        inbox = self._new_inbox()
        self.send(protocol.subscribe(inbox, sid))
        return inbox

    def send(self, data: bytes | memoryview) -> None:
        """Put into the line of what goes out; `pump` sends it."""
        self._wire.queue(data)

    @property
    def waiting_bytes(self) -> int:
        """How much of it has not gone out."""
        return self._wire.waiting_bytes

    def pump(self, seconds: float) -> bool:
        """Send and receive what goes without waiting, or wait until something does; whether anything came."""
        data = self._wire.exchange(seconds)
        if data:
            self.inbound.add(data)
        return bool(data)

    def take_run(self, pattern: Pattern[bytes]) -> bytes:
        """The front of what came in, as far as it matches; the rest is for `messages`."""
        return b"" if self._aside else self.inbound.take_run(pattern)

    def peek(self) -> tuple[bytes, int]:
        """What came in and where it begins, for those who parse in bulk and `skip_to` where they ended."""
        return (b"", 0) if self._aside else self.inbound.peek()

    def skip_to(self, at: int) -> None:
        if not self._aside:
            self.inbound.skip_to(at)

    def messages(self) -> Iterator[Message]:
        """Messages that have come in; lines between them are answered, an error among them is raised."""
        while True:
            match self._aside.popleft() if self._aside else self.inbound.take():
                case None:
                    return
                case Message() as message:
                    yield message
                case Control(b"PING", _):
                    self.send(b"PONG\r\n")
                case Control(b"-ERR", text):
                    raise translated(text, self._access, self.where)
                case Control(b"INFO", text):
                    self.info = ServerInfo.parse(text)

    def _open(self) -> None:
        self._server, self._wire, self.inbound, self.info = _first_open(self._access)
        self._aside: deque[Message] = deque()
        self.inbox = self._new_inbox()
        self._is_subscribed = False
        self.send(protocol.subscribe(f"{self.inbox}.*", INBOX_SID))

    def _new_inbox(self) -> str:
        # Unguessable, so that nobody else's answers are taken for ours.
        return f"{self._access.inbox_prefix}.{secrets.token_hex(11)}"

    def revive(self) -> None:
        """Open again when the server has hung up meanwhile; nothing of ours is under way then."""
        if self._is_subscribed:
            return
        try:
            while self.pump(0):
                pass
        except BrokerUnavailable:
            self.close()
            self._open()


def _first_open(access: NatsAccess) -> tuple[Server, Wire, Inbound, ServerInfo]:
    """The first server that lets us in; a refusal says more than a server that is down, and is what is raised."""
    errors: list[BrokerError] = []
    for server in access.servers:
        try:
            return server, *open_wire(access, server)
        except BrokerError as error:
            errors.append(error)
    refusals = [error for error in errors if not error.retryable]
    raise (refusals or errors)[0] if len(errors) == 1 or refusals else _none_reachable(errors)


def _none_reachable(errors: Sequence[BrokerError]) -> BrokerUnavailable:
    return BrokerUnavailable("no NATS server lets us in: " + "; ".join(str(error) for error in errors))
