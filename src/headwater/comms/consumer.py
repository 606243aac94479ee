"""Sending: a worker of the queue whose jobs are messages, each taken to a provider and put on record.

What is for good is put aside with the reason, where `headwater queue` shows it; what passes is tried again by the policy.
Whoever has the message by an earlier attempt, or was refused for good, is left out.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never
from uuid import uuid4

from pydantic import ValidationError

from headwater.comms.address import Address, parse_address
from headwater.comms.audit import Audit
from headwater.comms.breaker import Breaker
from headwater.comms.bucket import Limiter
from headwater.comms.faults import sentence
from headwater.comms.message import Email
from headwater.comms.mime import Letter, stable_id
from headwater.comms.outcome import Outcome, Refused, Sender, Verdict, cut, join_past, judge, permanent, transient
from headwater.comms.pack import unpack, wanted_of
from headwater.comms.session import Sessions
from headwater.comms.settings import SendSettings
from headwater.comms.statements import KIND, Attempt, find_contents
from headwater.comms.tracing import traced
from headwater.comms.upkeep import Upkeep
from headwater.errors import HeadwaterError
from headwater.queue import Discard, Done, Job, Retry, Worker

_log = logging.getLogger(__name__)

# A provider that says "at once" has failed a moment ago.
_SHORTEST = timedelta(seconds=1)
# As long as a server that is restarted takes.
_INSIST = timedelta(seconds=30)
_CUT_OFF = "was cut off while the message was sent, and the provider may have it"


@dataclass(slots=True)
class Counts:
    """What became of attempts, since the beginning."""

    verdicts: dict[Verdict, int] = field(default_factory=lambda: dict.fromkeys(Verdict, 0))
    # Messages that were on record as sent, so that they were not sent again.
    spared: int = 0
    # Attempts that could not be put on record.
    unrecorded: int = 0


class Consumer:
    """Sends the messages of a queue by one sender, until it is stopped.

    It hears of new ones at `listen_url`, if `url` leads to a pooler, where nobody can listen.
    """

    def __init__(
        self, url: str, sender: Sender, settings: SendSettings | None = None, listen_url: str | None = None
    ) -> None:
        self._url, self._listen_url, self._sender = url, listen_url, sender
        self._settings = settings or SendSettings()
        self._audit = Audit(url, self._settings.answer_within)
        # One for all: attachments are large, and one at a time is quick enough.
        self._sessions = Sessions(url, 1, self._settings.answer_within)
        self._limiter = Limiter(self._settings.rate)
        self._breaker = Breaker()
        self._late: set[asyncio.Task[None]] = set()
        self._pausing: set[asyncio.Task[Any]] = set()
        self._is_stopping = False
        self.counts = Counts()
        self.worker = Worker(queues=[self._settings.queue], settings=self._settings.worker)
        self.worker.handler(KIND, timeout=self._settings.longest, retry=self._settings.policy)(self.handle)

    async def run(self) -> None:
        """Until `stop`: what is on its way is finished then, and the rest is left to others."""
        try:
            async with Upkeep(self._url, self._settings.keep, self._settings.answer_within):
                await self.worker.run(self._url, self._listen_url)
        finally:
            await self.close()

    def stop(self) -> None:
        self._is_stopping = True
        for task in self._pausing:
            task.cancel()
        self.worker.stop()

    async def close(self) -> None:
        await asyncio.gather(*self._late, return_exceptions=True)
        await self._audit.close()
        await self._sessions.close()
        await self._sender.close()

    async def handle(self, job: Job) -> Done | Retry | Discard:
        """One attempt at one message."""
        try:
            letter = letter_of(job, self._settings.sender, await self._contents(job))
        except ValueError as exc:
            refused = permanent(f"the message cannot be sent as it is: {exc}")
            await self._record(_noted(job, "", self._sender.name, refused, datetime.now(UTC), 0.0))
            return Discard(refused.response)
        past = await self._audit.past(job.id, job.attempt)
        missing = tuple(one for one in letter.recipients if one.address not in past.accepted)
        if not missing:
            self.counts.spared += 1
            _log.warning("e-mail %d was sent before, by an attempt whose end was lost; it is not sent again", job.id)
            return Done()
        hopeless = {one.address for one in past.refused}
        offered = tuple(one for one in missing if one.address not in hopeless)
        if not offered:
            # Of two attempts at once each may have heard it of some.
            return Discard(str(judge(tuple(sorted(past.accepted)), past.refused, None, "")))
        await self._turn()
        part = Letter(letter.id, letter.email, letter.sender, offered, letter.created_at)
        return _next(await self._attempt(job, part, past.refused))

    async def _turn(self) -> None:
        """Wait until a message may be sent: by the rate, and because the provider is there."""
        try:
            await self._pause(self._limiter.reserve())
        except asyncio.CancelledError:
            self._limiter.give_back()
            raise
        await self._pause(self._breaker.wait(time.monotonic()))

    async def _pause(self, seconds: float) -> None:
        """Wait with a message that is not begun; when the consumer is stopped, it is left to others at once."""
        task = asyncio.current_task()
        if seconds <= 0 or task is None:
            return
        self._pausing.add(task)
        try:
            if self._is_stopping:
                task.cancel()
            await asyncio.sleep(seconds)
        finally:
            self._pausing.discard(task)

    async def _contents(self, job: Job) -> dict[str, bytes]:
        """What is attached to a message, by digest."""
        if not (wanted := wanted_of(job.payload)):
            return {}
        async with self._sessions.one() as session:
            return {one.digest: one.content for one in await session.insist(find_contents(wanted), _INSIST)}

    async def _attempt(self, job: Job, letter: Letter, refused: tuple[Refused, ...]) -> Outcome:
        """What becomes of it names those who were `refused` before, too."""
        at, began = datetime.now(UTC), time.monotonic()

        def noted(outcome: Outcome) -> Attempt:
            return _noted(job, letter.message_id, self._sender.name, outcome, at, time.monotonic() - began)

        try:
            outcome = await traced(self._sender.name, lambda: self._send(letter))
        except asyncio.CancelledError:
            self._record_late(noted, transient(f"the attempt {_CUT_OFF}"))
            raise
        self._breaker.note(outcome, time.monotonic())
        outcome = join_past(outcome, refused)
        await self._record(noted(outcome))
        return outcome

    async def _send(self, letter: Letter) -> Outcome:
        within = self._settings.within
        try:
            async with asyncio.timeout(within.total_seconds()):
                return await self._sender.send(letter)
        except TimeoutError:
            return transient(f"{self._sender.name} was not done within {within.total_seconds():g} s, and may have it")
        except ValueError as exc:
            return permanent(f"the message cannot be sent as it is: {exc}")
        except Exception as exc:  # noqa: BLE001 - also what nobody has thought of is an attempt, and on record
            _log.exception("the sender %s failed in a way that it should not", self._sender.name)
            return transient(f"{self._sender.name} failed: {cut(repr(exc))}")

    async def _record(self, attempt: Attempt) -> None:
        self.counts.verdicts[attempt.outcome.verdict] += 1
        try:
            await self._audit.note(attempt)
        except HeadwaterError as exc:
            # What was sent is sent: the job is settled, and not tried again for the sake of its record.
            self.counts.unrecorded += 1
            _log.error(
                "e-mail %d: attempt %d, which was %s, is not on record: %s",
                attempt.job_id,
                attempt.attempt,
                attempt.outcome.verdict,
                exc,
            )

    def _record_late(self, noted: Callable[[Outcome], Attempt], outcome: Outcome) -> None:
        """One who is cancelled does not wait."""
        task = asyncio.create_task(self._record(noted(outcome)))
        self._late.add(task)
        task.add_done_callback(self._late.discard)


def letter_of(job: Job, default_sender: str | None, contents: Mapping[str, bytes]) -> Letter:
    """The message of a job, to all of its recipients; raises ValueError for what is none."""
    try:
        email: Email = unpack(job.payload, contents)
    except ValidationError as exc:
        raise ValueError(sentence(exc)) from exc
    written = email.sender or default_sender
    if written is None:
        raise ValueError("from: is missing, and the service has none of its own; give one, or set `from` in its file")
    sender: Address = parse_address(written)
    return Letter(stable_id(job.id, job.created_at, sender.domain), email, sender, email.recipients, job.created_at)


def _next(outcome: Outcome) -> Done | Retry | Discard:
    match outcome.verdict:
        case Verdict.SENT:
            return Done()
        case Verdict.TRANSIENT:
            return Retry(after=_wait(outcome.retry_after), reason=str(outcome))
        case Verdict.PERMANENT:
            return Discard(str(outcome))
        case _:
            assert_never(outcome.verdict)


def _wait(asked: timedelta | None) -> timedelta | None:
    """As long as the provider wants, but not nothing; if it does not say, the policy knows."""
    return None if asked is None else max(asked, _SHORTEST)


def _noted(job: Job, message_id: str, sender: str, outcome: Outcome, at: datetime, seconds: float) -> Attempt:  # noqa: PLR0913 - its columns
    return Attempt(uuid4(), job.id, job.attempt, at, timedelta(seconds=seconds), sender, message_id, outcome)
