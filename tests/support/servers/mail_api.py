"""A real HTTP API for e-mail, for tests: what it was sent, and answers that it is told to give."""

import json
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Self


@dataclass(frozen=True)
class Posted:
    """A request."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, object]


class MailApi:
    """Answers with 200, or with what is next in `answers`: a status, headers, and a text; or None, for none at all."""

    def __init__(self) -> None:
        self.posted: list[Posted] = []
        self.answers: list[tuple[int, dict[str, str], str] | None] = []
        self.connections = 0
        self.held = Event()
        self.held.set()
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                api.connections += 1

            def answer(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                api.posted.append(Posted(self.command, self.path, headers, json.loads(content)))
                api.held.wait(20)
                answer = api.answers.pop(0) if api.answers else (200, {}, '{"id": "provider-1"}')
                if answer is None:
                    self.close_connection = True
                    return
                status, added, text = answer
                self.send_response(status)
                for name, value in {**added, "Content-Length": str(len(text.encode()))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(text.encode())

            do_POST = do_PUT = answer  # noqa: N815 - the names are the library's

            def log_message(self, *_arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_arguments: object) -> None:
                """A client that has gone, which is what some tests are about."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/mail"
        self._thread = Thread(target=self._server.serve_forever, args=[0.05], name="mail api", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.held.set()
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()
