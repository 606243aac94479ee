"""Enqueuing jobs inside of the application's own transaction: they are there if and only if it commits."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import psycopg

from headwater.errors import JobError
from headwater.postgres.caller import async_fault, sync_fault
from headwater.postgres.connect import Connection
from headwater.postgres.migrate import Component, migrate, pending_migrations
from headwater.postgres.statements import Statement, fetch, fetch_sync
from headwater.queue import statements
from headwater.queue.job import NewJob, encode_payload
from headwater.queue.missing import no_queue
from headwater.queue.tracing import enqueue_span

# One statement takes about as much; more of either makes it no quicker.
_CHUNK_JOBS: Final = 1000
_CHUNK_CHARACTERS: Final = 8 * 1024 * 1024


def prepare_queue(connection: Connection) -> None:
    """Make the tables of the queue, or bring them to the version of this release."""
    migrate(connection, Component.of("headwater.queue"))


def require_queue(connection: Connection) -> None:
    """Raise SchemaError if the database does not have them."""
    if pending_migrations(connection, Component.of("headwater.queue")):
        raise no_queue()


async def enqueue(  # noqa: PLR0913 - what a job is made of, and by name what most do without
    connection: psycopg.AsyncConnection[Any],
    kind: str,
    payload: object = None,
    *,
    queue: str = "default",
    run_at: datetime | None = None,
    priority: int = 0,
    key: str | None = None,
    unique: str | None = None,
    idempotency_key: str | None = None,
    rings: bool = True,
) -> int:
    """Enqueue a job in the connection's transaction and return its id; see NewJob for what it is made of.

    With `rings`, workers that wait for the queue are woken by the commit. What cannot be enqueued raises JobError before
    anything is sent, so that the transaction stays as it was.
    """
    job = NewJob(kind, payload, queue, run_at, priority, key, unique, idempotency_key)
    return (await enqueue_many(connection, [job], rings=rings))[0]


def enqueue_sync(  # noqa: PLR0913 - as above
    connection: psycopg.Connection[Any],
    kind: str,
    payload: object = None,
    *,
    queue: str = "default",
    run_at: datetime | None = None,
    priority: int = 0,
    key: str | None = None,
    unique: str | None = None,
    idempotency_key: str | None = None,
    rings: bool = True,
) -> int:
    """`enqueue` for a connection that is not async."""
    job = NewJob(kind, payload, queue, run_at, priority, key, unique, idempotency_key)
    return enqueue_many_sync(connection, [job], rings=rings)[0]


async def enqueue_many(connection: psycopg.AsyncConnection[Any], jobs: Iterable[NewJob], *, rings: bool = True) -> list[int]:
    """Enqueue jobs and return their ids, in their order; all are checked before the first is sent."""
    if fault := async_fault(connection, "enqueue_many"):
        raise JobError(fault)
    ids: list[int] = []
    with enqueue_span(jobs) as trace:
        for statement in enqueuing(jobs, trace, rings=rings):
            ids += ids_of(await fetch(connection, statement))
    return ids


def enqueue_many_sync(connection: psycopg.Connection[Any], jobs: Iterable[NewJob], *, rings: bool = True) -> list[int]:
    """`enqueue_many` for a connection that is not async."""
    if fault := sync_fault(connection, "enqueue_many"):
        raise JobError(fault)
    ids: list[int] = []
    with enqueue_span(jobs) as trace:
        for statement in enqueuing(jobs, trace, rings=rings):
            ids += ids_of(fetch_sync(connection, statement))
    return ids


def enqueuing(
    jobs: Iterable[NewJob], trace: str | Sequence[str | None] | None, *, rings: bool, moment: timedelta | None = None
) -> list[Statement[Any]]:
    """The statements that enqueue jobs of one trace, or of one each; or JobError.

    With `moment`, a key that another transaction holds for longer is not waited for, and its job has None for an id.
    """
    if isinstance(jobs, NewJob) or not isinstance(jobs, Iterable):
        raise JobError(f"jobs are given as a list, not as a {type(jobs).__name__}; write [NewJob(...)]")
    given = list(jobs)
    payloads = [encode_payload(job) for job in given]
    traces = [trace] * len(given) if trace is None or isinstance(trace, str) else trace
    parts = [(given[part], payloads[part], traces[part]) for part in _parts(payloads)]
    return [_statement(*part, rings=rings, moment=moment) for part in parts]


def _statement(
    jobs: Sequence[NewJob],
    payloads: Sequence[str],
    traces: Sequence[str | None],
    *,
    rings: bool,
    moment: timedelta | None,
) -> Statement[Any]:
    if all(job.unique is None and job.idempotency_key is None for job in jobs):
        return statements.insert_jobs(jobs, payloads, traces, rings=rings)
    if moment is not None:
        return statements.enqueue_soon(jobs, payloads, traces, moment)
    return statements.enqueue_keyed(jobs, payloads, traces, rings=rings)


def ids_of(rows: list[Any]) -> list[int]:
    """What one of these statements gave, in the order of its jobs."""
    return rows[0] if rows and isinstance(rows[0], list) else rows


def _parts(payloads: Sequence[str]) -> Iterator[slice]:
    """Parts of moderate size, in their order."""
    begin = characters = 0
    for place, payload in enumerate(payloads):
        if place > begin and (place - begin == _CHUNK_JOBS or characters + len(payload) > _CHUNK_CHARACTERS):
            yield slice(begin, place)
            begin, characters = place, 0
        characters += len(payload)
    if payloads:
        yield slice(begin, len(payloads))
