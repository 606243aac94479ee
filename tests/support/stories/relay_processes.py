"""Relays inside of processes, for stories: in a thread with its event loop, as the program, and in applications."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import Any, Self
from uuid import UUID

import psycopg

from headwater.brokers.registry import BrokerAccess
from headwater.outbox import Event as OutboxEvent
from headwater.outbox import Leftover, OutboxRelay, RelaySettings
from headwater.outbox.checkpoint import prepare_outbox
from tests.support.stories.outbox_story import Message, Producer, Tally
from tests.support.stories.relay_settings import QUICK
from tests.support.waiting import eventually


class RelayThread:
    """A relay in a thread of its own, as a web server with threads has it."""

    def __init__(self, url: str, broker: BrokerAccess, **settings: Any) -> None:
        self.relay = OutboxRelay(url, broker, RelaySettings(**{**QUICK, **settings}))
        self._stopping, self._is_started = Event(), Event()
        self._errors: list[BaseException] = []
        self._thread = Thread(target=self._run)
        self.leftover: Leftover | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        eventually(lambda: self._is_started.is_set() or self._errors)
        self.require_life()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping.set()
        self._thread.join()
        assert not self._errors, self._errors

    def require_life(self) -> None:
        assert not self._errors, self._errors
        assert self.relay.is_running

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as exc:  # noqa: BLE001 - it is for the test to see
            self._errors.append(exc)

    async def _serve(self) -> None:
        await self.relay.start()
        self._is_started.set()
        await asyncio.to_thread(self._stopping.wait)
        self.leftover = await self.relay.stop()
        await self.relay.wait()


class RelayProducer(Producer):
    """Writers of transactions whose events are handed to a relay."""

    def __init__(self, relay: OutboxRelay, url: str, topic: str, **more: Any) -> None:
        super().__init__(url, topic, **more)
        self._relay = relay

    def _transaction(self, connection: Any, make: Callable[[int], list[Message]], choose: Any) -> None:
        kept, undone, is_undone = make(choose.choice((1, 1, 1, 2, 5, 20))), list[Message](), choose.random() < 0.1
        with self._relay.transaction_sync(connection) as tx:
            tx.publish_many(events_of(self._topic, kept))
            if choose.random() < 0.2:
                undone = make(2)
                with tx.transaction():
                    tx.publish_many(events_of(self._topic, undone))
                    raise psycopg.Rollback
            if is_undone:
                raise psycopg.Rollback
        with self._lock:
            self._committed += [] if is_undone else kept
            self._undone += [*undone, *(kept if is_undone else [])]


def events_of(topic: str, messages: Sequence[Message]) -> list[OutboxEvent]:
    return [OutboxEvent(topic, "Counted", each.payload, each.key, id=UUID(each.id)) for each in messages]


def require_none_lost(found: Tally) -> None:
    """Order is not promised, unless it was asked for."""
    assert (found.lost, found.ghosts) == (0, 0), str(found)


def statuses(url: str) -> dict[str, int]:
    with closing(psycopg.connect(url)) as connection:
        return dict(connection.execute("select status, count(*) from headwater.outbox_message group by status").fetchall())


def wait_until_settled(url: str, *, seconds: float = 120) -> dict[str, int]:
    """Until nothing waits any more; what is there then, by status."""
    eventually(lambda: not statuses(url).get("pending"), seconds=seconds)
    return statuses(url)


def prepare_shop(url: str) -> None:
    """An outbox, and a table that is written in the same transactions: what is in it was committed."""
    prepare_outbox(url)
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("create table sale (id text primary key, key text not null, number int not null)")


def sales(url: str) -> list[Message]:
    with closing(psycopg.connect(url)) as connection:
        return [Message(*row) for row in connection.execute("select id, key, number from sale").fetchall()]


class Application:
    """The program `relay_application` as a process: it writes sales and relays their events by itself."""

    def __init__(self, url: str, broker_url: str, queue: str, name: str, log: Path, environment: Mapping[str, str]) -> None:
        given = json.dumps({"url": url, "broker": broker_url, "queue": queue, "name": name})
        self._log = log
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.stories.relay_application", given],
                stdout=out,
                stderr=out,
                cwd=Path(__file__).parents[3],
                env={**os.environ, **environment},
            )

    def require_life(self) -> None:
        assert self._process.poll() is None, self._log.read_text()[-4000:]

    def wait_until_killed(self) -> None:
        """Until a failpoint has killed it."""
        assert self._process.wait(120) == -signal.SIGKILL, self._log.read_text()[-4000:]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)


@contextmanager
def application(
    url: str, broker_url: str, queue: str, name: str, directory: Path, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Application]:
    running = Application(url, broker_url, queue, name, directory / f"{name}.log", environment)
    try:
        yield running
    finally:
        running.kill()


class Program:
    """`headwater outbox relay` as a process; its own end is a failure, unless a failpoint killed it."""

    def __init__(
        self,
        url: str,
        broker: Mapping[str, object],
        directory: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
        **settings: object,
    ) -> None:
        self._file, self._log, self._environment = directory / "relay.toml", directory / "relay.log", environment
        lines = [f"url = {json.dumps(url)}", "[broker]", *(f"{key} = {json.dumps(value)}" for key, value in broker.items())]
        quick = {key: _written(value) for key, value in {**QUICK, **settings}.items()}
        self._file.write_text(
            "\n".join([*lines, "[relay]", *(f"{key} = {json.dumps(value)}" for key, value in quick.items())])
        )
        self._process = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """And start another one."""
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def replace_killed(self) -> None:
        """Start another one when a failpoint has killed this one."""
        assert self._process.wait(120) == -signal.SIGKILL, self._log.read_text()[-4000:]
        self._process = self._start()

    def stop(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(60)

    def require_life(self) -> None:
        assert self._process.poll() is None, self._log.read_text()[-4000:]

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "headwater.cli", "outbox", "relay", str(self._file)]
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **self._environment})


def _written(value: object) -> object:
    if value is None:
        return "never"
    return f"{value.total_seconds() * 1000:g}ms" if isinstance(value, timedelta) else value
