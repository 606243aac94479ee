"""A producer of a topic for stories, as a process: it notes each message before it is sent, and again when that is known.

`python -m tests.support.stories.topic_producer '{"url": ..., "directory": ..., "name": ...}'` sends until SIGTERM.
Killed, it leaves a file of lines that is complete but for the last.
"""

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

from headwater.errors import HeadwaterError
from headwater.topics import Message, Producer
from tests.support.stories.topic_member import TOPIC

_CALLERS = 4
_PAUSE_SECONDS = 0.02

Write = Callable[[str, str, int], None]


async def main(url: str, write: Write, name: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with Producer(url, TOPIC) as producer:
        await asyncio.gather(*(send(producer, write, f"{name}-{caller}", stopping) for caller in range(_CALLERS)))


async def send(producer: Producer, write: Write, key: str, stopping: asyncio.Event) -> None:
    for number in count():
        if stopping.is_set():
            return
        write("trying", key, number)
        try:
            await producer.send(Message({"number": number}, key))
        except HeadwaterError:
            continue
        finally:
            await asyncio.sleep(_PAUSE_SECONDS)
        write("sent", key, number)


def run(url: str, directory: str, name: str) -> None:
    with Path(directory, f"{name}.jsonl").open("a", buffering=1, encoding="utf-8") as file:

        def write(what: str, key: str, number: int) -> None:
            file.write(json.dumps([what, key, number]) + "\n")

        asyncio.run(main(url, write, name))


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
