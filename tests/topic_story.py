"""A topic with writers and groups in a story: what they did is recorded, so that the checker can judge it."""

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Self

import psycopg

from headwater.errors import HeadwaterError
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync
from headwater.topics import Message, Producer, append_sync, create_sync, find_sync, number_sync, prepare_topics
from headwater.topics.frame import Framed, read_messages
from headwater.topics.statements import read_bounds, read_frames
from tests.topic_history import Append, Entry, Group, Promise, Range
from tests.topic_member import TOPIC

PARTITIONS = 3
# How many keys each writer has; no two writers share one.
_KEYS = 4
_BEHIND = """
select group_id, partition
  from headwater.topic_cursor
  join headwater.topic_bounds_1(%(topic)s) as bounds using (partition)
 where topic_cursor.next_offset < bounds.next_offset
 union all
select group_id, partition from headwater.topic_claim
 union all
select 0, 0 from headwater.topic_commit
"""


def prepare_story(url: str) -> None:
    """The topic, what writers write besides, which is there if and only if they committed, and effects of messages."""
    with closing(connect_sync(url)) as connection:
        prepare_topics(connection)
        create_sync(connection, TOPIC, partitions=PARTITIONS)
        connection.execute("create table written (key text, number int, primary key (key, number))")
        connection.execute("create table effect (key text, number int)")


class Writers:
    """Threads whose transactions append, of which some roll back or do so to a savepoint; and callers of a producer."""

    def __init__(self, url: str, seed: int, *, threads: int = 3, callers: int = 4) -> None:
        self._url, self._seed, self._callers = url, seed, callers
        self._stopping, self._lock = Event(), Lock()
        self._numbers: defaultdict[str, Iterator[int]] = defaultdict(count)
        self._tried: list[Message] = []
        self._sent: list[Append] = []
        self._errors: list[BaseException] = []
        self._threads = [Thread(target=self._guard, args=(self._transact, number)) for number in range(threads)]
        self._threads.append(Thread(target=self._guard, args=(self._produce, threads)))

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def count(self) -> int:
        return len(self._tried) + len(self._sent)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors, self._errors

    def appends(self, url: str) -> list[Append]:
        """What they did, by what is there; only a producer that gave up does not know."""
        with closing(psycopg.connect(url)) as connection:
            written = set(connection.execute("select key, number from written").fetchall())
        tried = [(str(one.key), number_of(one)) for one in self._tried]
        return [*(Append(key, number, (key, number) in written) for key, number in tried), *self._sent]

    def _guard(self, work: Any, number: int) -> None:
        try:
            work(number)
        except BaseException as exc:  # noqa: BLE001 - it is for the test to see
            self._errors.append(exc)

    def _message(self, key: str) -> Message:
        return Message({"number": next(self._numbers[key]), "text": "." * 50}, key)

    def _transact(self, writer: int) -> None:
        choose = random.Random(self._seed * 100 + writer)
        while not self._stopping.is_set():
            # Also a rollback, where the connection was lost before it.
            lost = suppress(psycopg.OperationalError, psycopg.Rollback, HeadwaterError)
            with lost, closing(connect_sync(self._url)) as connection:
                while not self._stopping.is_set():
                    self._transaction(connection, writer, choose)
                    self._stopping.wait(choose.uniform(0, 0.05))
            self._stopping.wait(0.05)

    def _transaction(self, connection: psycopg.Connection[Any], writer: int, choose: random.Random) -> None:
        with connection.transaction():
            self._append(connection, writer, choose)
            with connection.transaction():
                self._append(connection, writer, choose)
                if choose.random() < 0.2:
                    raise psycopg.Rollback
            if choose.random() < 0.2:
                raise psycopg.Rollback

    def _append(self, connection: psycopg.Connection[Any], writer: int, choose: random.Random) -> None:
        messages = [self._message(f"w{writer}-{choose.randrange(_KEYS)}") for _ in range(choose.choice((1, 1, 2, 5, 30)))]
        with self._lock:
            self._tried += messages
        with connection.cursor() as cursor:
            cursor.executemany("insert into written values (%s, %s)", [(one.key, number_of(one)) for one in messages])
        append_sync(connection, TOPIC, messages)

    def _produce(self, writer: int) -> None:
        asyncio.run(self._call(writer))

    async def _call(self, writer: int) -> None:
        async with Producer(self._url, TOPIC) as producer:
            await asyncio.gather(*(self._send(producer, f"p{caller}") for caller in range(self._callers)))

    async def _send(self, producer: Producer, key: str) -> None:
        while not self._stopping.is_set():
            message = self._message(key)
            try:
                await producer.send(message)
            except HeadwaterError:
                self._sent.append(Append(key, number_of(message), None))
            else:
                self._sent.append(Append(key, number_of(message), True))
            await asyncio.sleep(0.01)


def number_of(message: Message) -> int:
    payload: Any = message.json()
    return int(payload["number"])


@dataclass(slots=True)
class Members:
    """The members of a group, in processes of some on one line each, and what they wrote down."""

    url: str
    name: str
    promise: Promise
    mode: str
    directory: Path
    size: int = 2
    commit_waits: bool = True
    subscribers: int = 2
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    paths: list[Path] = field(default_factory=list)

    def __enter__(self) -> Self:
        for _ in range(self.size):
            self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self.running:
            process.kill()
            process.wait()

    def start(self) -> None:
        path = self.directory / f"{self.name}-{len(self.paths)}.jsonl"
        path.touch()
        given: dict[str, object] = {"url": self.url, "group": self.name, "path": str(path)}
        given |= {"promise": self.promise.value, "mode": self.mode, "commit_waits": self.commit_waits}
        given |= {"subscribers": self.subscribers}
        with path.with_suffix(".log").open("ab") as log:
            command = [sys.executable, "-m", "tests.topic_member", json.dumps(given)]
            self.running.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=Path(__file__).parents[1]))
        self.paths.append(path)

    def kill_one(self, choose: random.Random) -> None:
        """And start another one."""
        process = self.running.pop(choose.randrange(len(self.running)))
        process.kill()
        process.wait()
        self.start()

    def stop(self) -> None:
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(30) for process in self.running] == [0] * len(self.running), self.errors()

    def require_life(self) -> None:
        assert all(process.poll() is None for process in self.running), self.errors()

    def errors(self) -> str:
        return "\n".join(path.with_suffix(".log").read_text()[-2000:] for path in self.paths)

    def bytes_written(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def group(self, effects: Sequence[tuple[str, int]] = ()) -> Group:
        """What they got, in the order in which each did."""
        ranges = [one for path in self.paths for one in ranges_of(path)]
        return Group(self.name, self.promise, ranges, self.mode == "shared", not self.commit_waits, effects)


def ranges_of(path: Path) -> list[Range]:
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        # The last line of one that was killed may be torn.
        with suppress(ValueError):
            lines.append(json.loads(text))
    outcome = {line["committed"]: True for line in lines if "committed" in line}
    outcome |= {line["refused"]: False for line in lines if "refused" in line}
    found = []
    for line in lines:
        parts: dict[tuple[int, int], list[Entry]] = {}
        for partition, epoch, offset, key, number in line.get("messages", []):
            parts.setdefault((partition, epoch), []).append(Entry(partition, offset, key, number))
        found += [
            Range(f"{path.stem}/{line['member']}", *place, tuple(entries), outcome.get(line["got"]))
            for place, entries in parts.items()
        ]
    return found


def is_read(url: str) -> bool:
    """Whether all groups have dealt with all that was appended."""
    with suppress(psycopg.OperationalError, HeadwaterError), closing(connect_sync(url)) as connection:
        topic = find_sync(connection, TOPIC)
        return not connection.execute(_BEHIND, {"topic": topic.id}).fetchall()
    return False


def read_log(url: str) -> list[Entry]:
    with closing(connect_sync(url)) as connection:
        topic = find_sync(connection, TOPIC)
        number_sync(connection, topic)
        found: list[Message] = []
        for bounds in fetch_sync(connection, read_bounds(topic.id)):
            for row in fetch_sync(connection, read_frames(topic.id, [bounds.partition], [0], bounds.next_offset + 1)):
                found += read_messages(
                    Framed(row.count, row.codec, row.frame), row.partition, row.last_offset, row.created_at
                )
    return [Entry(one.partition or 0, one.offset or 0, str(one.key), number_of(one)) for one in found]


def effects(url: str) -> list[tuple[str, int]]:
    with closing(psycopg.connect(url)) as connection:
        return connection.execute("select key, number from effect").fetchall()
