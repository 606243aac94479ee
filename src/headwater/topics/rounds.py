"""Round trips for the members of a group on one line: what they ask for while one is under way goes out with the next."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol, TypeVar

import psycopg

from headwater.errors import LeaseLost, TopicError
from headwater.postgres.session import persist
from headwater.postgres.statements import Statement
from headwater.topics import group_statements
from headwater.topics.group_statements import Polled
from headwater.topics.statements import LogRow
from headwater.topics.window import Part

Row = TypeVar("Row")

# What one round brings, but for frames that are larger than their share: enough that its round trip does not count, and
# little enough that nobody waits long for another's.
_ROUND_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Ask:
    """What a member wants: messages from some offsets on, so many and so many bytes of each partition, and a commit."""

    offsets: Mapping[int, int] = field(default_factory=dict)
    most: int = 0
    most_bytes: int = 0
    settled: Sequence[Part] = ()
    # Whether the commit waits for the disk.
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """How the group is, and the frames that were asked for."""

    generation: int
    is_paused: bool
    has_staged: bool
    frames: Sequence[LogRow]
    # Whether there may be more than these, for they were too large.
    is_cut: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    ask: Ask
    answer: "asyncio.Future[Answer | None]"


class Runner(Protocol):
    """Who runs statements."""

    async def fetch(self, statement: Statement[Row]) -> list[Row]: ...


class Rounds:
    """One round at a time. An ask that may not or cannot be met at once holds up or harms nobody else's."""

    def __init__(self, line: Runner, topic_id: int, group_id: int) -> None:
        self._line, self._topic_id, self._group_id = line, topic_id, group_id
        self._waiting: list[_Asked] = []
        self._task: asyncio.Task[None] | None = None
        # Of those who are asked for alone.
        self._alone: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def ask(self, ask: Ask) -> Answer | None:
        """What was asked for, when it is committed; None if the group is gone. A commit that comes too late is LeaseLost."""
        if self._is_closed:
            raise closed()
        answer = asyncio.get_running_loop().create_future()
        self._waiting.append(_Asked(ask, answer))
        # One that was cancelled before it began has not said that it is gone.
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name=f"rounds of group {self._group_id}")
        found: Answer | None = await answer
        return found

    async def insist(self, ask: Ask, within: timedelta) -> Answer | None:
        """The same until the server answers: a commit may come twice."""
        until = time.monotonic() + within.total_seconds()

        def attempt(_failures: int) -> Awaitable[Answer | None]:
            return self.ask(ask)

        return await persist(attempt, lambda: until, "headwater subscriber")

    async def drain(self, seconds: float) -> None:
        """Take no more, and have what was asked for come to its end, for so long."""
        self._is_closed = True
        if tasks := self._tasks:
            await asyncio.wait(tasks, timeout=seconds)

    async def close(self) -> None:
        """End what is under way; who still waits for it gets TopicError."""
        self._is_closed = True
        tasks = self._tasks
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _fail(self._waiting, closed())

    @property
    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._alone, *([self._task] if self._task is not None else [])]

    async def _run(self) -> None:
        try:
            while self._waiting:
                asked, self._waiting = [one for one in self._waiting if not one.answer.done()], []
                if asked:
                    await self._round(asked)
                # Those who were answered, and are done with it at once, ask again in time for the next one.
                await asyncio.sleep(0)
        finally:
            self._task = None

    async def _round(self, asked: Sequence[_Asked], *, waits_for_others: bool = False) -> None:
        try:
            answers = await self._answers([one.ask for one in asked], waits_for_others=waits_for_others)
        except asyncio.CancelledError:
            _fail(asked, closed())
            raise
        except Exception as exc:  # noqa: BLE001 - it is for those who have asked
            settling = [one for one in asked if one.ask.settled]
            if waits_for_others or not settling or not (isinstance(exc, LeaseLost) or _is_busy(exc)):
                _fail(asked, exc)
                return
            # Those who only read have nothing to do with it.
            self._waiting[:0] = [one for one in asked if not one.ask.settled]
            if isinstance(exc, LeaseLost) and len(settling) == 1:
                _fail(settling, exc)
                return
            # Whose commit is refused, or has to wait for a transaction of an application, is not known: each by itself.
            for one in settling:
                self._ask_alone(one)
        else:
            for one, answer in zip(asked, answers, strict=True):
                if not one.answer.done():
                    one.answer.set_result(answer)

    def _ask_alone(self, one: _Asked) -> None:
        task = asyncio.create_task(self._round([one], waits_for_others=True), name=f"ask of group {self._group_id}")
        self._alone.add(task)
        task.add_done_callback(self._alone.discard)

    async def _answers(self, asks: Sequence[Ask], *, waits_for_others: bool) -> list[Answer | None]:
        partitions = sum(len(ask.offsets) for ask in asks)
        limit = _ROUND_BYTES // max(1, partitions)
        wanted = [
            (place, partition, offset, ask.most, min(ask.most_bytes, limit))
            for place, ask in enumerate(asks)
            for partition, offset in ask.offsets.items()
        ]
        rows = await self._line.fetch(
            group_statements.poll(
                self._topic_id,
                self._group_id,
                wanted,
                # In one order by all, as far as that goes, so that no two wait for each other.
                sorted((part for ask in asks for part in ask.settled), key=lambda part: part.partition),
                waits=any(ask.waits for ask in asks),
                waits_for_others=waits_for_others,
            )
        )
        return _shares(rows, [min(ask.most_bytes, limit) for ask in asks])


def _shares(rows: Sequence[Polled], limits: Sequence[int]) -> list[Answer | None]:
    """What is whose, of as many bytes from a partition at the most. Pure."""
    if not rows:
        return [None] * len(limits)
    frames: list[list[LogRow]] = [[] for _ in limits]
    sizes: Counter[tuple[int, int]] = Counter()
    for row in rows:
        if row.ask is not None:
            frames[row.ask].append(LogRow(row.partition, row.last_offset, row.count, row.codec, row.created_at, row.frame))
            sizes[row.ask, row.partition] += len(row.frame)
    cut = {ask for (ask, _), size in sizes.items() if size >= limits[ask]}
    head = rows[0]
    return [Answer(head.generation, head.is_paused, head.has_staged, one, ask in cut) for ask, one in enumerate(frames)]


def closed() -> TopicError:
    return TopicError(
        "the subscriber, or its line, is closed; open another one, and close a line after the subscribers that use it"
    )


def _fail(asked: Sequence[_Asked], error: Exception) -> None:
    for one in asked:
        if not one.answer.done():
            one.answer.set_exception(error)
            # Asked for here, so that nobody is blamed for not asking who was cancelled in the same moment.
            one.answer.exception()


def _is_busy(error: Exception) -> bool:
    """Whether a lock was not to be had in time."""
    return isinstance(error.__cause__, psycopg.errors.LockNotAvailable)
