"""Jobs: as an application gives them, as they are written, and as a handler gets them. Pure."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, cast

from headwater.errors import JobError

# Of a payload, as JSON. What is larger belongs into a table of its own, and its key into the job.
MAX_BYTES: Final = 1024 * 1024
_MOST_PRIORITY: Final = 9
_JSON: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_MOST_NAME: Final = 200
# As the table has it, which would refuse it in the midst of a transaction.
_QUEUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# The escape of a character that PostgreSQL keeps nowhere; behind a backslash that is one itself it is none.
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be enqueued: due at `run_at`, or at once; of those that are due, the highest priority (0 to 9) goes first.

    `key` is what limits and order of its queue are about. Of one `unique` there is one live job of a kind at a time; of one
    `idempotency_key` one ever, for as long as finished jobs are kept.
    """

    kind: str
    payload: object = None
    queue: str = "default"
    run_at: datetime | None = None
    priority: int = 0
    key: str | None = None
    unique: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as a handler gets it, for the `attempt`th time. The rest is for settling it."""

    id: int
    kind: str
    payload: Any
    priority: int
    run_at: datetime
    key: str | None
    trace: str | None = field(repr=False)
    created_at: datetime
    attempt: int
    epoch: int = field(repr=False)
    is_cancelled: bool = field(repr=False)
    claimed_at: datetime
    unsettled: int = field(default=0, repr=False)
    lost: int = field(default=0, repr=False)
    queue: str = "default"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """In place of a payload that is JSON to PostgreSQL, and not to Python: too deep, or with a number of too many digits."""

    error: str
    error_class: str


def decode_payload(data: str | bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        return Unreadable(str(exc), type(exc).__name__)


def encode_payload(job: NewJob, max_bytes: int = MAX_BYTES) -> str:
    """The payload as JSON; raises JobError for a job that cannot be enqueued."""
    for fault in job_faults(job):
        raise JobError(fault)
    try:
        text = _JSON.encode(job.payload)
    except (TypeError, ValueError, RecursionError) as exc:
        raise JobError(
            f"the payload of job {job.kind!r} cannot be written as JSON: {exc}; give what JSON can express"
        ) from exc
    if (size := len(text.encode("utf-8", "surrogatepass"))) > max_bytes:
        raise JobError(
            f"the payload of job {job.kind!r} has {size} bytes, and {max_bytes} are the most; keep it in a table, and give "
            "its key"
        )
    # Looked for first, since most have none, and that is ten times as quick.
    if ("\\u0000" in text and _NUL.search(text)) or _is_torn(text):
        raise JobError(f"the payload of job {job.kind!r} has a character that PostgreSQL cannot keep in JSON; leave it out")
    return text


def job_faults(job: NewJob) -> list[str]:
    """What is wrong with a job, apart from its payload."""
    if not isinstance(cast("object", job), NewJob):
        return [f"a job is a headwater.queue.NewJob, not a {type(job).__name__}"]
    faults = [
        f"the {name} of a job is a text of 1 to {_MOST_NAME} characters, not {value!r}"
        for name, value in _names(job)
        if not isinstance(value, str) or not 0 < len(value) <= _MOST_NAME or "\0" in value or _is_torn(value)
    ]
    if not faults and (fault := queue_fault(job.queue)):
        faults.append(fault)
    if isinstance(job.priority, bool) or not isinstance(job.priority, int) or not 0 <= job.priority <= _MOST_PRIORITY:
        faults.append(
            f"the priority of job {job.kind!r} is {job.priority!r}; give one from 0 to {_MOST_PRIORITY}, 9 goes first"
        )
    if job.run_at is not None and not _is_moment(job.run_at):
        faults.append(
            f"run_at of job {job.kind!r} is {job.run_at!r}; give a datetime with a time zone, of the years 1001 to 9998, or "
            "none"
        )
    return faults


def queue_fault(name: str) -> str | None:
    """What is wrong with the name of a queue, or None."""
    if isinstance(cast("object", name), str) and _QUEUE.fullmatch(name):
        return None
    return f"{name!r} cannot be a queue; use up to 100 letters, digits and . _ -, a letter or digit first"


def _is_moment(value: object) -> bool:
    """Whether it is a time that the table takes, and that is the same for everybody."""
    return isinstance(value, datetime) and value.utcoffset() is not None and 1001 <= value.year <= 9998


def _names(job: NewJob) -> Sequence[tuple[str, object]]:
    optional = (("key", job.key), ("unique", job.unique), ("idempotency_key", job.idempotency_key))
    return [("kind", job.kind), ("queue", job.queue), *((name, value) for name, value in optional if value is not None)]


def _is_torn(text: str) -> bool:
    """Whether it has a half of a surrogate pair, which is no character."""
    return any("\ud800" <= one <= "\udfff" for one in text) if not text.isascii() else False
