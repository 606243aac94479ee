"""An address where monitors are answered over HTTP: what it looks like, the socket, and the server behind that.

Starlette and uvicorn come with the extras `spark` and `relay`.
"""

import socket
from collections.abc import Awaitable, Callable, Mapping
from threading import Thread
from typing import TYPE_CHECKING, Self

from headwater.errors import SettingsError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

# Whoever asks at the very end gets an answer, or not; nothing waits for it.
_END_SECONDS = 2


def parse_listen(listen: str) -> tuple[str, int]:
    """Host and port of an address such as `127.0.0.1:9464` or `[::1]:9464`; with port 0 the system chooses one."""
    host, colon, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isdecimal() or int(port) > 65535 or (":" in bare and bare == host):
        raise SettingsError(f"{listen!r} is no address to listen on; write it as host:port, such as 127.0.0.1:9464")
    return bare, int(port)


def bind(listen: str) -> socket.socket:
    """A socket that listens at `host:port`; raises SettingsError if that cannot be had."""
    host, port = parse_listen(listen)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as exc:
        # Python adds the address to what the system says.
        reason = (exc.strerror or str(exc)).partition(" (while")[0].lower()
        raise SettingsError(f"cannot listen on {listen}: {reason}; name another address with `listen` or --listen") from exc


class Server:
    """Answers on a socket, by path, in a thread of its own, from the beginning of a `with` to its end."""

    def __init__(self, place: socket.socket, answers: "Mapping[str, Callable[[Request], Awaitable[Response]]]") -> None:
        import uvicorn
        from starlette.applications import Starlette
        from starlette.routing import Route

        config = uvicorn.Config(
            Starlette(routes=[Route(path, answer) for path, answer in answers.items()]),
            log_config=None,
            # Programs ask every few seconds, which is no news; and a warning of its own goes to our log.
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            http="h11",
            loop="asyncio",
            server_header=False,
            timeout_graceful_shutdown=_END_SECONDS,
        )
        self._place = place
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, args=[[place]], name="listen", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.should_exit = True
        self._thread.join(2 * _END_SECONDS)
        self._place.close()
