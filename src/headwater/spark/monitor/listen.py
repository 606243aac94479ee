"""`/metrics`, `/health`, `/ready` and `/status` over HTTP, in a thread of their own.

No answer asks a database: all are made of what the run and its watch know, so that they come at once whatever is away.
"""

import socket
from typing import Self

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from headwater.http import Server
from headwater.spark.monitor.condition import why_unhealthy, why_unready
from headwater.spark.monitor.metrics import Metrics
from headwater.spark.monitor.watch import Watch
from headwater.spark.reporter import Reporter
from headwater.spark.state import as_json


class Listener:
    """Answers on a socket from the beginning of a `with` to its end."""

    def __init__(self, place: socket.socket, pipeline: str, reporter: Reporter, watch: Watch) -> None:
        self._reporter, self._watch = reporter, watch
        self._metrics = Metrics(pipeline, reporter, watch)
        answers = {
            "/metrics": self._answer_metrics,
            "/health": self._answer_health,
            "/ready": self._answer_ready,
            "/status": self._answer_status,
        }
        self._server = Server(place, answers)

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.__exit__(*exc_info)

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
