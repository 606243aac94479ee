"""A consumer's figures for Prometheus, under Creek's own names, so that its dashboards keep working; over HTTP."""

import socket
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Self

from headwater.errors import SettingsError
from headwater.spark.creek_apply.counts import Counts
from headwater.spark.monitor.creek import LogCounter

_TEXT = "text/plain; version=0.0.4; charset=utf-8"


def render(counts: Counts, logged: LogCounter) -> bytes:
    """The text that Prometheus reads. Its Python client would put `_total` behind the name of a counter."""
    applied = (
        ({"creek_stream_type": kind, "creek_pg_target": str(table.target), "creek_pg_source": str(table.topic)}, count)
        for (kind, table), count in sorted(counts.by_table.items())
    )
    levels = (({"level": level}, count) for level, count in sorted(logged.counts.items()))
    lines = [
        *_family("creek_consumer_pg_inserts", "Changes and rows that were applied to the target.", applied),
        *_family(
            "headwater_creek_skipped",
            "Changes that had been applied before, or that a snapshot held.",
            [({}, counts.skipped)],
        ),
        *_family(
            "headwater_creek_dead_letters", "Changes that the target did not take, and that wait.", [({}, counts.letters)]
        ),
        *_family("log_messages_total", "Lines of the log.", levels),
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def _family(name: str, said: str, samples: Iterable[tuple[Mapping[str, str], int]]) -> Iterator[str]:
    yield f"# HELP {name} {said}"
    yield f"# TYPE {name} counter"
    for labels, value in samples:
        listed = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{name}{{{listed}}} {value}" if listed else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsServer:
    """Answers `/metrics` and `/health` on a port, from the beginning of a `with` to its end."""

    def __init__(self, port: int, counts: Counts, logged: LogCounter) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path in ("/metrics", "/health")
                body = render(counts, logged) if self.path == "/metrics" else b"ok\n" if is_known else b"not found\n"
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", _TEXT)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Programs ask every few seconds, which is no news."""

        try:
            self._server = _Server(("", port), Handler)
        except OSError as exc:
            reason = (exc.strerror or str(exc)).lower()
            raise SettingsError(f"cannot listen on port {port}: {reason}; name another with --prometheus-port") from exc
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    daemon_threads = True

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()
