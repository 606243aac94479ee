"""Work that many tasks want at once, done together: what comes while one part is being done is the next."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# More at once makes a statement no quicker.
_MOST: Final = 500


class Gather(Generic[Item, Answer]):
    """Gives items of several tasks to a function, which answers each."""

    def __init__(self, work: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]]) -> None:
        self._work = work
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, item: Item) -> Answer:
        """The answer for one; what the function raises is raised for all that it was given."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await future

    async def finish(self) -> None:
        """Wait until nobody waits any more."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while self._waiting:
            taken, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
            try:
                answers = await self._work([item for item, _ in taken])
            except Exception as exc:  # noqa: BLE001 - whatever it is, it is theirs who wait
                for _, future in taken:
                    if not future.done():
                        future.set_exception(exc)
                continue
            for (_, future), answer in zip(taken, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
