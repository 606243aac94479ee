"""Jobs as workers have them, for tests without a database."""

from datetime import UTC, datetime, timedelta

from headwater.queue import Job

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def job(id: int = 1, *, priority: int = 0, seconds: float = 0.0, attempt: int = 1, epoch: int = 1) -> Job:
    """A job that is due so many seconds after noon."""
    run_at = NOON + timedelta(seconds=seconds)
    return Job(id, "send", None, priority, run_at, None, None, run_at, attempt, epoch, False, run_at)
