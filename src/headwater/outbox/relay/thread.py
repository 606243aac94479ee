"""One thread for one connection to a broker, whose calls block; the event loop waits for them without blocking."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from headwater.brokers.base import Broker, Left, Offered
from headwater.errors import HeadwaterError
from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.messages import as_messages

_log = logging.getLogger(__name__)

T = TypeVar("T")
_Call = tuple[Callable[[], Any], asyncio.Future[Any]]


class BrokerThread:
    """A broker that is used from an event loop, by one caller at a time.

    A call that hangs ends with the broker's own timeout. Whoever does not want to wait for that leaves it behind: the thread
    ends by itself, and does not keep the process.
    """

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker = broker
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._is_busy = False
        Thread(target=self._work, name=f"outbox {name}", daemon=True).start()

    @property
    def is_busy(self) -> bool:
        """Whether a call is under way, also one whose caller has given up."""
        return self._is_busy

    async def offer(self, entries: Sequence[Entry]) -> Offered:
        """As the broker's own; an error that is none of the broker's leaves all of them, and may be any one's fault."""
        try:
            return await self._run(lambda: self._broker.offer(as_messages(entries)))
        except HeadwaterError:
            raise
        except Exception as exc:  # noqa: BLE001 - whatever a message makes of a driver, it must not end the relay
            _log.warning("an attempt failed with an error that is none of the broker's: %s", exc)
            _log.debug("the attempt failed", exc_info=exc)
            reason = f"{type(exc).__name__}: {exc}"
            return Offered(0, left=tuple(Left(index, reason, was_sent=True) for index in range(len(entries))))

    async def check(self) -> None:
        await self._run(self._broker.check)

    def close(self) -> None:
        """Let go of the connection, once what is under way has ended."""
        self._calls.put(None)

    async def _run(self, call: Callable[[], T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        self._is_busy = True
        self._calls.put((call, future))
        return await future

    def _work(self) -> None:
        # Arrow looks for pandas when it is first used, and imports it for a second; the first event does not wait for that.
        as_messages(())
        while (given := self._calls.get()) is not None:
            call, future = given
            try:
                answer, error = call(), None
            except BaseException as exc:  # noqa: BLE001 - it is the caller's
                answer, error = None, exc
            try:
                self._loop.call_soon_threadsafe(self._tell, future, answer, error)
            except RuntimeError:
                # The loop has ended, and nobody waits any more.
                break
        self._broker.close()

    def _tell(self, future: asyncio.Future[Any], answer: object, error: BaseException | None) -> None:
        self._is_busy = False
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(answer)
