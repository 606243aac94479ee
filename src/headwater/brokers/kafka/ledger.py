"""What became of each message of a call, and which are to be sent again so that each key keeps its order.

Pure: places go in, and come out. A message that was stored behind one of its key that was not has to come once more behind
that one; the others are left alone, since Kafka has no memory of ids and would keep them twice.
"""

from collections.abc import Sequence

from headwater.brokers.base import Left, Offered, Published, Refused

_OPEN, _STORED, _REFUSED = range(3)


class Ledger:
    """One state for each message: open, stored, or refused."""

    def __init__(self, topics: Sequence[str], keys: Sequence[str | None]) -> None:
        self._topics, self._keys = topics, keys
        self._states = bytearray(len(topics))
        self._reasons: dict[int, str] = {}
        # Failed together with others in a batch, so that it is not known which of them was to blame.
        self.suspects: set[int] = set()
        # Why a message came back that is open again, and of which of them a broker said so itself.
        self._returns: dict[int, str] = {}
        self._answered: set[int] = set()

    def store(self, place: int) -> None:
        self._states[place] = _STORED

    def refuse(self, place: int, reason: str) -> None:
        self._states[place] = _REFUSED
        self._reasons[place] = reason

    def give_back(self, place: int, reason: str, *, was_answered: bool) -> None:
        """It was not stored, for a reason that may pass."""
        self._returns[place] = reason
        if was_answered:
            self._answered.add(place)

    def is_open(self, place: int) -> bool:
        return self._states[place] == _OPEN

    def first_open(self) -> int | None:
        """The first message that is still to be sent."""
        place = self._states.find(_OPEN)
        return None if place < 0 else place

    def count_open(self) -> int:
        return self._states.count(_OPEN)

    def reopen_overtaken(self) -> None:
        """Open what was stored before an earlier message of its key; where there is no key there is no order."""
        late: set[tuple[str, str]] = set()
        for place in range(max(self._states.find(_OPEN), 0), len(self._states)):
            key = self._keys[place]
            if key is None or self._states[place] == _REFUSED:
                continue
            pair = (self._topics[place], key)
            if self._states[place] == _OPEN:
                late.add(pair)
            elif pair in late:
                self._states[place] = _OPEN

    def published(self) -> Published:
        return Published(self._states.count(_STORED), 0, self._refused())

    def offered(self, sent: int, broken: str) -> Offered:
        """What is open is left: of it, the first `sent` messages were given to the producer, and came back or did not."""
        left = tuple(
            Left(place, self._returns.get(place, broken), was_sent=place < sent, was_answered=place in self._answered)
            for place, state in enumerate(self._states)
            if state == _OPEN
        )
        return Offered(self._states.count(_STORED), 0, self._refused(), left)

    def _refused(self) -> tuple[Refused, ...]:
        return tuple(Refused(place, reason) for place, reason in sorted(self._reasons.items()))
