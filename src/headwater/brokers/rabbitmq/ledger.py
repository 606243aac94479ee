"""What is known about each message of a call, and which delivery tags wait for the broker's word. Pure.

RabbitMQ keeps no ids, so it cannot tell what it has already. The order holds when everything from the first message on that
is not known to be stored is sent again.
"""

import numpy as np
import numpy.typing as npt

from headwater.brokers.base import Left, Offered, Published, Refused

Integers = npt.NDArray[np.int64]

_OPEN, _STORED, _REFUSED, _LEFT = range(4)
_WAITING, _ACKED, _NACKED = 0, 1, 2


class Ledger:
    """The state of `count` messages: open, stored, refused for good, or left for another time."""

    def __init__(self, count: int) -> None:
        self._states = np.zeros(count, np.int8)
        self._reasons: dict[int, str] = {}
        self._left: list[Left] = []

    def refuse(self, index: int, reason: str) -> None:
        """For good, whatever the broker says about it afterwards: what it returns, it confirms too."""
        self._states[index] = _REFUSED
        self._reasons.setdefault(index, reason)

    def store(self, indices: Integers) -> None:
        states = self._states[indices]
        states[states == _OPEN] = _STORED
        self._states[indices] = states

    def leave(self, indices: Integers, reason: str, *, was_sent: bool, was_answered: bool = False) -> None:
        """Give up for now what is still open of these."""
        chosen = indices[self._states[indices] == _OPEN]
        self._states[chosen] = _LEFT
        self._left += [Left(index, reason, was_sent, was_answered) for index in chosen.tolist()]

    def first_open(self) -> int | None:
        """The first message that is neither stored nor refused."""
        found = np.flatnonzero(self._states == _OPEN)
        return int(found[0]) if len(found) else None

    def rewind(self) -> None:
        """Open again what is stored behind the first open message: it may stand before it now."""
        first = self.first_open()
        if first is not None:
            rest = self._states[first:]
            rest[rest == _STORED] = _OPEN

    def open(self) -> Integers:
        """What is to be sent, in order."""
        return np.flatnonzero(self._states == _OPEN)

    def published(self) -> Published:
        return Published(self._count_stored(), 0, self._refused())

    def offered(self) -> Offered:
        return Offered(self._count_stored(), 0, self._refused(), tuple(sorted(self._left, key=lambda one: one.index)))

    def _count_stored(self) -> int:
        return int(np.count_nonzero(self._states == _STORED))

    def _refused(self) -> tuple[Refused, ...]:
        return tuple(Refused(index, self._reasons[index]) for index in sorted(self._reasons))


class Confirms:
    """Publishes on one channel by place, counted from 0, whose delivery tags count from `first_tag`.

    `low` is the first place that waits, or the number of publishes when none does.
    """

    def __init__(self, first_tag: int, most: int) -> None:
        self._first_tag = first_tag
        self._states = np.zeros(most, np.int8)
        self.sent = self.low = 0

    def register(self, count: int) -> None:
        """So many more are about to be published; before they are, since the answer may be there at once."""
        if self.sent + count > len(self._states):
            raise ValueError(f"{count} publishes after {self.sent} are more than {len(self._states)}")
        self.sent += count

    def settle(self, tag: int, *, is_multiple: bool, is_stored: bool) -> None:
        """Note an ack or a nack: of one, or of all up to it that wait; tag 0 with `is_multiple` is all that wait.

        The first word counts. What was never published on this channel's count is left alone.
        """
        end = self.sent if is_multiple and tag == 0 else min(tag - self._first_tag + 1, self.sent)
        start = self.low if is_multiple else end - 1
        if is_multiple or 0 <= start < end == tag - self._first_tag + 1:
            states = self._states[start : max(start, end)]
            states[states == _WAITING] = _ACKED if is_stored else _NACKED
        self._advance()

    @property
    def stored(self) -> Integers:
        return np.flatnonzero(self._states == _ACKED)

    @property
    def nacked(self) -> Integers:
        """What the broker did not take."""
        return np.flatnonzero(self._states == _NACKED)

    @property
    def count_waiting(self) -> int:
        return int(np.count_nonzero(self._states[self.low : self.sent] == _WAITING))

    def _advance(self) -> None:
        states = self._states
        # In runs, since most answers settle the first place that waits, and many after it are settled already.
        while self.low < self.sent and states[self.low] != _WAITING:
            run = states[self.low : self.sent]
            waiting = run[:1024] == _WAITING
            self.low += int(np.argmax(waiting)) if waiting.any() else len(waiting)
