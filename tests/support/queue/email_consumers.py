"""Consumers of e-mails for tests, and what is in the database of what they do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from headwater.comms.consumer import Consumer
from headwater.comms.outcome import Sender
from headwater.comms.settings import SendSettings
from headwater.comms.smtp import SmtpSender
from headwater.comms.smtp_settings import SmtpSettings, Tls
from tests.support.servers.smtp import MailServer


def quick(**changes) -> SendSettings:
    """Settings with which nothing takes long."""
    times = {"retry_first": timedelta(milliseconds=10), "retry_longest": timedelta(milliseconds=10)}
    return SendSettings(**{"poll": timedelta(milliseconds=50), **times, **changes})


def smtp_to(server: MailServer, **changes) -> SmtpSender:
    chosen = {"host": "127.0.0.1", "port": server.port, "tls": Tls.NONE, "timeout": timedelta(seconds=5), **changes}
    return SmtpSender(SmtpSettings(**chosen))


@asynccontextmanager
async def consuming(url: str, sender: Sender, settings: SendSettings | None = None) -> AsyncIterator[Consumer]:
    """A consumer that works meanwhile, and is stopped in good order."""
    consumer = Consumer(url, sender, settings or quick())
    task = asyncio.create_task(consumer.run())
    try:
        yield consumer
    finally:
        consumer.stop()
        await asyncio.wait_for(task, 15)


def states(connection) -> dict[int, str]:
    """What became of each message."""
    return dict(connection.execute("select id, state from headwater.job_state order by id").fetchall())


def tried(connection, columns: str = "attempt, outcome, code"):
    """The attempts on record, in order."""
    query = f"select {columns} from headwater.email_attempt order by at, job_id"  # noqa: S608 - of the tests
    return connection.execute(query).fetchall()
