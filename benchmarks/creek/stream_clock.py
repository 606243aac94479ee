"""A clock that a stream starts: when somebody is first seen reading it."""

import time
from contextlib import closing
from threading import Event, Thread
from types import TracebackType

from headwater.brokers.nats import Link, NatsAccess
from headwater.brokers.nats.streams import call

_LOOK_SECONDS = 0.005


class StreamClock:
    """Watches a stream in a thread of its own while in use.

    A reader that was killed leaves its consumer behind for a while, so it is a new one that starts the clock.
    """

    def __init__(self, access: NatsAccess, stream: str) -> None:
        self._access, self._stream = access, stream
        self._watching, self._leaving = Event(), Event()
        self._thread = Thread(target=self._watch, name=f"clock {stream}", daemon=True)
        self._started: float | None = None

    def __enter__(self) -> "StreamClock":
        self._thread.start()
        self._watching.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leaving.set()
        self._thread.join()

    @property
    def started(self) -> float:
        """When the stream was first seen with a new consumer, by `perf_counter`."""
        if self._started is None:
            raise RuntimeError(f"nobody was seen reading stream {self._stream}")
        return self._started

    def _watch(self) -> None:
        with closing(Link(self._access)) as link:
            known = self._consumers(link)
            self._watching.set()
            while self._started is None and not self._leaving.is_set():
                if self._consumers(link) - known:
                    self._started = time.perf_counter()
                self._leaving.wait(_LOOK_SECONDS)

    def _consumers(self, link: Link) -> set[str]:
        return set(call(link, f"CONSUMER.NAMES.{self._stream}", {}).get("consumers") or [])
