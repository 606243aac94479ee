"""Sending by an HTTP API: a message as JSON, and what the answer means.

2xx is success. 4xx is for good, but for 401 (our key, not the message), 408, 425 and 429; everything else, and no answer at
all, passes. Each attempt has the same Idempotency-Key, so that an API that knows it sends a repeated message once.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

import httpx

from headwater.comms.http_settings import KEY_HEADER, HttpSettings
from headwater.comms.mime import Letter
from headwater.comms.outcome import Outcome, Verdict, away, cut, permanent, transient
from headwater.comms.template import default_body, fill, values_of

_log = logging.getLogger(__name__)

# Unauthorized is said of our key; the others say themselves that it is worth another try.
_PASSING: Final = (401, 408, 425, 429)
# It takes nothing of us at the moment, whatever the message: our key, too many, no service.
_AWAY: Final = (401, 429, 503)
# What a provider says beyond that is taken for a slip.
_LONGEST_WAIT: Final = timedelta(days=1)


def _now() -> datetime:
    return datetime.now(UTC)


class HttpSender:
    """Sends by one API; connections are kept between messages."""

    def __init__(self, settings: HttpSettings, now: Callable[[], datetime] = _now) -> None:
        self._settings, self._now = settings, now
        self.name = settings.describe()
        self._client = httpx.AsyncClient(
            timeout=settings.timeout.total_seconds(),
            headers={"User-Agent": "headwater", **settings.headers},
            # As many as there are messages on their way at once.
            limits=httpx.Limits(keepalive_expiry=settings.idle.total_seconds()),
        )

    async def send(self, letter: Letter) -> Outcome:
        form = self._settings.body
        body = default_body(letter) if form is None else fill(form, values_of(letter))
        try:
            answer = await self._client.request(
                self._settings.method, self._settings.url, json=body, headers={KEY_HEADER: letter.id}
            )
        except httpx.HTTPError as exc:
            # Its text may name the address, which may hold a key.
            reason = cut(str(exc), (self._settings.url, *self._settings.secrets)) or type(exc).__name__
            said = f"{self.name} gave no answer: {type(exc).__name__}: {reason}"
            return away(said) if isinstance(exc, httpx.ConnectError | httpx.ConnectTimeout) else transient(said)
        return self._judged(answer, letter)

    async def close(self) -> None:
        await self._client.aclose()

    def _judged(self, answer: httpx.Response, letter: Letter) -> Outcome:
        said = cut(answer.text, self._settings.secrets) or answer.reason_phrase
        if answer.is_success:
            accepted = tuple(one.address for one in letter.recipients)
            return Outcome(verdict=Verdict.SENT, code=answer.status_code, response=said, accepted=accepted)
        if answer.is_client_error and answer.status_code not in _PASSING:
            return permanent(said, answer.status_code)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            _log.warning("%s does not take messages at the moment: %d %s", self.name, answer.status_code, said)
        made = away if answer.status_code in _AWAY else transient
        return made(said, answer.status_code, retry_after(answer.headers.get("Retry-After"), self._now()))


def retry_after(header: str | None, now: datetime) -> timedelta | None:
    """What the header says, in seconds or as a time; None if it says nothing that can be read."""
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdecimal():
        return min(timedelta(seconds=min(int(text), 10**6)), _LONGEST_WAIT)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    wait = (at if at.tzinfo else at.replace(tzinfo=UTC)) - now
    return min(max(wait, timedelta(0)), _LONGEST_WAIT)
