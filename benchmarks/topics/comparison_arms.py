"""What an arm has to be: values that go to other processes, where they write and read."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, TypeAlias

from benchmarks.topics.load import Load, Reads
from headwater.postgres.connect import Connection

Send: TypeAlias = Callable[[Sequence[bytes]], Awaitable[None]]
Receive: TypeAlias = Callable[[], Coroutine[None, None, None]]


class Arm(Protocol):
    @property
    def name(self) -> str: ...

    def prepare(self, connection: Connection, load: Load) -> None:
        """Empty tables for a run."""

    def remove(self, connection: Connection) -> None:
        """All that its runs have left."""

    def is_ready(self, connection: Connection, load: Load) -> bool:
        """Whether all readers are at work."""

    def senders(self, url: str, load: Load) -> AbstractAsyncContextManager[Sequence[Send]]:
        """For each writer what makes a batch durable."""

    def readers(self, url: str, load: Load, group: str, reads: Reads) -> AbstractAsyncContextManager[Sequence[Receive]]:
        """For each reader what receives, notes and commits until cancelled."""
