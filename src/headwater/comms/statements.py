"""The SQL of e-mails: statements with their parameters and rows named."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from psycopg import sql

from headwater.comms.outcome import Outcome
from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.comms")

# The kind of the jobs.
KIND: Final = "email"


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt to send a message, and what became of it."""

    id: UUID
    job_id: int
    attempt: int
    at: datetime
    took: timedelta
    sender: str
    message_id: str
    outcome: Outcome

    def plain(self) -> dict[str, Any]:
        outcome = self.outcome
        return {
            "id": str(self.id),
            "job_id": self.job_id,
            "attempt": self.attempt,
            "at": self.at.isoformat(),
            "took_seconds": self.took.total_seconds(),
            "sender": self.sender,
            "message_id": self.message_id,
            "outcome": outcome.verdict,
            "code": outcome.code,
            "response": outcome.response,
            "accepted": outcome.accepted,
            "refused": [asdict(one) for one in outcome.refused],
        }


@dataclass(frozen=True, slots=True)
class Earlier:
    """Who has a message, or was refused, by an attempt."""

    job_id: int
    attempt: int
    outcome: str
    accepted: Sequence[str]
    refused: Any


@dataclass(frozen=True, slots=True)
class Tried:
    """An attempt as it was noted."""

    attempt: int
    at: datetime
    took_seconds: float
    sender: str
    outcome: str
    code: int | None
    response: str
    message_id: str
    accepted: Sequence[str]
    refused: Any


@dataclass(frozen=True, slots=True)
class Known:
    """A message in the queue."""

    id: int
    queue: str
    state: str
    attempts: int
    run_at: datetime
    created_at: datetime
    finished_at: datetime | None
    payload: Any
    error: str | None


@dataclass(frozen=True, slots=True)
class Requested:
    """Which request a message came with, by its fingerprint."""

    id: int
    request: str | None


@dataclass(frozen=True, slots=True)
class Content:
    """What is attached."""

    digest: str
    content: bytes = field(repr=False)


def note_attempts(attempts: Sequence[Attempt]) -> Statement[int]:
    return SQL["note_attempts"].bind(int, attempts=json.dumps([one.plain() for one in attempts]))


def find_earlier(job_ids: Sequence[int]) -> Statement[Earlier]:
    return SQL["find_earlier"].bind(Earlier, job_ids=list(job_ids))


def list_attempts(job_id: int) -> Statement[Tried]:
    return SQL["list_attempts"].bind(Tried, job_id=job_id)


def find_email(job_id: int) -> Statement[Known]:
    return SQL["find_email"].bind(Known, job_id=job_id, kind=KIND)


def find_requests(job_ids: Sequence[int]) -> Statement[Requested]:
    return SQL["find_requests"].bind(Requested, job_ids=list(job_ids))


def answer() -> Statement[bool]:
    return SQL["answer"].bind(bool)


def forget_attempts(kept: timedelta, most: int) -> Statement[object]:
    return SQL["forget_attempts"].bind(object, kept=kept, most=most)


def store_contents(contents: Mapping[str, bytes]) -> Statement[str]:
    return SQL["store_contents"].bind(str, digests=list(contents), contents=list(contents.values()))


def find_contents(digests: Iterable[str]) -> Statement[Content]:
    return SQL["find_contents"].bind(Content, digests=list(digests))


def forget_contents(kept: timedelta, most: int) -> Statement[object]:
    return SQL["forget_contents"].bind(object, kept=kept, most=most, kind=KIND)


def grant_submitting(role: str) -> Statement[None]:
    return SQL["grant_submitting"].compose(role=sql.Identifier(role))


def grant_serving(role: str) -> Statement[None]:
    return SQL["grant_serving"].compose(role=sql.Identifier(role))
