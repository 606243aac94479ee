"""What is offered to an arm: how many write and read, how much, and when each batch is due.

Batches are due at times that do not depend on how an arm keeps up, and each message says when it was: a delay before it was
written counts as much as one after. Without a rate, all of them are due as soon as their writer is free.
"""

import os
import random
import struct
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import itemgetter
from typing import Final, Self

import numpy as np
import numpy.typing as npt

_DUE: Final = struct.Struct("d")
_HEAD: Final = itemgetter(slice(_DUE.size))
# Drawn once, and cut anew for each batch: so the same for all arms costs next to nothing.
_CHANCE: Final = os.urandom(4 << 20)


@dataclass(frozen=True, slots=True)
class Load:
    """The first is the shape P1 of the original; `rate` is in messages a second, of all writers together."""

    partitions: int = 4
    writers: int = 10
    write_batch: int = 100
    groups: int = 5
    readers: int = 4
    read_batch: int = 200
    payload_bytes: int = 1024
    rate: float | None = None
    seconds: float = 5.0

    def at(self, rate: float | None, seconds: float) -> Self:
        return replace(self, rate=rate, seconds=seconds)

    def due(self, writer: int, began: float) -> Iterator[float]:
        """When the batches of a writer are to be sent, by the clock of the machine; writers take turns."""
        if self.rate is None:
            while (now := time.time()) < began + self.seconds:
                yield now
            return
        every = self.writers * self.write_batch / self.rate
        at = began + every * writer / self.writers
        while at < began + self.seconds:
            yield at
            at += every

    @property
    def offered(self) -> int:
        """How many messages are due in all, with a rate; the last batch may fall to either side of the end."""
        assert self.rate is not None
        return sum(1 for writer in range(self.writers) for _ in self.due(writer, 0.0)) * self.write_batch - self.write_batch

    def payloads(self, due: float) -> list[bytes]:
        """A batch of messages that nothing compresses, each with the time when it was due."""
        head, size = _DUE.pack(due), self.payload_bytes - _DUE.size
        first = random.randrange(len(_CHANCE) - size * self.write_batch)
        return [head + _CHANCE[at : at + size] for at in range(first, first + size * self.write_batch, size)]


SMALL = Load()
LARGE = Load(partitions=30, writers=100, write_batch=200, groups=5, readers=30)
SINGLE = Load(partitions=1, writers=64, write_batch=1, groups=0, readers=0)


@dataclass(slots=True)
class Writes:
    """What the writers of a process did: how many messages, and for how long each batch was being written."""

    count: int = 0
    began: float = 0.0
    ended: float = 0.0
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    cpu_seconds: float = 0.0

    def note(self, count: int, began: float) -> None:
        self.ended = time.time()
        self.count += count
        self.seconds.append(self.ended - began)


@dataclass(slots=True)
class Reads:
    """What the readers of a group received: when each message was due, and how old it was since then.

    By the server's clock, it is as old as the first that came with it. Messages that were due at the same time and came
    together are noted together, so that it is the arms that are measured and not the notes.
    """

    count: int = 0
    # When they were due, how old they were, also by the server's clock, and how many.
    runs: "array[float]" = field(default_factory=lambda: array("d"))
    seconds: "array[float]" = field(default_factory=lambda: array("d"))
    empty_polls: int = 0
    ended: float = 0.0
    cpu_seconds: float = 0.0

    def note(self, payloads: Sequence[bytes], first: datetime) -> None:
        """Messages that came together, and when the first of them was written, as the server says."""
        now = self.ended = time.time()
        server_age = now - first.timestamp()
        for head, count in Counter(map(_HEAD, payloads)).items():
            (due,) = _DUE.unpack(head)
            self.runs.extend((due, now - due, server_age, count))
        self.count += len(payloads)

    @property
    def due(self) -> npt.NDArray[np.float64]:
        return self._of_each(0)

    @property
    def age(self) -> npt.NDArray[np.float64]:
        return self._of_each(1)

    @property
    def server_age(self) -> npt.NDArray[np.float64]:
        return self._of_each(2)

    def _of_each(self, column: int) -> npt.NDArray[np.float64]:
        runs = np.asarray(self.runs).reshape(-1, 4)
        return np.repeat(runs[:, column], runs[:, 3].astype(np.int64))
