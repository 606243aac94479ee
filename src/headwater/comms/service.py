"""The parts of `headwater comms serve` together: the API, the consumer, what is told to monitors, and their end.

Starlette, uvicorn and prometheus-client come with the extra `comms`.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from math import ceil
from typing import Literal

import uvicorn
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headwater.comms.api import Answerer, Api, application_of
from headwater.comms.consumer import Consumer
from headwater.comms.metrics import CommsMetrics
from headwater.comms.session import Sessions
from headwater.comms.settings import ApiSettings
from headwater.comms.submit import GIVE_UP_AFTER, Submitter
from headwater.queue import Enqueuer, EnqueuerSettings


class Service:
    """Takes messages, sends them, or both; and answers at `place`, if it has one, until it is to stop."""

    def __init__(
        self, url: str, place: socket.socket | None, api: ApiSettings | None, consumer: Consumer | None, stop_within: float
    ) -> None:
        self._url, self._place, self._settings, self._consumer = url, place, api, consumer
        self._stop_within, self._is_stopping = stop_within, False
        self._api: Api | None = None
        self._metrics = CommsMetrics(None, consumer)

    async def run(self, stopping: asyncio.Event) -> None:
        """Requests that came before the end are answered, and messages that are on their way are sent."""
        async with self._producing():
            server = None if self._place is None else _Server(_config(self._application(), self._stop_within))
            tasks = [asyncio.create_task(stopping.wait(), name="comms stop")]
            if server is not None and self._place is not None:
                tasks.append(asyncio.create_task(_true(server.serve(sockets=[self._place])), name="comms api"))
            if self._consumer is not None:
                tasks.append(asyncio.create_task(_true(self._consumer.run()), name="comms consumer"))
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._is_stopping = True
                if server is not None:
                    server.should_exit = True
                if self._consumer is not None:
                    self._consumer.stop()
                tasks[0].cancel()
                ended = await asyncio.gather(*tasks[1:], return_exceptions=True)
        for one in ended:
            if isinstance(one, BaseException):
                raise one

    @asynccontextmanager
    async def _producing(self) -> AsyncIterator[None]:
        """What takes messages, if any are to be taken."""
        if self._settings is None:
            yield
            return
        settings = self._settings
        sessions = Sessions(self._url, settings.connections, settings.answer_within)
        try:
            gathering = EnqueuerSettings(answer_within=settings.answer_within, give_up_after=GIVE_UP_AFTER)
            async with Enqueuer(self._url, gathering) as enqueuer:
                submitter = Submitter(enqueuer, sessions, settings.queue, settings.sender)
                self._api = Api(submitter, sessions, settings)
                self._metrics = CommsMetrics(submitter, self._consumer)
                yield
        finally:
            await sessions.close()

    def _application(self) -> Starlette:
        monitors: Mapping[str, Answerer] = {
            "/health": self._answer_health,
            "/ready": self._answer_ready,
            "/metrics": self._answer_metrics,
        }
        if self._api is not None:
            return self._api.application(monitors)
        return application_of([Route(path, answer) for path, answer in monitors.items()])

    async def _answer_health(self, _request: Request) -> Response:
        return _judged(None)

    async def _answer_ready(self, _request: Request) -> Response:
        if self._is_stopping:
            return _judged("the service is about to end")
        counts = None if self._consumer is None else self._consumer.worker.counts
        is_up = counts is None or counts.is_database_up
        if is_up and self._api is not None:
            is_up = await self._api.is_ready()
        if not is_up:
            return _judged("the database cannot be reached")
        return _judged(None if counts is None or counts.polls else "no message was looked for yet")

    async def _answer_metrics(self, _request: Request) -> Response:
        return Response(self._metrics.render(), media_type=CONTENT_TYPE_LATEST)


class _Server(uvicorn.Server):
    """Leaves signals to the program."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def _config(application: Starlette, stop_within: float) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        log_config=None,
        # Each request is no news; and a warning of its own goes to our log.
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        http="h11",
        loop="asyncio",
        server_header=False,
        timeout_graceful_shutdown=ceil(stop_within),
    )


def _judged(reason: str | None) -> Response:
    return JSONResponse({"ok": reason is None, "reason": reason}, status_code=200 if reason is None else 503)


async def _true(work: Awaitable[None]) -> Literal[True]:
    """So that it can stand beside a task that waits for the event."""
    await work
    return True
