"""The second part of the demo: a shop whose events go out from inside of its process, through a broker that is killed.

The relay runs in this process, as it does in an application. While sales are written, NATS is killed and, after a while,
started again. In the end the messages in its stream are held against what was committed.
"""

import asyncio
import random
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from headwater.cli.demo import statements
from headwater.cli.demo.view import View
from headwater.embedded import EmbeddedNats
from headwater.outbox import OutboxRelay, RelaySettings
from headwater.outbox.checkpoint import prepare_outbox
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import execute_sync, fetch, fetch_sync

STREAM: Final = "headwater_demo_shop"
# Before the broker is killed, while it is away, and after it is back.
_PHASE_SECONDS = 1.5
_TILLS = 4
# Of a sale that comes to nothing.
_ROLLED_BACK = 0.1
_PAUSE_SECONDS = 0.004
_LOOK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class EventReport:
    """What was committed and what arrived; `while_away` were committed while there was no broker."""

    committed: int
    rolled_back: int
    while_away: int
    arrived: int
    lost: int
    repeated: int
    away_seconds: float
    drained_seconds: float

    @property
    def differences(self) -> list[str]:
        wrong = f"{self.lost:,} of {self.committed:,} events of the outbox are lost, {self.repeated:,} came twice"
        return [wrong] if self.lost or self.repeated else []


def relay_events(url: str, nats: EmbeddedNats, view: View) -> EventReport:
    """Sell for a while, through a broker that goes away and comes back, and count."""
    view.step("Selling in a shop whose events go through NATS")
    prepare_outbox(url)
    with closing(connect_sync(url)) as connection:
        execute_sync(connection, statements.create_shop())
    sold = asyncio.run(_sell(url, nats, view))
    arrived = Counter(_arrivals(nats.url))
    view.step("Comparing events with messages")
    with closing(connect_sync(url)) as connection:
        written = set(fetch_sync(connection, statements.list_events()))
    return EventReport(
        committed=len(written),
        rolled_back=sold.rolled_back,
        while_away=sold.while_away,
        arrived=arrived.total(),
        lost=len(written - arrived.keys()),
        repeated=arrived.total() - len(arrived),
        away_seconds=sold.away_seconds,
        drained_seconds=sold.drained_seconds,
    )


@dataclass(slots=True)
class _Sold:
    rolled_back: int = 0
    while_away: int = 0
    is_away: bool = False
    away_seconds: float = 0.0
    drained_seconds: float = 0.0


class _Refused(Exception):
    """A customer who cannot pay, when all is written already."""


async def _sell(url: str, nats: EmbeddedNats, view: View) -> _Sold:
    from headwater.brokers.nats import NatsAccess
    from headwater.brokers.nats.broker import NatsBrokerSettings
    from headwater.brokers.registry import NatsMessages

    broker = NatsMessages(
        access=NatsAccess(url=nats.url), settings=NatsBrokerSettings(stream=STREAM, subject=f"{STREAM}.{{topic}}")
    )
    sold = _Sold()
    # Partitions are for those who stay longer.
    async with OutboxRelay(url, broker, RelaySettings(retention=None)) as relay:
        closing_time = asyncio.Event()
        tills = [asyncio.create_task(_till(url, relay, sold, number, closing_time)) for number in range(_TILLS)]
        try:
            await asyncio.sleep(_PHASE_SECONDS)
            began = time.monotonic()
            sold.is_away = True
            await asyncio.to_thread(nats.kill)
            view.step("NATS is killed, and the shop goes on selling")
            await asyncio.sleep(_PHASE_SECONDS)
            await asyncio.to_thread(nats.start)
            sold.is_away, sold.away_seconds = False, time.monotonic() - began
            view.step("NATS is back, and gets what it has missed")
            await asyncio.sleep(_PHASE_SECONDS)
        finally:
            closing_time.set()
            await asyncio.gather(*tills)
        began = time.monotonic()
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            while (await fetch(connection, statements.count_waiting()))[0]:  # noqa: ASYNC110 - a table gives no signal
                await asyncio.sleep(_LOOK_SECONDS)
        sold.drained_seconds = time.monotonic() - began
    return sold


async def _till(url: str, relay: OutboxRelay, sold: _Sold, number: int, closing_time: asyncio.Event) -> None:
    choose = random.Random(number)
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        while not closing_time.is_set():
            try:
                await _sale(connection, relay, choose)
                sold.while_away += sold.is_away
            except _Refused:
                sold.rolled_back += 1
            await asyncio.sleep(_PAUSE_SECONDS)


async def _sale(connection: psycopg.AsyncConnection[Any], relay: OutboxRelay, choose: random.Random) -> None:
    customer = choose.randrange(1000)
    async with relay.transaction(connection) as transaction:
        (sale,) = await fetch(connection, statements.write_sale(customer))
        await transaction.publish("sales", "SaleMade", {"id": sale, "customer": customer}, key=str(customer))
        if choose.random() < _ROLLED_BACK:
            raise _Refused


def _arrivals(nats_url: str) -> list[str]:
    """The ids of the messages that the stream has."""
    from headwater.brokers.nats import NatsAccess
    from headwater.brokers.nats.reader import StreamReader

    found: list[str] = []
    with closing(StreamReader(NatsAccess(url=nats_url), STREAM, [], 0)) as reader:
        while read := reader.read(10_000, 1):
            found += [(one.headers or b"").partition(b"Nats-Msg-Id: ")[2].partition(b"\r\n")[0].decode() for one in read]
    return found
