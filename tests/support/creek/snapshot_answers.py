"""Answers requests for snapshots in tests, in the place of a producer."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event, Thread
from typing import Self

from headwater.brokers.nats import protocol
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.errors import BrokerUnavailable

_SID = 7


class Answers:
    """From the beginning of a `with` to its end, `answer` says for each request the topic of a snapshot that it made.

    What it raises as ValueError is told to whoever asked.
    """

    def __init__(self, access: NatsAccess, subject: str, answer: Callable[[Mapping[str, str]], str]) -> None:
        self._link, self._answer = Link(access), answer
        self._link.send(protocol.subscribe(subject, _SID))
        self._link.pump(0)
        self._ended = Event()
        self._thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join(10)
        self._link.close()

    @property
    def is_alive(self) -> bool:
        """Whether requests are still heard."""
        return self._thread.is_alive()

    def _run(self) -> None:
        with suppress(BrokerUnavailable):
            self._serve()

    def _serve(self) -> None:
        while not self._ended.is_set():
            self._link.pump(0.05)
            for message in self._link.messages():
                try:
                    topic, headers = self._answer(json.loads(message.payload)), b""
                except ValueError as error:
                    topic, headers = str(error), f"NATS/1.0\r\nHeadwater-Error: {error}\r\n\r\n".encode()
                self._link.send(_reply(message.reply.decode(), headers, topic.encode()))
                self._link.pump(0)


def _reply(subject: str, headers: bytes, payload: bytes) -> bytes:
    if not headers:
        return protocol.publish(subject, "", payload)
    return f"HPUB {subject} {len(headers)} {len(headers) + len(payload)}\r\n".encode() + headers + payload + b"\r\n"
