"""An application for stories: it sells until SIGTERM, and relays its events by itself. Killed, it leaves what it has behind.

`python -m tests.support.stories.relay_application '{"url": ..., "broker": ..., "queue": ..., "name": ...}'`.
"""

import asyncio
import json
import signal
import sys
from collections import defaultdict
from contextlib import suppress
from typing import Any

import psycopg

from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.outbox import OutboxRelay, RelaySettings
from tests.support.stories.relay_settings import QUICK

_TILLS, _KEYS = 8, 5


async def main(url: str, broker: str, queue: str, name: str) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    access = RabbitmqAccess(url=broker, routing_key=queue)
    async with OutboxRelay(url, access, RelaySettings(**QUICK)) as relay:
        tills = [asyncio.create_task(sell(url, relay, f"{name}-{till}", stopping)) for till in range(_TILLS)]
        await asyncio.gather(*tills)


async def sell(url: str, relay: OutboxRelay, till: str, stopping: asyncio.Event) -> None:
    """One sale after the other; a database that is away is waited for."""
    numbers: dict[str, int] = defaultdict(int)
    while not stopping.is_set():
        with suppress(psycopg.OperationalError):
            async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
                while not stopping.is_set():
                    key = f"{till}-{len(numbers) % _KEYS}"
                    numbers[key] += 1
                    await sale(connection, relay, key, numbers[key])
        await asyncio.sleep(0.05)


async def sale(connection: psycopg.AsyncConnection[Any], relay: OutboxRelay, key: str, number: int) -> None:
    async with relay.transaction(connection) as tx:
        id_ = await tx.publish("sales", "Counted", {"key": key, "number": number}, key=key)
        await tx.execute("insert into sale values (%s, %s, %s)", [str(id_), key, number])


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
