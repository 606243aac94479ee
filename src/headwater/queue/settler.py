"""Outcomes are written together: so many at a time, or after a moment. Until then a crash may have jobs done again."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, assert_never

from headwater import failpoints
from headwater.errors import HeadwaterError
from headwater.postgres.statements import Statement
from headwater.queue import work_statements
from headwater.queue.counts import Counts
from headwater.queue.held import Held, Holding
from headwater.queue.job import Job
from headwater.queue.outcome import Finished, GivenUp, Postponed, Released, Settlement
from headwater.queue.session import QueueSession
from headwater.queue.settings import WorkerSettings
from headwater.queue.tracing import JobSpan

_log = logging.getLogger(__name__)

# What is not written for so many leases is not this worker's any more, and nobody should wait for it.
_LEASES: Final = 2


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a job, and is to be written."""

    holding: Holding
    settlement: Settlement
    span: JobSpan | None = None


class Settler:
    """Given outcomes by the lanes; `on_written` hears when some are, and in how many seconds a job comes again."""

    def __init__(
        self,
        session: QueueSession,
        held: Held,
        counts: Counts,
        settings: WorkerSettings,
        on_written: Callable[[float | None], None],
    ) -> None:
        self._session, self._held, self._counts, self._settings = session, held, counts, settings
        self._on_written = on_written
        self._pending: list[Settled] = []
        self._arrived, self._filled = asyncio.Event(), asyncio.Event()
        self._is_closing = False

    def put(self, settled: Settled) -> None:
        self._pending.append(settled)
        self._arrived.set()
        if len(self._pending) >= self._settings.settle_most:
            self._filled.set()

    async def run(self) -> None:
        """Write for ever; after `close`, until all is written."""
        while self._pending or not self._is_closing:
            if not self._pending:
                self._arrived.clear()
                await self._arrived.wait()
                continue
            await self._linger()
            most = self._settings.settle_most
            batch, self._pending = self._pending[:most], self._pending[most:]
            self._filled.clear()
            failpoints.hit("queue.handled")
            await self._write(batch)

    def close(self) -> None:
        self._is_closing = True
        self._arrived.set()
        self._filled.set()

    async def _linger(self) -> None:
        if not self._is_closing and len(self._pending) < self._settings.settle_most:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._filled.wait(), self._settings.settle_after.total_seconds())

    async def _write(self, batch: Sequence[Settled]) -> None:
        for chosen in _grouped(batch):
            await self._write_or_say(chosen)
        for one in batch:
            self._held.remove(one.holding)
        waits = [one.settlement.wait.total_seconds() for one in batch if isinstance(one.settlement, Postponed)]
        self._on_written(min(waits, default=None))

    async def _write_or_say(self, batch: Sequence[Settled]) -> None:
        try:
            await self._write_alike(batch)
        except HeadwaterError as exc:
            if len(batch) > 1 and not exc.retryable:
                # One of them is refused, and that is not the others' fault.
                for one in batch:
                    await self._write_or_say([one])
                return
            # They are others' when their leases end.
            _log.error("outcomes of up to %d jobs could not be written, and these are done again: %s", len(batch), exc)

    async def _write_alike(self, batch: Sequence[Settled]) -> None:
        began = time.time_ns()
        first, again = (_statement(batch, is_again=is_again) for is_again in (False, True))
        ours = set(await self._session.insist(first, self._settings.lease * _LEASES, again))
        ended, now = time.time_ns(), datetime.now(UTC)
        for one in batch:
            is_ours = one.holding.job.id in ours
            if one.span is not None:
                one.span.marked(began, ended, is_ours=is_ours)
            if is_ours:
                self._count(one, now)
            else:
                self._suspect(one)

    def _count(self, settled: Settled, now: datetime) -> None:
        counts = self._counts
        match settled.settlement:
            case Finished("done"):
                counts.done += 1
                self._time(settled.holding.job, now)
            case Finished():
                counts.cancelled += 1
            case GivenUp(error, error_class):
                counts.dead += 1
                self._say_given_up(settled.holding, f"{error_class}: {error}")
            case Postponed():
                counts.retried += 1
            case Released():
                counts.released += 1
            case other:
                assert_never(other)

    def _say_given_up(self, holding: Holding, reason: str) -> None:
        job = holding.job
        _log.error(
            "job %d of kind %s is given up in attempt %d: %s; `headwater queue show %d` has it, and `retry` tries it again",
            job.id,
            job.kind,
            job.attempt,
            reason,
            job.id,
            extra={"job": job.id, "kind": job.kind, "attempt": job.attempt},
        )

    def _time(self, job: Job, now: datetime) -> None:
        self._counts.claim_to_done.note(max(0.0, (now - job.claimed_at).total_seconds()))
        self._counts.schedule_to_done.note(max(0.0, (now - max(job.run_at, job.created_at)).total_seconds()))

    def _suspect(self, settled: Settled) -> None:
        if isinstance(settled.settlement, Released):
            return
        job = settled.holding.job
        self._counts.suspected_duplicates += 1
        _log.warning(
            "the outcome of job %d of kind %s is refused: another worker has it, or has settled it; it may be done twice",
            job.id,
            job.kind,
            extra={"job": job.id, "kind": job.kind},
        )


def _grouped(batch: Sequence[Settled]) -> list[list[Settled]]:
    """Those that one statement writes, together."""
    groups: dict[object, list[Settled]] = {}
    for one in batch:
        settlement = one.settlement
        groups.setdefault(settlement if isinstance(settlement, Finished) else type(settlement), []).append(one)
    return list(groups.values())


def _statement(batch: Sequence[Settled], *, is_again: bool) -> Statement[int]:
    jobs = [one.holding.job for one in batch]
    settlements = [one.settlement for one in batch]
    match settlements[0]:
        case Finished(outcome):
            return work_statements.finish(jobs, outcome, is_again=is_again)
        case Released():
            return work_statements.release(jobs, is_again=is_again)
        case GivenUp():
            given_up = [one for one in settlements if isinstance(one, GivenUp)]
            errors, classes = [one.error for one in given_up], [one.error_class for one in given_up]
            return work_statements.give_up(jobs, errors, classes, is_again=is_again)
        case Postponed():
            postponed = [one for one in settlements if isinstance(one, Postponed)]
            errors, classes = [one.error for one in postponed], [one.error_class for one in postponed]
            waits, counts = [one.wait for one in postponed], [one.counts for one in postponed]
            return work_statements.postpone(jobs, waits, errors, classes, counts=counts, is_again=is_again)
        case other:
            assert_never(other)
