"""Something in front of a server that makes up the key by which a client cancels statements, as poolers do."""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_HEADER = struct.Struct("!cI")


@contextmanager
def pooler(server_port: int, *, refuses_replication: bool = False) -> Iterator[int]:
    """The port of a pooler on 127.0.0.1 in front of a server."""
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listener, server_port, refuses_replication), daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _accept(listener: socket.socket, server_port: int, refuses_replication: bool) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, server_port, refuses_replication), daemon=True).start()


def _serve(client: socket.socket, server_port: int, refuses_replication: bool) -> None:
    with client, socket.create_connection(("127.0.0.1", server_port)) as server:
        startup = _startup(client)
        if refuses_replication and b"replication\0" in startup:
            client.sendall(_fatal("unsupported startup parameter: replication"))
            return
        server.sendall(startup)
        back = threading.Thread(target=_answers, args=(server, client), daemon=True)
        back.start()
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
        back.join()


def _startup(client: socket.socket) -> bytes:
    """The client's first message; requests for encryption, which come before it, are declined."""
    while True:
        head = _exactly(client, 8)
        length, code = struct.unpack("!II", head)
        if code not in (80877103, 80877104):
            return head + _exactly(client, length - 8)
        client.sendall(b"N")


def _answers(server: socket.socket, client: socket.socket) -> None:
    """Pass on what the server says, with a process id of our own making."""
    with suppress(OSError):
        while True:
            head = _exactly(server, _HEADER.size)
            tag, length = _HEADER.unpack(head)
            body = _exactly(server, length - 4)
            if tag == b"K":
                body = struct.pack("!I", 4242) + body[4:]
            client.sendall(head + body)


def _fatal(reason: str) -> bytes:
    fields = b"".join(key + value + b"\0" for key, value in ((b"S", b"FATAL"), (b"C", b"08P01"), (b"M", reason.encode())))
    return _HEADER.pack(b"E", len(fields) + 5) + fields + b"\0"


def _exactly(source: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = source.recv(size - len(data))
        if not more:
            raise ConnectionError("the other side hung up")
        data += more
    return data
