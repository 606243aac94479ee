"""A topic with writers and groups in a story: what they did is recorded, so that the checker can judge it."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
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
from tests.support.stories.topic_history import Append, Entry, Group, Promise, Range
from tests.support.stories.topic_member import TOPIC
from tests.support.waiting import eventually

PARTITIONS = 3
# How many keys each writer has; no two writers share one.
_KEYS = 4
# What each group writes down between two faults: some 50 messages.
_SOME_BYTES = 2_000
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
                    self._stopping.wait(choose.uniform(0, 0.15))
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
            await asyncio.sleep(0.03)


def number_of(message: Message) -> int:
    payload: Any = message.json()
    return int(payload["number"])


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """A group of a story; each process has so many subscribers of it, on the line that it shares or not."""

    name: str
    promise: Promise
    mode: str = "partition"
    commit_waits: bool = True
    subscribers: int = 1
    on_line: bool = True


GROUPS = (
    GroupSettings("least", Promise.AT_LEAST_ONCE, subscribers=2),
    GroupSettings("forgetful", Promise.AT_LEAST_ONCE, commit_waits=False),
    GroupSettings("most", Promise.AT_MOST_ONCE, on_line=False),
    GroupSettings("exactly", Promise.EXACTLY_ONCE),
    GroupSettings("shared", Promise.AT_LEAST_ONCE, mode="shared", subscribers=2),
)


@dataclass(slots=True)
class Running:
    """A process: of members of every group, or a producer."""

    process: subprocess.Popen[bytes]
    program: str


@dataclass(slots=True)
class Crew:
    """Processes with members of every group each, and one with a producer, and what they wrote down."""

    url: str
    directory: Path
    seed: int = 0
    members: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def __enter__(self) -> Self:
        for _ in range(self.members):
            self.start("member")
        self.start("producer")
        return self

    def __exit__(self, *exc_info: object) -> None:
        for one in self.running:
            one.process.kill()
            one.process.wait()

    def start(self, program: str) -> None:
        name = f"{program}{len(self.names)}"
        given: dict[str, object] = {"url": self.url, "directory": str(self.directory), "name": name}
        if program == "member":
            given["seed"] = self.seed
            given["groups"] = [{**asdict(group), "promise": group.promise.value} for group in GROUPS]
        command = [sys.executable, "-m", f"tests.support.stories.topic_{program}", json.dumps(given)]
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=Path(__file__).parents[3], env={**os.environ, **self.environment}
            )
        self.running.append(Running(process, program))
        self.names.append(name)

    def kill_one(self, place: int) -> None:
        """Kill the process of members at a place, and start another one."""
        one = [one for one in self.running if one.program == "member"][place]
        one.process.kill()
        one.process.wait()
        self.replace_killed()

    def replace_killed(self) -> bool:
        """Start another one for one that was killed; whether there was such a one."""
        for one in self.running:
            assert one.process.poll() in (None, -signal.SIGKILL), self.errors()
            if one.process.returncode is not None:
                self.running.remove(one)
                self.start(one.program)
                return True
        return False

    def stop(self, program: str) -> None:
        """Stop the processes of a program in good order."""
        stopped = [one.process for one in self.running if one.program == program]
        for process in stopped:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(30) for process in stopped] == [0] * len(stopped), self.errors()

    def require_life(self) -> None:
        assert all(one.process.poll() is None for one in self.running), self.errors()

    def errors(self) -> str:
        return "\n".join((self.directory / f"{name}.log").read_text()[-2000:] for name in self.names)

    def wait_for_more(self) -> None:
        """Until every group has written down some more messages, and all processes live."""
        wanted = {group.name: self._bytes_written(group) + _SOME_BYTES for group in GROUPS}

        def has_more(group: GroupSettings) -> bool:
            self.require_life()
            return self._bytes_written(group) > wanted[group.name]

        for group in GROUPS:
            eventually(partial(has_more, group), seconds=60)

    def groups(self, effects: Sequence[tuple[str, int]], cuts: int) -> list[Group]:
        """What the members of each group got, in the order in which each did, and how many commits may be in doubt.

        Of each member it is the one that is under way when all connections are cut.
        """
        return [
            Group(
                group.name,
                group.promise,
                [one for path in self._paths(group) for one in ranges_of(path)],
                group.mode == "shared",
                not group.commit_waits,
                effects,
                cuts * self.members * group.subscribers,
            )
            for group in GROUPS
        ]

    def appends(self) -> list[Append]:
        """What producers sent; they do not know of what was not answered."""
        known: dict[tuple[str, int], bool | None] = {}
        for name in self.names:
            for what, key, number in lines_of(self.directory / f"{name}.jsonl"):
                known[key, number] = True if what == "sent" else None
        return [Append(key, number, is_committed) for (key, number), is_committed in known.items()]

    def _paths(self, group: GroupSettings) -> list[Path]:
        return [self.directory / f"{name}-{group.name}.jsonl" for name in self.names]

    def _bytes_written(self, group: GroupSettings) -> int:
        return sum(path.stat().st_size for path in self._paths(group) if path.exists())


def lines_of(path: Path) -> Iterator[Any]:
    """The lines of a file, if there is one; the last one of a process that was killed may be torn."""
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with suppress(ValueError):
            yield json.loads(text)


def ranges_of(path: Path) -> list[Range]:
    lines = list(lines_of(path))
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
