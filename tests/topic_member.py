"""Members of a group for stories, on one line if they are several: what each got before the commit, and how that ended.

`python -m tests.topic_member '{"url": ..., "group": ..., "promise": ..., "mode": ..., ...}'` goes on until SIGTERM.
Killed, they leave a file of lines that is complete but for the last.
"""

import asyncio
import json
import random
import signal
import sys
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg

from headwater.errors import HeadwaterError, LeaseLost
from headwater.topics import Line, Message, Subscriber, SubscriberSettings
from headwater.topics.batch import Batch
from tests.topic_history import Promise

TOPIC = "story"
# Short enough for a story with many take-overs, and long enough for a busy machine.
LEASE = timedelta(seconds=3)

Write = Callable[[dict[str, object]], None]


async def main(write: Write, url: str, group: str, promise: str, subscribers: int, settings: SubscriberSettings) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with Line(url) as line, asyncio.TaskGroup() as tasks:
        for member in range(subscribers):

            def tell(told: dict[str, object], member: int = member) -> None:
                write({"member": member, **told})

            tasks.create_task(read(tell, url, line if subscribers > 1 else url, group, promise, settings))


async def read(write: Write, url: str, place: str | Line, group: str, promise: str, settings: SubscriberSettings) -> None:
    while True:
        try:
            async with Subscriber(place, TOPIC, group=group, settings=settings) as subscriber:
                async for batch in subscriber:
                    await deal_with(url, batch, promise, write)
        except (HeadwaterError, psycopg.OperationalError) as exc:
            write({"failed": repr(exc)})
            if isinstance(exc, HeadwaterError) and not exc.retryable:
                raise
            await asyncio.sleep(0.1)


async def deal_with(url: str, batch: Batch, promise: str, write: Write) -> None:
    name = uuid.uuid4().hex
    epochs = {(part.partition, offset): part.epoch for part in batch.parts for offset in part.offsets}
    places = [(one.partition or 0, one.offset or 0) for one in batch.messages]
    told = [[place[0], epochs[place], place[1], *name_of(one)] for place, one in zip(places, batch.messages, strict=True)]
    write({"got": name, "messages": told})
    await asyncio.sleep(random.uniform(0, 0.01))
    try:
        if promise == Promise.EXACTLY_ONCE.value:
            await commit_with_effects(url, batch)
        elif promise == Promise.AT_LEAST_ONCE.value:
            await batch.commit()
    except LeaseLost:
        write({"refused": name})
    else:
        write({"committed": name})


async def commit_with_effects(url: str, batch: Batch) -> None:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        async with connection.cursor() as cursor:
            rows = [tuple(name_of(message)) for message in batch.messages]
            await cursor.executemany("insert into effect (key, number) values (%s, %s)", rows)
        await batch.commit(connection)


def name_of(message: Message) -> list[Any]:
    payload: Any = message.json()
    return [message.key, payload["number"]]


def run(path: str, url: str, group: str, promise: str, subscribers: int, **settings: Any) -> None:
    delivery = Promise.AT_MOST_ONCE if promise == Promise.AT_MOST_ONCE.value else Promise.AT_LEAST_ONCE
    settings |= {"delivery": delivery.value, "max_messages": 20, "lease": LEASE}
    with Path(path).open("a", buffering=1, encoding="utf-8") as file:

        def write(line: dict[str, object]) -> None:
            file.write(json.dumps(line) + "\n")

        asyncio.run(main(write, url, group, promise, subscribers, SubscriberSettings(**settings)))


if __name__ == "__main__":
    try:
        run(**json.loads(sys.argv[1]))
    except asyncio.CancelledError:
        sys.exit(0)
