"""A queue of jobs in PostgreSQL: enqueued in the application's transactions, done by workers, and never forgotten."""

from headwater.queue.enqueue import enqueue, enqueue_many, enqueue_many_sync, enqueue_sync, prepare_queue, require_queue
from headwater.queue.enqueuer import Enqueuer
from headwater.queue.job import Job, NewJob
from headwater.queue.outcome import Discard, Done, Outcome, Retry
from headwater.queue.retry import FullJitter, RetryPolicy
from headwater.queue.settings import EnqueuerSettings, WorkerSettings
from headwater.queue.worker import Worker

__all__ = [
    "Discard",
    "Done",
    "Enqueuer",
    "EnqueuerSettings",
    "FullJitter",
    "Job",
    "NewJob",
    "Outcome",
    "Retry",
    "RetryPolicy",
    "Worker",
    "WorkerSettings",
    "enqueue",
    "enqueue_many",
    "enqueue_many_sync",
    "enqueue_sync",
    "prepare_queue",
    "require_queue",
]
