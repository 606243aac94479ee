"""One ephemeral pull consumer on one link: asked for messages ahead of time, read in bulk, told apart from what it says."""

import json
import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from headwater.brokers.nats import protocol
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.protocol import Status
from headwater.brokers.nats.streams import API, call
from headwater.errors import BrokerUnavailable

_SID = 2
# Messages asked for ahead of what was taken. The server drops a client that lets 64 MiB pile up, so each request is bounded
# in bytes too; a second one is sent when half of the messages have come.
_AHEAD_MESSAGES, _AHEAD_BYTES = 20_000, 16 << 20
_EXPIRES_SECONDS = 30
# The server removes a consumer that nobody has asked for so long.
_INACTIVE_SECONDS = 300
# Reads in one go, so that what is done once per go is done for many messages.
_READS = 4
_NANOSECONDS = 1_000_000_000
# Answers that are no messages: the server is well and has nothing to send, or a request has ended as requests do.
_HEARTBEAT, _EXPIRED = 100, 408
_COMPLETED, _TOO_LARGE = "batch completed", "message size exceeds maxbytes"


class Received(NamedTuple):
    """A message as it is stored; `stored_at` in nanoseconds since 1970, `headers` with its first and its empty last line."""

    subject: str
    sequence: int
    stored_at: int
    headers: bytes | None
    payload: bytes


class Consumer:
    """Acknowledges nothing, so its place is lost with it: whoever reads keeps the sequences."""

    def __init__(self, link: Link, stream: str, subjects: Sequence[str], start_seq: int, heartbeat_seconds: float) -> None:
        self._link, self._stream = link, stream
        self.name = f"headwater-{secrets.token_hex(8)}"
        self._due = 0
        self._heartbeat = int(heartbeat_seconds * _NANOSECONDS)
        self._max_bytes = max(_AHEAD_BYTES, 2 * link.max_payload)
        self._names: dict[bytes, str] = {}
        # The sequence up to which it has looked for messages, as far as it has said so.
        self.looked = 0
        # The reply subject of a message tells its place: stream, consumer, deliveries, sequence, sequence in the consumer,
        # time, messages to come; before them the domain and the account, if there is a domain.
        reply = rb"\$JS\.ACK\.(?:[^. ]+\.[^. ]+\.)??%b\.%b\.\d+\.(\d+)\.\d+\.(\d+)\.\d+[^ ]*" % (
            re.escape(stream.encode()),
            re.escape(self.name.encode()),
        )
        self._reply = re.compile(reply)
        self._line = re.compile(rb"H?MSG ([^ ]+) %d %b (?:(\d+) )?(\d+)\r\n" % (_SID, reply))
        call(link, f"CONSUMER.CREATE.{stream}.{self.name}", self._config(subjects, start_seq))
        self._inbox = link.subscribe_inbox(_SID)

    def receive(self, taken_ahead: int, seconds: float) -> list[Received] | None:
        """Messages that came, and more asked for unless too many wait to be taken; None when nothing at all came.

        Raises `BrokerUnavailable` when the consumer is gone.
        """
        self._ask(taken_ahead)
        if not self._link.pump(seconds):
            return None
        received = self._parse()
        for _ in range(_READS - 1):
            if not self._link.pump(0):
                break
            received += self._parse()
        self._ask(taken_ahead + len(received))
        return received

    def delete(self) -> None:
        """Tell the server that nobody will ask again, as far as the line still holds."""
        self._link.send(protocol.publish(f"{API}.CONSUMER.DELETE.{self._stream}.{self.name}", "", b""))
        self._link.pump(0)

    def _config(self, subjects: Sequence[str], start_seq: int) -> dict[str, object]:
        config: dict[str, object] = {
            "name": self.name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": max(1, start_seq),
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_SECONDS * _NANOSECONDS,
        }
        if subjects:
            config["filter_subjects"] = list(subjects)
        return {"stream_name": self._stream, "config": config, "action": "create"}

    def _ask(self, taken_ahead: int) -> None:
        wanted = _AHEAD_MESSAGES - taken_ahead - self._due
        if wanted < _AHEAD_MESSAGES // 2:
            return
        request = {
            "batch": wanted,
            "expires": _EXPIRES_SECONDS * _NANOSECONDS,
            "idle_heartbeat": self._heartbeat,
            "max_bytes": self._max_bytes,
        }
        subject = f"{API}.CONSUMER.MSG.NEXT.{self._stream}.{self.name}"
        self._link.send(protocol.publish(subject, self._inbox, json.dumps(request).encode()))
        self._due += wanted

    def _parse(self) -> list[Received]:
        received = self._parse_run()
        while (message := next(self._link.messages(), None)) is not None:
            if message.status is not None:
                self._heed(message.status)
            elif match := self._reply.fullmatch(message.reply):
                subject = message.subject.decode()
                received.append(Received(subject, int(match[1]), int(match[2]), message.headers, message.payload))
                self._due -= 1
            received += self._parse_run()
        return received

    def _parse_run(self) -> list[Received]:
        """Messages that follow one another, without more work for each than has to be."""
        data, at = self._link.peek()
        received: list[Received] = []
        match_line, names, make, add = self._line.match, self._names, tuple.__new__, received.append
        length = len(data)
        while line := match_line(data, at):
            subject, sequence, stored_at, header_size, size = line.groups()
            begin = line.end()
            end = begin + int(size)
            if end + 2 > length:
                break
            name = names.get(subject) or names.setdefault(subject, subject.decode())
            headers = None
            if header_size is not None:
                headers, begin = data[begin : (body := begin + int(header_size))], body
            add(make(Received, (name, int(sequence), int(stored_at), headers, data[begin:end])))
            at = end + 2
        self._link.skip_to(at)
        self._due -= len(received)
        return received

    def _heed(self, status: Status) -> None:
        if status.code == _HEARTBEAT:
            self.looked = status.number("Nats-Last-Stream") or self.looked
            return
        if status.code != _EXPIRED and status.reason.lower() not in (_COMPLETED, _TOO_LARGE):
            raise BrokerUnavailable(f"the consumer of stream {self._stream!r} ended: {status.code} {status.reason}")
        pending = status.number("Nats-Pending-Messages") or 0
        if status.reason.lower() == _TOO_LARGE and pending == _AHEAD_MESSAGES:
            # Not even the first message fits.
            self._max_bytes *= 2
        self._due = max(0, self._due - pending)
