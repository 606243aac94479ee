"""Sending by SMTP: one message at a time on a connection that is kept, and what a server's answers mean.

Codes from 500 are for good, and those from 400 pass; what a server says before it was told of the message, of our login for
one, is no fault of the message, and passes in any case. A connection that was kept and is dead by now is noticed before the
message is sent, and another one is taken. From the moment at which the message itself is sent, a lost connection leaves open
whether the server has it: it is tried again, and may come twice, under the same Message-ID.
"""

import asyncio
import logging
from typing import Final

from aiosmtplib import (
    SMTPConnectError,
    SMTPException,
    SMTPRecipientRefused,
    SMTPResponseException,
    SMTPServerDisconnected,
    SMTPTimeoutError,
)

from headwater.comms.mime import Letter
from headwater.comms.outcome import Outcome, Refused, away, cut, judge, permanent, transient
from headwater.comms.smtp_pool import Line, SmtpPool
from headwater.comms.smtp_settings import SmtpSettings

_log = logging.getLogger(__name__)

# Said of our login, also where the message is what it is said to: required, too weak, refused, only with encryption.
_OURS: Final = (530, 534, 535, 538)
# The server hangs up.
_CLOSING: Final = 421
# Encoding less than that is quicker than to hand it to a thread.
_LARGE: Final = 128 * 1024


class SmtpSender:
    """Sends by one mail server."""

    def __init__(self, settings: SmtpSettings) -> None:
        self._settings, self._pool = settings, SmtpPool(settings)
        self.name = settings.describe()

    @property
    def opened(self) -> int:
        """How many connections were made."""
        return self._pool.opened

    async def send(self, letter: Letter) -> Outcome:
        content = await asyncio.to_thread(letter.encode) if letter.email.bytes > _LARGE else letter.encode()
        return await self._send(letter, content)

    async def close(self) -> None:
        await self._pool.close()

    async def _send(self, letter: Letter, content: bytes) -> Outcome:
        try:
            kept = await self._pool.take()
            was_new = kept.is_new
            try:
                return await self._transact(kept, letter, content)
            except _Stale:
                if was_new:
                    raise
            return await self._transact(await self._pool.take(new=True), letter, content)
        except _Stale as exc:
            return self._failed("went away before the message was sent", exc.__cause__)
        except (SMTPException, OSError) as exc:
            return self._unreachable(exc)

    async def _transact(self, line: Line, letter: Letter, content: bytes) -> Outcome:
        is_new, is_settled = line.is_new, False
        try:
            outcome = await self._say(line, letter, content)
            is_settled = True
        finally:
            if not is_settled:
                # Nobody knows what it is at.
                line.drop()
        self._pool.give_back(line)
        if outcome.code == _CLOSING and not outcome.accepted and not is_new:
            raise _Stale
        return outcome

    async def _say(self, line: Line, letter: Letter, content: bytes) -> Outcome:
        try:
            accepted, refused = await self._envelope(line, letter, len(content))
        except SMTPResponseException as exc:
            await self._reset(line)
            return self._answered(exc)
        except (SMTPServerDisconnected, SMTPTimeoutError) as exc:
            raise _Stale from exc
        if not accepted:
            await self._reset(line)
            return judge((), refused, None, "")
        try:
            answer = await line.client.data(content)
        except SMTPResponseException as exc:
            await self._reset(line)
            return self._answered(exc)
        except (SMTPServerDisconnected, SMTPTimeoutError) as exc:
            return self._failed("went away while the message was sent, and may have it", exc)
        return judge(accepted, refused, answer.code, self._cut(answer.message))

    async def _envelope(self, line: Line, letter: Letter, size: int) -> tuple[tuple[str, ...], tuple[Refused, ...]]:
        client = line.client
        options = [f"SIZE={size}"] if client.supports_extension("size") else []
        await client.mail(letter.sender.address, options=options)
        accepted, refused = [], []
        for recipient in letter.recipients:
            try:
                await client.rcpt(recipient.address)
                accepted.append(recipient.address)
            except SMTPRecipientRefused as exc:
                if exc.code == _CLOSING or exc.code in _OURS:
                    raise
                refused.append(Refused(recipient.address, exc.code, self._cut(exc.message)))
        return tuple(accepted), tuple(refused)

    async def _reset(self, line: Line) -> None:
        """The server forgets what it was told, so that the connection can be used again."""
        try:
            if line.client.is_connected:
                await line.client.rset()
        except (SMTPException, OSError):
            line.drop()

    def _answered(self, error: SMTPResponseException) -> Outcome:
        said = self._cut(error.message)
        if error.code in _OURS or error.code == _CLOSING:
            return away(said, error.code)
        return permanent(said, error.code) if error.code >= 500 else transient(said, error.code)

    def _unreachable(self, error: Exception) -> Outcome:
        """No connection, no login, no encryption: whatever it is, it is not the message."""
        code = error.code if isinstance(error, SMTPResponseException) else None
        _log.warning("%s does not take messages at the moment: %s", self.name, said := self._said(error))
        return away(said, code)

    def _failed(self, what: str, error: BaseException | None) -> Outcome:
        return transient(f"{self.name} {what}: {self._said(error)}")

    def _said(self, error: BaseException | None) -> str:
        reason = error.__cause__ if isinstance(error, SMTPConnectError) and error.__cause__ is not None else error
        message = error.message if isinstance(error, SMTPResponseException) else str(reason or error)
        return self._cut(message or type(error).__name__)

    def _cut(self, text: str) -> str:
        return cut(text, (self._settings.password or "",))


class _Stale(Exception):
    """The connection was lost, or the server left it, before the message was sent."""
