"""A real mail server for tests, which can be slow, refuse, hang up, and answer with any code; in a thread of its own."""

import asyncio
import ssl
from collections import defaultdict
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from threading import Event, Thread
from typing import Self

from aiosmtpd.smtp import SMTP, AuthResult

# An answer that is none: the connection is cut instead.
DROP = "drop"


@dataclass(frozen=True)
class Mail:
    """A message that the server has taken."""

    sender: str
    recipients: list[str]
    content: bytes = field(repr=False)
    connection: int
    is_encrypted: bool
    login: str | None

    @property
    def message(self) -> EmailMessage:
        return message_from_bytes(self.content, policy=default)


class MailServer:
    """Takes everything until told otherwise.

    `answers` has for each step (GREETING, EHLO, MAIL, RCPT, DATA, STORED) what is said the next times, `refused` what is
    said of a recipient, always. STORED is after the message was taken: what is said then, or a cut, comes too late to be a
    refusal. While `held` is clear, the server gives no answer to a message.
    """

    def __init__(self, *, certificate=None, starttls=False, login=None, port=0) -> None:
        self.answers: dict[str, list[str]] = defaultdict(list)
        self.refused: dict[str, str] = {}
        self.mails: list[Mail] = []
        self.connections = 0
        self.commands: list[str] = []
        self.held, self.arrived = Event(), Event()
        self.held.set()
        self._context, self._starttls, self._login = _context(certificate), starttls, login
        self._loop = asyncio.new_event_loop()
        self._ready = Event()
        self._protocols: list[_Protocol] = []
        self._wanted_port, self.port = port, 0
        self._thread = Thread(target=self._run, name="mail server", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.held.set()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def recipients(self) -> list[str]:
        """Of all messages, in order."""
        return [one for mail in self.mails for one in mail.recipients]

    def cut(self) -> None:
        """Hang up on everybody."""

        def abort() -> None:
            for protocol in self._protocols:
                protocol.cut()

        self._loop.call_soon_threadsafe(abort)

    def next(self, step: str) -> str | None:
        self.commands.append(step)
        return self.answers[step].pop(0) if self.answers[step] else None

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            self._loop.create_server(
                self._connected,
                "127.0.0.1",
                self._wanted_port,
                ssl=None if self._starttls else self._context,
            )
        )
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        try:
            self._loop.run_forever()
        finally:
            server.close()
            for protocol in self._protocols:
                protocol.cut()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(_turns(5))
            self._loop.close()

    def _connected(self) -> "_Protocol":
        self.connections += 1
        options = {"tls_context": self._context, "require_starttls": True} if self._starttls else {}
        protocol = _Protocol(
            _Handler(self, self.connections),
            hostname="mail.test",
            loop=self._loop,
            auth_require_tls=False,
            authenticator=self._authenticate if self._login else None,
            **options,
        )
        protocol.mail_server = self
        self._protocols.append(protocol)
        return protocol

    def _authenticate(self, _server, session, _envelope, _mechanism, data) -> AuthResult:
        user, password = data.login.decode(), data.password.decode()
        session.login_name = user
        return AuthResult(success=(user, password) == self._login, handled=False)


class _Protocol(SMTP):
    mail_server: MailServer

    def cut(self) -> None:
        transport = self._original_transport or self.transport
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()

    async def push(self, status) -> None:
        if isinstance(status, str) and status.startswith("220 mail.test"):
            status = self.mail_server.next("GREETING") or status
        if status == DROP:
            self.cut()
            return
        await super().push(status)
        if isinstance(status, str) and status.startswith("421"):
            self._writer.close()


class _Handler:
    """What aiosmtpd asks at each step."""

    def __init__(self, server: MailServer, connection: int) -> None:
        self._server, self._connection = server, connection

    async def handle_EHLO(self, server, session, envelope, hostname, responses):  # noqa: N802 - the name is aiosmtpd's
        session.host_name = hostname
        answer = self._server.next("EHLO")
        return responses if answer is None else [answer]

    async def handle_MAIL(self, server, session, envelope, address, options):  # noqa: N802 - as above
        answer = self._server.next("MAIL")
        if answer is None:
            envelope.mail_from = address
        return answer or "250 OK"

    async def handle_RCPT(self, server, session, envelope, address, options):  # noqa: N802 - as above
        answer = self._server.next("RCPT") or self._server.refused.get(address)
        if answer is None:
            envelope.rcpt_tos.append(address)
        return answer or "250 OK"

    async def handle_DATA(self, server, session, envelope):  # noqa: N802 - as above
        self._server.arrived.set()
        await asyncio.to_thread(self._server.held.wait, 20)
        answer = self._server.next("DATA")
        if answer is not None:
            return answer
        login = getattr(session, "login_name", None)
        is_encrypted = server.transport.get_extra_info("sslcontext") is not None
        mail = Mail(envelope.mail_from, list(envelope.rcpt_tos), envelope.content, self._connection, is_encrypted, login)
        self._server.mails.append(mail)
        return self._server.next("STORED") or "250 queued as 17"


async def _turns(count: int) -> None:
    """Transports that are cut are closed in one of the next turns of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


def _context(certificate):
    if certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.with_suffix(".pem"), certificate.with_suffix(".key"))
    return context
