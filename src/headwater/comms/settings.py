"""How e-mails are sent, and what the API takes: plain values, checked when they are made."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from headwater.comms.address import parse_address
from headwater.comms.breaker import LONGEST_PAUSE
from headwater.comms.submit import QUEUE
from headwater.errors import SettingsError
from headwater.model.settings import find_strangers, find_too_small
from headwater.queue import FullJitter, WorkerSettings
from headwater.queue.job import queue_fault

# That an attachment is in use is noted once a day.
_LEAST_KEPT: Final = timedelta(days=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSettings:
    """How a consumer works.

    At most `concurrency` messages are on their way at once, each over a connection of its own, and `rate` a second of this
    process; an attempt may take `within`. One that failed in passing is tried again up to `attempts` times, after some part
    of a time that doubles from `retry_first` to `retry_longest`. What was tried is on record for `keep`, and so long are
    attachments kept, but those of a message that may be sent yet with it; finished jobs, of all queues, are for `keep_done`.
    """

    sender: str | None = None
    queue: str = QUEUE
    concurrency: int = 8
    rate: float | None = None
    within: timedelta = timedelta(minutes=2)
    # With the times between them for most of a day, which a provider may be away for.
    attempts: int = 50
    retry_first: timedelta = timedelta(seconds=10)
    retry_longest: timedelta = timedelta(hours=1)
    lease: timedelta = timedelta(seconds=30)
    poll: timedelta = timedelta(seconds=1)
    stop_within: timedelta = timedelta(seconds=30)
    answer_within: timedelta = timedelta(seconds=30)
    keep: timedelta = timedelta(days=30)
    keep_done: timedelta = timedelta(days=7)

    def __post_init__(self) -> None:
        faults = [*find_strangers(self, "sending")] or [*find_too_small(self, "sending", {"keep": _LEAST_KEPT})]
        if self.rate is not None and not 0.001 <= self.rate <= 1_000_000:
            faults.append("rate of sending must be from 0.001 to 1,000,000 messages per second")
        if self.retry_longest < self.retry_first:
            faults.append(
                "retry_longest of sending is shorter than retry_first; give it the longest time between two attempts"
            )
        if faults:
            raise SettingsError(*faults)
        check_sender(self.sender)
        check_queue(self.queue)

    @property
    def policy(self) -> FullJitter:
        return FullJitter(base=self.retry_first, most=self.attempts, longest=self.retry_longest)

    @property
    def worker(self) -> WorkerSettings:
        return WorkerSettings(
            concurrency=self.concurrency,
            lease=self.lease,
            poll=self.poll,
            stop_within=self.stop_within,
            answer_within=self.answer_within,
            keep_done=self.keep_done,
            # A provider is slow, so that what is claimed ahead waits; others may have it meanwhile.
            claim_most=self.concurrency,
        )

    @property
    def longest(self) -> timedelta:
        """What a job may take in all: its turn, a pause of the provider, the sending, and its record."""
        turn = timedelta(seconds=self.concurrency / self.rate if self.rate else 0)
        return turn + LONGEST_PAUSE + self.within + 4 * self.answer_within


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """What a producer takes, and from whom: with a `token`, only from those who have it."""

    sender: str | None = None
    queue: str = QUEUE
    token: str | None = field(default=None, repr=False)
    max_messages: int = 20_000
    max_bytes: int = 32 * 1024 * 1024
    connections: int = 4
    answer_within: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        faults = [*find_strangers(self, "the API")] or [*find_too_small(self, "the API")]
        if self.token is not None and (
            len(self.token) < 16 or not self.token.isascii() or self.token.split() != [self.token]
        ):
            faults.append("the token of the API must have at least 16 characters, of ASCII and without spaces")
        if faults:
            raise SettingsError(*faults)
        check_sender(self.sender)
        check_queue(self.queue)


def check_sender(sender: str | None) -> None:
    """Raise SettingsError for what is no address that messages can come from if they name none."""
    try:
        if sender is not None:
            parse_address(sender)
    except ValueError as exc:
        raise SettingsError(f"the address that messages are from {exc}") from exc


def check_queue(name: str) -> None:
    """Raise SettingsError for what is no name of a queue."""
    if fault := queue_fault(name):
        raise SettingsError(fault)
