"""Members of groups for stories, in one process: what each got before the commit, and how that ended.

`python -m tests.support.stories.topic_member '{"url": ..., "directory": ..., "name": ..., "seed": ..., "groups": [...]}'`
goes on until SIGTERM. Killed, it leaves a file for each group whose lines are complete but for the last.
"""

import asyncio
import json
import random
import signal
import sys
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import psycopg

from headwater.errors import HeadwaterError, LeaseLost
from headwater.topics import Line, Message, Subscriber, SubscriberSettings
from headwater.topics.batch import Batch
from tests.support.stories.topic_history import Promise

TOPIC = "story"
# Short enough for a story with many take-overs, and long enough for a busy machine.
LEASE = timedelta(seconds=3)

Write = Callable[[dict[str, object]], None]


async def main(url: str, directory: Path, name: str, seed: int, groups: list[dict[str, Any]]) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with ExitStack() as files:
        paths = [directory / f"{name}-{group['name']}.jsonl" for group in groups]
        opened = [files.enter_context(path.open("a", buffering=1, encoding="utf-8")) for path in paths]
        async with Line(url) as line, asyncio.TaskGroup() as tasks:
            for group, file in zip(groups, opened, strict=True):
                place = line if group["on_line"] else url
                for member in range(group["subscribers"]):
                    write, choose = writer(file, member), random.Random(f"{seed} {name} {group['name']} {member}")
                    tasks.create_task(read(write, choose, url, place, group, settings_of(group)))


def writer(file: TextIO, member: int) -> Write:
    def write(told: dict[str, object]) -> None:
        file.write(json.dumps({"member": member, **told}) + "\n")

    return write


def settings_of(group: dict[str, Any]) -> SubscriberSettings:
    return SubscriberSettings(
        mode=group["mode"],
        commit_waits=group["commit_waits"],
        delivery="at-most-once" if group["promise"] == Promise.AT_MOST_ONCE.value else "at-least-once",
        max_messages=20,
        lease=LEASE,
    )


async def read(
    write: Write,
    choose: random.Random,
    url: str,
    place: str | Line,
    group: dict[str, Any],
    settings: SubscriberSettings,
) -> None:
    while True:
        try:
            async with Subscriber(place, TOPIC, group=group["name"], settings=settings) as subscriber:
                async for batch in subscriber:
                    await deal_with(url, batch, group["promise"], write, choose.uniform(0, 0.01))
        except (HeadwaterError, psycopg.OperationalError) as exc:
            write({"failed": repr(exc)})
            if isinstance(exc, HeadwaterError) and not exc.retryable:
                raise
            await asyncio.sleep(0.1)


async def deal_with(url: str, batch: Batch, promise: str, write: Write, seconds: float) -> None:
    """Take some seconds for a batch, and commit it as its group does."""
    name = uuid.uuid4().hex
    epochs = {(part.partition, offset): part.epoch for part in batch.parts for offset in part.offsets}
    places = [(one.partition or 0, one.offset or 0) for one in batch.messages]
    told = [[place[0], epochs[place], place[1], *name_of(one)] for place, one in zip(places, batch.messages, strict=True)]
    write({"got": name, "messages": told})
    await asyncio.sleep(seconds)
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


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    try:
        asyncio.run(main(given["url"], Path(given["directory"]), given["name"], given["seed"], given["groups"]))
    except asyncio.CancelledError:
        sys.exit(0)
