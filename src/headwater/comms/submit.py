"""Handing messages to the queue: in an application's own transaction, or for a client, who may ask again with a key."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4

import psycopg

from headwater import queue
from headwater.comms.message import Email
from headwater.comms.pack import REQUEST, Packed, contents_of, pack
from headwater.comms.session import Sessions
from headwater.comms.statements import KIND, find_requests, store_contents
from headwater.errors import JobError
from headwater.postgres.caller import async_fault, sync_fault
from headwater.postgres.latest import latest
from headwater.postgres.statements import execute, execute_sync, fetch
from headwater.queue import Enqueuer, NewJob

QUEUE: Final = "email"
# How long the database is waited for, while a client waits for us.
GIVE_UP_AFTER: Final = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Conflict:
    """The key came with other messages before; nothing was accepted."""

    key: str


async def enqueue(
    connection: psycopg.AsyncConnection[Any],
    emails: Sequence[Email],
    *,
    queue_name: str = QUEUE,
    idempotency_key: str | None = None,
) -> list[int]:
    """Hand over messages in the connection's transaction: they are sent if and only if it commits. Gives their ids.

    With a key that was given before, it gives the ids that it gave then, and nothing is sent twice.
    """
    if fault := async_fault(connection, "enqueue"):
        raise JobError(fault)
    packed = _packed(emails)
    if contents := contents_of(packed):
        await execute(connection, store_contents(contents))
    return await queue.enqueue_many(connection, jobs_of(packed, queue_name, idempotency_key))


def enqueue_sync(
    connection: psycopg.Connection[Any],
    emails: Sequence[Email],
    *,
    queue_name: str = QUEUE,
    idempotency_key: str | None = None,
) -> list[int]:
    """`enqueue` for a connection that is not async."""
    if fault := sync_fault(connection, "enqueue"):
        raise JobError(fault)
    packed = _packed(emails)
    if contents := contents_of(packed):
        execute_sync(connection, store_contents(contents))
    return queue.enqueue_many_sync(connection, jobs_of(packed, queue_name, idempotency_key))


def _packed(emails: object) -> list[Packed]:
    """What callers give is looked at, since a message by itself can be iterated over, too."""
    packed = []
    for one in emails if isinstance(emails, Iterable) and not isinstance(emails, Email) else [[emails]]:
        if not isinstance(one, Email):
            raise JobError("messages are given as a list of headwater.comms.Email; write [Email(...)]")
        packed.append(pack(one))
    return packed


def jobs_of(packed: Sequence[Packed], queue_name: str, key: str | None, sender: str | None = None) -> list[NewJob]:
    """A job for each message, from `sender` if it names none.

    With a key, each has one of its own, and knows the whole request by its fingerprint.
    """
    default = {} if sender is None else {"from": sender}
    if key is None:
        return [NewJob(KIND, {**default, **one.payload}, queue=queue_name) for one in packed]
    if not isinstance(key, str) or not key:
        raise JobError(f"an idempotency key is a text, not {key!r}")
    request, digest = fingerprint(packed), hashlib.sha256(key.encode()).hexdigest()
    return [
        NewJob(KIND, {**default, **one.payload, REQUEST: request}, queue=queue_name, idempotency_key=f"{digest}/{place}")
        for place, one in enumerate(packed)
    ]


def fingerprint(packed: Sequence[Packed]) -> str:
    """The same for the same messages, however they were written."""
    text = json.dumps([one.payload for one in packed], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Submitter:
    """Takes messages of clients; what it returns is durable.

    Single messages of many clients share a commit. Several of one client are accepted together or not at all.
    """

    def __init__(self, enqueuer: Enqueuer, sessions: Sessions, queue_name: str = QUEUE, sender: str | None = None) -> None:
        self._enqueuer, self._sessions, self._queue, self._sender = enqueuer, sessions, queue_name, sender
        self.accepted = 0

    async def submit(self, emails: Sequence[Email], key: str | None) -> list[int] | Conflict:
        """The ids of the messages; raises ConnectionLost when the database is away."""
        packed = [pack(email) for email in emails]
        await self._store(contents_of(packed))
        jobs = jobs_of(packed, self._queue, key, self._sender)
        submitted = await (self._submit_together(jobs, key) if len(jobs) > 1 else self._submit_alone(jobs, key))
        self.accepted += 0 if isinstance(submitted, Conflict) else len(submitted)
        return submitted

    async def _submit_alone(self, jobs: Sequence[NewJob], key: str | None) -> list[int] | Conflict:
        (job,) = jobs
        # By a key the queue knows it again if the answer is lost and it is asked once more.
        own_key = job.idempotency_key or str(uuid4())
        ids = [await self._enqueuer.enqueue(KIND, job.payload, queue=job.queue, idempotency_key=own_key)]
        if key is None:
            return ids
        async with self._sessions.one() as session:
            known = await session.fetch(find_requests(ids))
        return ids if _is_same(known, jobs) else Conflict(key)

    async def _store(self, contents: Mapping[str, bytes]) -> None:
        """Before the messages that name them; those that nobody names in the end are removed after some time."""
        if contents:
            async with self._sessions.one() as session:
                await session.insist(store_contents(contents), GIVE_UP_AFTER)

    async def _submit_together(self, jobs: Sequence[NewJob], key: str | None) -> list[int] | Conflict:
        async with self._sessions.one() as session, session.alone() as connection:
            try:
                async with latest(connection):
                    ids = await queue.enqueue_many(connection, jobs)
                    if key is not None and not _is_same(await fetch(connection, find_requests(ids)), jobs):
                        raise _TakenBack
            except _TakenBack:
                assert key is not None
                return Conflict(key)
        return ids


class _TakenBack(Exception):
    """The transaction must not be committed."""


def _is_same(known: Sequence[Any], jobs: Sequence[NewJob]) -> bool:
    """Whether the jobs that were found under the key are of this request; some may not be kept any more."""
    (request,) = {job.payload[REQUEST] for job in jobs if isinstance(job.payload, dict)}
    return all(one.request == request for one in known)
