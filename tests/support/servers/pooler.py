"""A pooler in transaction mode in front of a server: each transaction goes to another session than the one before.

It knows as much as clients need that ask one thing at a time; prepared statements are the sessions' own, as in poolers that
do not know of them, and what is listened for is heard by nobody.
"""

import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from threading import Condition, Thread
from urllib.parse import urlsplit

import psycopg

_HEADER = struct.Struct("!cI")
_CANCEL, _ENCRYPTION = 80877102, (80877103, 80877104)
_PARAMETERS = {
    b"server_version": b"18.0",
    b"client_encoding": b"UTF8",
    b"standard_conforming_strings": b"on",
    b"integer_datetimes": b"on",
    b"TimeZone": b"UTC",
}


class Pooler:
    """Use it within `pooler`; `transactions` counts those of each session."""

    def __init__(self, sessions: list[socket.socket]) -> None:
        self._free = deque(sessions)
        self._changed = Condition()
        self.transactions = dict.fromkeys(sessions, 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if not _greet(client):
                return
            while data := client.recv(65536):
                if data[:1] == b"X":
                    return
                with self._session() as session:
                    session.sendall(data)
                    _pass_on(client, session)

    @contextmanager
    def _session(self) -> Iterator[socket.socket]:
        """The one that was used the longest time ago."""
        with self._changed:
            self._changed.wait_for(lambda: self._free)
            session = self._free.popleft()
        try:
            yield session
        finally:
            with self._changed:
                self.transactions[session] += 1
                self._free.append(session)
                self._changed.notify()


def _greet(client: socket.socket) -> bool:
    """Whether it wants to talk; nobody is asked for a password."""
    while True:
        length, code = struct.unpack("!II", _exactly(client, 8))
        _exactly(client, length - 8)
        if code == _CANCEL:
            return False
        if code not in _ENCRYPTION:
            break
        client.sendall(b"N")
    settings = [_message(b"S", name + b"\0" + value + b"\0") for name, value in _PARAMETERS.items()]
    greeting = [
        _message(b"R", struct.pack("!I", 0)),
        *settings,
        _message(b"K", struct.pack("!II", 1, 1)),
        _message(b"Z", b"I"),
    ]
    client.sendall(b"".join(greeting))
    return True


def _pass_on(client: socket.socket, session: socket.socket) -> None:
    """Both ways, until the transaction has ended."""
    is_gone = False
    while True:
        ready, _, _ = select.select([session] if is_gone else [client, session], [], [])
        if client in ready:
            data = client.recv(65536)
            is_gone = not data
            # Of one who hung up in the midst of it.
            session.sendall(data or _message(b"Q", b"rollback\0"))
        if session in ready:
            head = _exactly(session, _HEADER.size)
            tag, length = _HEADER.unpack(head)
            body = _exactly(session, length - 4)
            if not is_gone:
                client.sendall(head + body)
            if tag == b"Z" and body == b"I":
                return


def _message(tag: bytes, body: bytes) -> bytes:
    return _HEADER.pack(tag, len(body) + 4) + body


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise ConnectionError("the other side hung up")
        data += more
    return data


@contextmanager
def pooler(url: str, sessions: int = 3) -> Iterator[tuple[str, Pooler]]:
    """The URL of a pooler in front of a server, and the pooler."""
    with ExitStack() as stack:
        # psycopg logs in; after that the sockets are ours.
        connections = [stack.enter_context(closing(psycopg.connect(url, autocommit=True))) for _ in range(sessions)]
        ends = [stack.enter_context(socket.socket(fileno=os.dup(one.fileno()))) for one in connections]
        for end in ends:
            end.setblocking(True)
        made = stack.enter_context(closing(Pooler(ends)))
        parts = urlsplit(url)
        yield parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{made.port}")).geturl(), made
