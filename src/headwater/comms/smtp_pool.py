"""Connections to a mail server that are kept between messages, and dropped when they are idle, used up or broken."""

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Final

from aiosmtplib import SMTP, SMTPException, SMTPHeloError

from headwater.comms.smtp_settings import SmtpSettings, Tls

# A server that does not answer to a farewell is left without one.
_QUIT_SECONDS: Final = 1.0


class Line:
    """A connection that is open, and has been greeted and logged in."""

    def __init__(self, client: SMTP) -> None:
        self.client = client
        self.messages = 0
        self.used_at = time.monotonic()

    @property
    def is_new(self) -> bool:
        return self.messages == 0

    def drop(self) -> None:
        """Without a word, for one that is broken or of which nobody knows what it is at."""
        self.client.close()

    async def quit(self) -> None:
        with suppress(SMTPException, OSError):
            await self.client.quit(timeout=_QUIT_SECONDS)
        self.client.close()


class SmtpPool:
    """As many connections as there are messages on their way at once."""

    def __init__(self, settings: SmtpSettings) -> None:
        self._settings, self._context, self._hello = settings, settings.tls_context(), settings.hello
        # The one that was used last is used next, so that the others get idle.
        self._idle: deque[Line] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._quitting: set[asyncio.Task[None]] = set()
        self.opened = 0

    async def take(self, *, new: bool = False) -> Line:
        """A line that was kept, or a new one; raises what aiosmtplib does where none is to be had."""
        self._drop_idle()
        while self._idle and not new:
            line = self._idle.pop()
            if line.client.is_connected:
                return line
        return await self._open()

    def give_back(self, line: Line) -> None:
        """After a message that is dealt with, whatever became of it; nobody waits for a farewell."""
        line.messages += 1
        line.used_at = time.monotonic()
        if not line.client.is_connected:
            return
        if line.messages >= self._settings.messages_per_connection:
            self._leave(line)
            return
        self._idle.append(line)
        self._wait()

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        lines, self._idle = list(self._idle), deque()
        await asyncio.gather(*self._quitting, *(line.quit() for line in lines))

    async def _open(self) -> Line:
        settings = self._settings
        client = SMTP(
            hostname=settings.host,
            port=settings.port,
            username=settings.user,
            password=settings.password,
            local_hostname=self._hello,
            timeout=settings.timeout.total_seconds(),
            use_tls=settings.tls is Tls.TLS,
            start_tls=settings.tls is Tls.STARTTLS,
            tls_context=self._context,
        )
        await client.connect()
        # To find out the name of the machine may take a while; it does not change.
        self._hello = client.local_hostname
        self.opened += 1
        line, is_open = Line(client), False
        try:
            await _greet(client)
            is_open = True
        finally:
            if not is_open:
                line.drop()
        return line

    def _drop_idle(self) -> None:
        """Say farewell to those that nobody has used for long."""
        oldest = time.monotonic() - self._settings.idle.total_seconds()
        while self._idle and self._idle[0].used_at <= oldest:
            self._leave(self._idle.popleft())

    def _leave(self, line: Line) -> None:
        task = asyncio.create_task(line.quit())
        self._quitting.add(task)
        task.add_done_callback(self._quitting.discard)

    def _wait(self) -> None:
        if self._timer is None:
            wait = self._settings.idle.total_seconds()
            self._timer = asyncio.get_running_loop().call_later(wait, self._look)

    def _look(self) -> None:
        self._timer = None
        self._drop_idle()
        if self._idle:
            self._wait()


async def _greet(client: SMTP) -> None:
    """Have the server tell its extensions, unless it did before we logged in."""
    if not client.is_ehlo_or_helo_needed:
        return
    try:
        await client.ehlo()
    except SMTPHeloError:
        await client.helo()
