"""`/metrics`, `/health`, `/ready` and `/status` over HTTP, in a thread of their own.

No answer asks a database: all are made of what the run and its watch know, so that they come at once whatever is away.
"""

import socket
from threading import Thread
from typing import Self

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headwater.errors import SettingsError
from headwater.spark.monitor.condition import why_unhealthy, why_unready
from headwater.spark.monitor.metrics import Metrics
from headwater.spark.monitor.watch import Watch
from headwater.spark.reporter import Reporter
from headwater.spark.settings import parse_listen
from headwater.spark.state import as_json

# Whoever asks at the very end gets an answer, or not; the run does not wait for it.
_END_SECONDS = 2


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


class Listener:
    """Answers on a socket from the beginning of a `with` to its end."""

    def __init__(self, place: socket.socket, pipeline: str, reporter: Reporter, watch: Watch) -> None:
        self._place, self._reporter, self._watch = place, reporter, watch
        self._metrics = Metrics(pipeline, reporter, watch)
        routes = [
            Route("/metrics", self._answer_metrics),
            Route("/health", self._answer_health),
            Route("/ready", self._answer_ready),
            Route("/status", self._answer_status),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes),
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
        self._server = uvicorn.Server(config)
        self._thread = Thread(target=self._server.run, args=[[place]], name="listen", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.should_exit = True
        self._thread.join(2 * _END_SECONDS)
        self._place.close()

    async def _answer_metrics(self, _request: Request) -> Response:
        return Response(self._metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def _answer_health(self, _request: Request) -> Response:
        reporter = self._reporter
        return _judged(why_unhealthy(reporter.report.phase, reporter.pulse, reporter.clock()))

    async def _answer_ready(self, _request: Request) -> Response:
        reporter, still = self._reporter, self._watch.stillness.seconds
        return _judged(why_unready(reporter.report.phase, reporter.pulse, still, reporter.clock()))

    async def _answer_status(self, _request: Request) -> Response:
        return JSONResponse(as_json(self._watch.progress), status_code=200 if self._watch.seen.is_state_up else 503)


def _judged(reason: str | None) -> Response:
    return JSONResponse({"ok": reason is None, "reason": reason}, status_code=200 if reason is None else 503)
