"""The SQL of enqueuing: statements with their parameters named."""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from headwater.postgres.statements import Statement, load
from headwater.queue.job import NewJob

SQL: Final = load("headwater.queue")

_SINGLE: Final = {
    "queues": "queue",
    "kinds": "kind",
    "priorities": "priority",
    "run_ats": "run_at",
    "keys": "key",
    "traces": "trace",
}


def insert_jobs(
    jobs: Sequence[NewJob], payloads: Sequence[str], traces: Sequence[str | None], *, rings: bool
) -> Statement[int]:
    """Gives the ids, in the order of the jobs."""
    columns = _columns(jobs, payloads, traces)
    parameters: dict[str, object] = {"payloads": columns.pop("payloads")}
    for name, values in columns.items():
        is_same = values.count(values[0]) == len(values)
        parameters |= {_SINGLE[name]: values[0] if is_same else None, name: None if is_same else values}
    return SQL["insert_jobs"].bind(int, rings=rings, **parameters)


def enqueue_keyed(
    jobs: Sequence[NewJob], payloads: Sequence[str], traces: Sequence[str | None], *, rings: bool
) -> Statement[list[int]]:
    """Gives one row: the ids, in the order of the jobs."""
    return SQL["enqueue_keyed"].bind(
        list,
        rings=rings,
        unique_keys=[job.unique for job in jobs],
        idempotency_keys=[job.idempotency_key for job in jobs],
        **_columns(jobs, payloads, traces),
    )


def enqueue_soon(
    jobs: Sequence[NewJob], payloads: Sequence[str], traces: Sequence[str | None], moment: timedelta
) -> Statement[list[int | None]]:
    """As above, and None for one whose key another transaction holds; nobody is rung for."""
    return SQL["enqueue_soon"].bind(
        list,
        moment=moment,
        unique_keys=[job.unique for job in jobs],
        idempotency_keys=[job.idempotency_key for job in jobs],
        **_columns(jobs, payloads, traces),
    )


def ring(queues: Iterable[str]) -> Statement[int]:
    return SQL["ring"].bind(int, queues=sorted(set(queues)))


def _columns(jobs: Sequence[NewJob], payloads: Sequence[str], traces: Sequence[str | None]) -> dict[str, list[Any]]:
    return {
        "queues": [job.queue for job in jobs],
        "kinds": [job.kind for job in jobs],
        "payloads": list(payloads),
        "priorities": [job.priority for job in jobs],
        "run_ats": [job.run_at for job in jobs],
        "keys": [job.key for job in jobs],
        "traces": list(traces),
    }
