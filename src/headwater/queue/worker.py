"""A worker, as an application makes it: handlers for kinds of jobs, and jobs that come by the clock."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import TypeVar, cast

from headwater.errors import JobError
from headwater.queue.counts import Counts
from headwater.queue.handler import TIMEOUT, Function, Handler, Periodic, make_handler, make_periodic
from headwater.queue.job import NewJob, queue_fault
from headwater.queue.retry import RetryPolicy
from headwater.queue.settings import WorkerSettings
from headwater.queue.shift import Shift

F = TypeVar("F", bound=Function)


class Worker:
    """Does jobs of some queues, of the kinds that it has handlers for; others wait for a worker that has.

    It is made once, at the top of a module, and run by `headwater queue work module:worker` or by `await worker.run(url)`.
    """

    def __init__(self, queues: Sequence[str] | str = ("default",), settings: WorkerSettings | None = None) -> None:
        self.queues = (queues,) if isinstance(queues, str) else tuple(queues)
        self.settings = settings or WorkerSettings()
        self.counts = Counts()
        self._handlers: dict[str, Handler] = {}
        self._periodic: list[Periodic] = []
        self._shift: Shift | None = None
        if not self.queues:
            raise JobError("a worker needs at least one queue; name it")
        for fault in filter(None, map(queue_fault, self.queues)):
            raise JobError(fault)

    @property
    def kinds(self) -> list[str]:
        return sorted(self._handlers)

    def handler(
        self, kind: str, *, timeout: timedelta | str = TIMEOUT, retry: RetryPolicy | None = None
    ) -> Callable[[F], F]:
        """Have an async function do the jobs of a kind, each within `timeout`; what it raises is retried by the policy."""
        if not isinstance(cast("object", kind), str):
            raise JobError('a handler is for a kind of jobs; write @worker.handler("send-invoice") above it, with the kind')

        def register(function: F) -> F:
            if kind in self._handlers:
                raise JobError(f"there is a handler of {kind!r} already; one kind has one handler")
            self._handlers[kind] = make_handler(kind, function, timeout, retry)
            return function

        return register

    def periodic(  # noqa: PLR0913 - the parts of a job, and of its time
        self,
        expression: str,
        kind: str,
        payload: object = None,
        *,
        queue: str | None = None,
        priority: int = 0,
        zone: str = "UTC",
        name: str | None = None,
    ) -> None:
        """Have a job enqueued at the times of a cron expression, by one of the workers that know of it."""
        job = NewJob(kind, payload, queue or self.queues[0], priority=priority)
        made = make_periodic(expression, job, zone, name)
        if any(one.name == made.name for one in self._periodic):
            raise JobError(f"there is a periodic job {made.name!r} already; give this one another name")
        self._periodic.append(made)

    async def run(self, url: str, listen_url: str | None = None) -> None:
        """Work until `stop`, or until cancelled, which does the same and then ends as one who was.

        Then no more is claimed, what is in hand is finished, within `stop_within`, and what was not begun is given back.
        """
        if not self._handlers:
            raise JobError("the worker has no handlers; give it some with @worker.handler(kind)")
        if self._shift is not None:
            raise JobError("the worker runs already; make another one, or stop it first")
        self._shift = Shift(
            url, listen_url or url, self.queues, MappingProxyType(self._handlers), self._periodic, self.settings, self.counts
        )
        try:
            await self._shift.run()
        finally:
            self._shift = None

    def stop(self) -> None:
        """Have `run` end in good order; to be called in its event loop."""
        if self._shift is not None:
            self._shift.stop()
