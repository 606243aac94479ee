"""A connected socket that never blocks: what is to go out waits in line, what came in is handed out. Knows no protocol."""

import select
import socket
import ssl
from collections import deque
from contextlib import suppress

from headwater.errors import BrokerUnavailable

# As much as the kernel keeps for us by default after it has grown the buffers.
_READ_BYTES = 1 << 18
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Wire:
    """Both directions of one connection. An ended connection is `BrokerUnavailable`, once all that came has been read."""

    def __init__(self, connection: socket.socket, where: str) -> None:
        connection.setblocking(False)
        self._socket, self._where = connection, where
        self._outgoing: deque[memoryview] = deque()
        self.waiting_bytes = 0

    def queue(self, data: bytes | memoryview) -> None:
        if len(data):
            self._outgoing.append(memoryview(data))
            self.waiting_bytes += len(data)

    def exchange(self, seconds: float) -> bytes:
        """Send what the other side takes and read what it sent; waits when neither goes. Empty when nothing came."""
        try:
            # Read first: what the server said before it hung up is worth more than the fact that it did.
            received = self._receive()
            if received or self._send():
                return received
            self._wait(seconds)
            received = self._receive()
            if not received:
                self._send()
            return received
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from error

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()

    def _wait(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        poll.poll(max(0.0, seconds) * 1000)

    def _send(self) -> bool:
        """Whether anything went out."""
        is_moving = False
        while self._outgoing:
            data = self._outgoing[0]
            try:
                sent = self._socket.send(data)
            except _NOT_NOW:
                break
            is_moving = True
            self.waiting_bytes -= sent
            if sent < len(data):
                self._outgoing[0] = data[sent:]
            else:
                self._outgoing.popleft()
        return is_moving

    def _receive(self) -> bytes:
        """What is there; a TLS connection gives it in records, often of few messages, so these are gathered."""
        data = self._receive_once()
        if not data or not isinstance(self._socket, ssl.SSLSocket):
            return data
        records, size = [data], len(data)
        # What comes of an end that is found only now is told by the next reading.
        with suppress(OSError, BrokerUnavailable):
            while size < _READ_BYTES and (data := self._receive_once()):
                records.append(data)
                size += len(data)
        return b"".join(records)

    def _receive_once(self) -> bytes:
        try:
            data = self._socket.recv(_READ_BYTES)
        except _NOT_NOW:
            return b""
        if not data:
            raise self._lost("the server hung up")
        return data

    def _lost(self, reason: str) -> BrokerUnavailable:
        return BrokerUnavailable(f"lost the connection to NATS at {self._where}: {reason}")
