"""The HTTP API: messages in, ids out, and what became of each. What is answered with 202 is durable.

Starlette comes with the extra `comms`.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headwater.comms.answer import email_answer, faults_answer
from headwater.comms.message import Email
from headwater.comms.request import Refusal, key_fault, read_request
from headwater.comms.session import Sessions
from headwater.comms.settings import ApiSettings
from headwater.comms.statements import answer, find_email, list_attempts
from headwater.comms.submit import Conflict, Submitter
from headwater.errors import HeadwaterError, JobError

_log = logging.getLogger(__name__)

Answerer: TypeAlias = Callable[[Request], Awaitable[Response]]

# A larger body is read by a thread, so that others are answered meanwhile.
_LARGE: Final = 256 * 1024
_MAX_ID: Final = 2**63 - 1


class Api:
    """Answers clients and monitors."""

    def __init__(self, submitter: Submitter, sessions: Sessions, settings: ApiSettings) -> None:
        self._submitter, self._sessions, self._settings = submitter, sessions, settings
        self._token = None if settings.token is None else _digest(settings.token)

    def application(self, others: Mapping[str, Answerer]) -> Starlette:
        """With what is answered beside it, to monitors, by path."""
        routes = [
            Route("/emails", self._guarded(self.post), methods=["POST"]),
            Route("/emails/{id}", self._guarded(self.get), methods=["GET"]),
            *(Route(path, other, methods=["GET"]) for path, other in others.items()),
        ]
        return application_of(routes)

    async def post(self, request: Request) -> Response:
        key = request.headers.get("Idempotency-Key")
        if key is not None and (fault := key_fault(key)):
            return _refused(400, fault)
        if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            return _refused(415, "Content-Type must be application/json; send messages as JSON")
        body = await self._body(request)
        if body is None:
            most = self._settings.max_bytes
            return _refused(413, f"the body has more than {most:,} bytes; send several requests, or link to large files")
        emails = await self._read(body)
        if isinstance(emails, Refusal):
            content = faults_answer(emails.faults, emails.count) if emails.faults else {"error": emails.reason}
            return JSONResponse(content, status_code=emails.status)
        return await self._submit(emails, key)

    async def get(self, request: Request) -> Response:
        written = request.path_params["id"]
        known = None
        if written.isascii() and written.isdecimal() and int(written) <= _MAX_ID:
            async with self._sessions.one() as session:
                known = next(iter(await session.fetch(find_email(int(written)))), None)
                attempts = await session.fetch(list_attempts(int(written))) if known else []
        if known is None:
            return _refused(
                404, "there is no e-mail with this id, or it was finished so long ago that it is not kept any more"
            )
        return JSONResponse(email_answer(known, attempts))

    async def is_ready(self) -> bool:
        """Whether the database answers."""
        try:
            async with self._sessions.one() as session:
                return bool(await session.fetch(answer()))
        except HeadwaterError:
            return False

    async def _submit(self, emails: Sequence[Email], key: str | None) -> Response:
        submitted = await self._submitter.submit(emails, key)
        if isinstance(submitted, Conflict):
            said = "this Idempotency-Key came with other messages before; use a new key for new messages"
            return _refused(409, f"{said}, and the same messages for the same key")
        return JSONResponse({"ids": submitted}, status_code=202)

    async def _read(self, body: bytes) -> Sequence[Email] | Refusal:
        settings = self._settings
        if len(body) > _LARGE:
            return await asyncio.to_thread(read_request, body, settings.sender, settings.max_messages)
        return read_request(body, settings.sender, settings.max_messages)

    async def _body(self, request: Request) -> bytes | None:
        """None if there is too much of it, of which no more is read then."""
        parts, size = [], 0
        async for part in request.stream():
            size += len(part)
            if size > self._settings.max_bytes:
                return None
            parts.append(part)
        return b"".join(parts)

    def _guarded(self, answerer: Answerer) -> Answerer:
        """Only for those who have the token, if there is one; and whatever fails is told."""

        async def guarded(request: Request) -> Response:
            if fault := self._token_fault(request.headers.get("Authorization", "")):
                return JSONResponse({"error": fault}, status_code=401, headers={"WWW-Authenticate": "Bearer"})
            try:
                return await answerer(request)
            except ClientDisconnect:
                return Response(status_code=499)
            except JobError as exc:
                return _refused(422, str(exc))
            except HeadwaterError as exc:
                _log.warning("a request was answered with 503: %s", exc)
                said = (
                    "the database cannot be reached, or refuses; try again, with the same Idempotency-Key if there was one"
                )
                return JSONResponse({"error": said}, status_code=503, headers={"Retry-After": "1"})

        return guarded

    def _token_fault(self, authorization: str) -> str | None:
        """Why a request is not answered. The token itself is never repeated."""
        scheme, _, given = authorization.partition(" ")
        if self._token is None:
            return None
        if scheme.lower() != "bearer" or not given.strip():
            return "this API needs a token, and none was sent; send it as `Authorization: Bearer TOKEN`"
        # Of the same length whatever was given, so that the time it takes tells nothing.
        if not hmac.compare_digest(_digest(given.strip()), self._token):
            return "the token that was sent is not the one of this API; send that of `token` in its [api]"
        return None


def application_of(routes: Sequence[Route]) -> Starlette:
    """What is not there, or not asked for like that, is told as any other fault is."""
    paths = ", ".join(route.path for route in routes)

    async def tell(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        said = {
            404: f"there is nothing at this path; there are {paths}",
            405: f"this path does not take this method; it takes {allowed}",
        }
        content = {"error": said.get(error.status_code, error.detail)}
        return JSONResponse(content, status_code=error.status_code, headers=error.headers)

    return Starlette(routes=routes, exception_handlers={HTTPException: tell})


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _refused(status: int, reason: str) -> Response:
    return JSONResponse({"error": reason}, status_code=status)
