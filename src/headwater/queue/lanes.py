"""Doing jobs: so many at once, each by its handler and within its time; what becomes of each is handed on."""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Final, cast

from headwater import failpoints
from headwater.errors import JobError
from headwater.queue.counts import Counts
from headwater.queue.handler import Handler
from headwater.queue.held import Holding
from headwater.queue.job import Job, Unreadable
from headwater.queue.outcome import (
    Discard,
    Done,
    Finished,
    GivenUp,
    Postponed,
    Released,
    Retry,
    Settlement,
    cut,
)
from headwater.queue.pace import Pace
from headwater.queue.settler import Settled
from headwater.queue.tracing import JobSpan

_log = logging.getLogger(__name__)

# Handlers that never wait let others have their turn after so many.
_IN_A_ROW: Final = 50
# For handlers that are stopped to clean up.
_END_SECONDS: Final = 5.0
# No job is put off for longer: a database knows some thousand years, and no more.
_LONGEST: Final = timedelta(days=36_500)
# Of a job whose lease has ended so often it is written down that it is begun; and after so many it is given up.
_SUSPECT: Final = 3
_MOST_LOST: Final = 5
# A handler that blocks the event loop is given so much time over its own before others may have its job.
_GRACE: Final = timedelta(seconds=5)


class Lanes:
    """Jobs wait here until one of the lanes is free; `on_room` hears that fewer wait."""

    def __init__(  # noqa: PLR0913 - what it is given, and whom it tells
        self,
        handlers: Mapping[str, Handler],
        pace: Pace,
        counts: Counts,
        settle: Callable[[Settled], None],
        on_room: Callable[[], None],
        note_begin: Callable[[Job], Awaitable[None]],
    ) -> None:
        self._handlers, self._pace, self._counts = handlers, pace, counts
        self._settle, self._on_room, self._note_begin = settle, on_room, note_begin
        self._waiting: deque[Holding] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> int:
        """How many lanes have nothing to do."""
        return len(self._idle)

    def open(self, concurrency: int) -> None:
        self._tasks = {asyncio.create_task(self._lane(), name=f"queue lane {place}") for place in range(concurrency)}

    def add(self, holdings: Iterable[Holding]) -> None:
        if self._is_closing:
            self._release(holdings)
            return
        self._waiting.extend(holdings)
        if self._waiting:
            failpoints.hit("queue.claimed")
        self._counts.waiting = len(self._waiting)
        for _ in range(min(len(self._waiting), len(self._idle))):
            self._wake()

    def drop(self, holding: Holding) -> bool:
        """Take out one that waits; whether it did."""
        try:
            self._waiting.remove(holding)
        except ValueError:
            return False
        self._counts.waiting = len(self._waiting)
        self._on_room()
        return True

    def refuse(self) -> None:
        """Begin none that waits, or comes from now on."""
        self._is_closing = True
        waiting, self._waiting = self._waiting, deque()
        self._counts.waiting = 0
        self._release(waiting)
        while self._idle:
            self._wake()

    async def close(self, seconds: float) -> None:
        """See those in hand through, for so long; after that they are stopped."""
        self.refuse()
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=seconds)
            if pending:
                _log.warning("%d jobs were stopped after %.1f s; they are tried again", len(pending), seconds)
            for task in pending:
                task.cancel()
            # A handler may take no notice of it, and nobody waits for it for ever.
            await asyncio.wait(self._tasks, timeout=_END_SECONDS)

    def _release(self, holdings: Iterable[Holding]) -> None:
        for holding in holdings:
            self._settle(Settled(holding, Released()))

    def _wake(self) -> None:
        future = self._idle.popleft()
        if not future.done():
            future.set_result(None)

    async def _lane(self) -> None:
        in_a_row = 0
        while True:
            while not self._waiting:
                if self._is_closing:
                    return
                in_a_row = 0
                future = asyncio.get_running_loop().create_future()
                self._idle.append(future)
                self._on_room()
                await future
            holding = self._waiting.popleft()
            self._counts.waiting = len(self._waiting)
            self._on_room()
            await self._work(holding)
            in_a_row += 1
            if in_a_row % _IN_A_ROW == 0:
                await asyncio.sleep(0)

    async def _work(self, holding: Holding) -> None:
        job, now = holding.job, time.monotonic()
        if not holding.is_ours(now):
            self._settle(Settled(holding, Released()))
            return
        handler = self._handlers[job.kind]
        span = JobSpan.begin(job)
        holding.began_at, holding.ends_at = now, now + (handler.timeout + _GRACE).total_seconds()
        task = holding.task = cast("asyncio.Task[None]", asyncio.current_task())
        self._counts.running += 1
        try:
            settlement = await self._outcome(holding, handler, span)
        except Exception as exc:  # noqa: BLE001 - a policy is the application's, and the lane goes on
            _log.exception("what becomes of job %d could not be told by the policy of its handler", job.id)
            settlement = GivenUp(cut(f"the policy of its handler failed: {_said(repr, exc)}"), type(exc).__name__)
        finally:
            holding.task = None
            self._counts.running -= 1
            # That a handler was stopped, and took no notice of it, is nothing to the next one.
            while task.cancelling():
                task.uncancel()
        self._pace.note(time.monotonic())
        if span is not None:
            span.processed(settlement)
        self._settle(Settled(holding, settlement, span))

    async def _outcome(self, holding: Holding, handler: Handler, span: JobSpan | None) -> Settlement:
        job = holding.job
        if job.is_cancelled or holding.is_cancelled:
            return Finished("cancelled")
        if isinstance(job.payload, Unreadable):
            return GivenUp(cut(f"its payload cannot be read: {job.payload.error}"), job.payload.error_class)
        if job.lost >= _MOST_LOST:
            return GivenUp(
                f"begun {job.lost} times and not settled: each time its worker died, or stalled for a lease", "LeaseLost"
            )
        limit = asyncio.timeout(handler.timeout.total_seconds())
        try:
            if job.lost >= _SUSPECT:
                await self._note_begin(job)
            async with limit:
                answer = await (handler.function(job) if span is None else span.within(handler.function, job))
        except asyncio.CancelledError as exc:
            return self._interrupted(holding, handler, exc)
        except TimeoutError as exc:
            if not limit.expired():
                return self._failed(holding, handler, exc)
            self._counts.timeouts += 1
            late = TimeoutError(f"took longer than {handler.timeout.total_seconds():g} s")
            return self._failed(holding, handler, late, "Timeout")
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - whatever it is, it is this job's
            return self._failed(holding, handler, exc)
        self._say_late(holding, handler)
        return self._answered(holding, handler, answer)

    def _say_late(self, holding: Holding, handler: Handler) -> None:
        """Of one that could not be stopped in time, since it let nobody else have a turn."""
        job, began_at = holding.job, holding.began_at or time.monotonic()
        if (seconds := time.monotonic() - began_at) > handler.timeout.total_seconds():
            _log.warning(
                "job %d of kind %s took %.1f s, and may take %g: its handler blocks the event loop, or takes no notice of "
                "being stopped; wrap what blocks in asyncio.to_thread",
                job.id,
                job.kind,
                seconds,
                handler.timeout.total_seconds(),
                extra={"job": job.id, "kind": job.kind},
            )

    def _interrupted(self, holding: Holding, handler: Handler, error: asyncio.CancelledError) -> Settlement:
        """The handler was stopped: because the job is cancelled, or another's, or because the worker ends."""
        if holding.is_cancelled or holding.is_lost:
            return Finished("cancelled")
        if not cast("asyncio.Task[None]", asyncio.current_task()).cancelling():
            # It has waited for something of its own that was cancelled.
            return self._failed(holding, handler, error)
        return Postponed(timedelta(0), "its worker was stopped before it was done", "Stopped", counts=False)

    def _answered(self, holding: Holding, handler: Handler, answer: object) -> Settlement:
        match answer:
            case None | Done():
                return Finished()
            case Discard(reason):
                self._counts.failed += 1
                return GivenUp(cut(_said(str, reason)), "Discard")
            case Retry():
                reason = _said(str, answer.reason) or "the handler asked for another try"
                return self._again(holding, handler, answer.wait, reason, "Retry")
            case _:
                given = _said(repr, answer)
                wrong = JobError(
                    f"the handler of {handler.kind!r} returned {given}; return Done(), Retry(), Discard() or None"
                )
                return self._failed(holding, handler, wrong)

    def _failed(
        self, holding: Holding, handler: Handler, error: BaseException, error_class: str | None = None
    ) -> Settlement:
        job = holding.job
        facts = {"job": job.id, "kind": job.kind, "attempt": job.attempt}
        said = _said(repr, error)
        # Where it came from is for whoever wrote the handler; what we say ourselves comes from nowhere, and what has no
        # text would fail again in whatever formats the log.
        origin = error if error.__traceback__ is not None and _text(str, error) is not None else None
        message = "job %d of kind %s failed in attempt %d: %s"
        _log.warning(message, job.id, job.kind, job.attempt, said, exc_info=origin, extra=facts)
        return self._again(holding, handler, None, _said(str, error), error_class or type(error).__name__)

    def _again(self, holding: Holding, handler: Handler, wait: timedelta | None, error: str, error_class: str) -> Settlement:
        self._counts.failed += 1
        # What ended with its worker is no failure of the job.
        by_policy = handler.retry.wait(holding.job.attempt - holding.job.unsettled, random.random())
        if by_policy is None:
            return GivenUp(cut(error), error_class)
        return Postponed(min(by_policy if wait is None else wait, _LONGEST), cut(error), error_class)


def _said(say: Callable[[object], str], value: object) -> str:
    """What a value of the application says of itself, or that it cannot."""
    text = _text(say, value)
    return f"a {type(value).__name__} that cannot be shown" if text is None else text


def _text(say: Callable[[object], str], value: object) -> str | None:
    try:
        return say(value)
    except Exception:  # noqa: BLE001 - whatever it is, there is no text
        return None
