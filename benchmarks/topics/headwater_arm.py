"""The topics of this repository, as an arm among others.

The writers of a process share a producer, and its readers, each a subscriber of its group, a line.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final, cast

from benchmarks.topics import statements
from benchmarks.topics.comparison_arms import Receive, Send
from benchmarks.topics.load import Load, Reads
from headwater.postgres.connect import Connection
from headwater.postgres.statements import execute_sync, fetch_sync
from headwater.topics import Line, Message, Producer, Subscriber, SubscriberSettings, create_sync

TOPIC: Final = "benchmark"


@dataclass(frozen=True, slots=True)
class HeadwaterArm:
    lease: timedelta = timedelta(seconds=30)
    retention: str | None = None

    @property
    def name(self) -> str:
        return "ours"

    def prepare(self, connection: Connection, load: Load) -> None:
        self.remove(connection)
        create_sync(connection, TOPIC, partitions=load.partitions, retention=self.retention)

    def remove(self, connection: Connection) -> None:
        execute_sync(connection, statements.drop_topics())

    def is_ready(self, connection: Connection, load: Load) -> bool:
        return fetch_sync(connection, statements.count_owners()) == [load.groups * min(load.readers, load.partitions)]

    @asynccontextmanager
    async def senders(self, url: str, load: Load) -> AsyncIterator[Sequence[Send]]:
        async with Producer(url, TOPIC) as producer:
            one = partial(_send, producer)
            yield [one] * load.writers

    @asynccontextmanager
    async def readers(self, url: str, load: Load, group: str, reads: Reads) -> AsyncIterator[Sequence[Receive]]:
        settings = SubscriberSettings(max_messages=load.read_batch, lease=self.lease)
        async with Line(url) as line:
            yield [partial(_read, Subscriber(line, TOPIC, group, settings), reads) for _ in range(load.readers)]


async def _send(producer: Producer, payloads: Sequence[bytes]) -> None:
    if len(payloads) == 1:
        await producer.send(Message(payloads[0]))
    else:
        await producer.send_many([Message(payload) for payload in payloads])


async def _read(subscriber: Subscriber, reads: Reads) -> None:
    async with subscriber:
        async for batch in subscriber:
            messages = batch.messages
            payloads = cast("list[bytes]", [message.payload for message in messages])
            reads.note(payloads, cast("datetime", messages[0].created_at))
            began = time.time()
            await batch.commit()
            reads.seconds.append(time.time() - began)
