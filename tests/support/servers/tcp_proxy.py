"""A TCP proxy in front of a server, to cut, refuse or silence the connections through it."""

import socket
from contextlib import suppress
from threading import Event, Thread
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Passes everything on until told otherwise.

    `freeze` swallows what the present connections send, both ways, without closing them, as a dead network does; later
    connections work. `swallow` names bytes whose sender gets no answer any more. `mute` swallows all answers, and nothing
    else. `refuse` closes new connections at once, and `refused` counts those that were closed so.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._generation = Event()
        self.swallow: bytes | None = None
        self.refuse = self.mute = False
        self.refused = 0
        self._acceptor = Thread(target=self._accept, daemon=True)
        port = self._listener.getsockname()[1]
        self.url = parts._replace(netloc=parts.netloc.replace(f":{parts.port}", f":{port}")).geturl()

    def __enter__(self) -> Self:
        self._acceptor.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        # To close it would leave the one waiting who accepts, and let in one more.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        self.cut()

    def freeze(self) -> None:
        self._generation.set()
        self._generation = Event()

    def cut(self) -> None:
        for end in self._sockets:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._sockets.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = None if self.refuse else self._reached()
                if server is None:
                    self.refused += 1
                    client.close()
                    continue
                self._sockets += [client, server]
                frozen = self._generation
                for pair in ((client, server), (server, client)):
                    Thread(target=self._pump, args=(*pair, frozen), daemon=True).start()

    def _reached(self) -> socket.socket | None:
        """A connection to the server, or none while it is down."""
        try:
            return socket.create_connection(self._target)
        except ConnectionError:
            return None

    def _pump(self, source: socket.socket, target: socket.socket, frozen: Event) -> None:
        with suppress(OSError):
            is_answer = source.getpeername()[1] == self._target[1]
            while data := source.recv(65536):
                if self.swallow and self.swallow in data:
                    frozen.set()
                if not frozen.is_set() and not (is_answer and self.mute):
                    target.sendall(data)
        # Also after a reset, as of a server that was killed.
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
