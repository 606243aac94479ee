"""What is known about each message of a publish: stored where, refused, or still open. Pure; the order rule is here.

JetStream answers each message with its sequence in the stream, also when it has it already. So the order holds exactly
when the sequences rise. What was stored before an earlier message is stored once more behind it, under a new id; but only
when it is known of all that was sent where it is, since a copy that nobody knows of may stand anywhere.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Booleans = npt.NDArray[np.bool_]

_OPEN, _REFUSED, _SOMEWHERE = 0, -1, 1


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that the server will never take, by its place in what was given, and why."""

    index: int
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    """What became of the messages of one call; the three numbers add up to how many are settled.

    A message whose first acknowledgement was lost with the connection counts among the duplicates: it was stored by this
    call or by one before it, and nobody can tell.
    """

    stored: int
    duplicates: int
    refused: tuple[Refused, ...]


class Ledger:
    """The state of `count` messages; `starts` marks those that begin a message of several packets."""

    def __init__(self, count: int, starts: Booleans | None = None) -> None:
        self._starts = starts
        # The place of each message in the stream; above the place of any that was stored before it in time.
        self._places: Integers = np.zeros(count, np.int64)
        self._is_new = np.zeros(count, np.bool_)
        # The round of each message: how often it was given a new id.
        self.rounds: Integers = np.zeros(count, np.int64)
        self._round = 0
        self._refused: dict[int, Refused] = {}
        # A stream that was made anew counts from 1 again; what it had reached before is added.
        self._added = self._highest = 0
        # The highest place of what stands before the next message that is acknowledged.
        self._reached = 0
        # All from here on was never sent.
        self.sent_end = 0

    def acknowledge(self, indices: Integers, sequences: Integers, is_duplicate: Booleans) -> bool:
        """Note acknowledgements, in the order in which they came; whether the order holds so far."""
        places = sequences + self._added
        if is_duplicate.any() or places[0] <= self._highest or (np.diff(places) <= 0).any():
            places = self._placed(sequences, is_duplicate)
        else:
            self._highest = int(places[-1])
        self._places[indices] = places
        self._is_new[indices] |= ~is_duplicate
        is_rising = bool(places[0] > self._reached and (np.diff(places) > 0).all())
        self._reached = max(self._reached, int(places.max()))
        return is_rising

    def store(self, indices: Integers, is_duplicate: Booleans) -> None:
        """Note acknowledgements where the order is of no interest."""
        self._places[indices] = _SOMEWHERE
        self._is_new[indices] |= ~is_duplicate

    def refuse(self, index: int, code: int, reason: str) -> None:
        self._places[index] = _REFUSED
        self._refused[index] = Refused(index, code, reason)

    def first_open(self) -> int | None:
        """The first message that is neither acknowledged nor refused."""
        found = np.flatnonzero(self._places == _OPEN)
        return int(found[0]) if len(found) else None

    def open(self) -> Integers:
        """What is neither acknowledged nor refused."""
        return np.flatnonzero(self._places == _OPEN)

    def to_send(self) -> Integers:
        """What to send next, without what is refused: all that was sent, from the first open message on, or else the rest.

        What the server has of it, it knows by the id. Nothing new is sent before it is known of the old where it is.
        """
        first = self.first_open()
        if first is None:
            return np.empty(0, np.int64)
        self._reached = int(self._places[:first].max(initial=0))
        end = self.sent_end if first < self.sent_end else len(self._places)
        return np.flatnonzero(self._places[first:end] != _REFUSED) + first

    def note_sent(self, end: int) -> None:
        """All before `end` may have been stored."""
        self.sent_end = max(self.sent_end, end)

    def reopen_misplaced(self) -> None:
        """Give what stands before an earlier message, and all after it, a new id and open it again, once all is known."""
        first = self._first_misplaced() if (self._places[: self.sent_end] != _OPEN).all() else None
        if first is None:
            return
        self._round += 1
        self.rounds[first : self.sent_end] = self._round
        places = self._places[first : self.sent_end]
        places[places != _REFUSED] = _OPEN

    def result(self) -> Published:
        """Of all that is not open any more."""
        refused = tuple(self._refused[index] for index in sorted(self._refused))
        is_known = self._places > _OPEN
        stored = int(np.count_nonzero(self._is_new & is_known))
        return Published(stored, int(np.count_nonzero(is_known)) - stored, refused)

    def _placed(self, sequences: Integers, is_duplicate: Booleans) -> Integers:
        """Places one by one. What is stored now comes after all there is, unless the stream is a new one."""
        places = np.empty_like(sequences)
        for at, (sequence, is_old) in enumerate(zip(sequences.tolist(), is_duplicate.tolist(), strict=True)):
            if not is_old and sequence + self._added <= self._highest:
                self._added = self._highest
            places[at] = sequence + self._added
            self._highest = max(self._highest, sequence + self._added)
        return places

    def _first_misplaced(self) -> int | None:
        known = np.flatnonzero(self._places > _OPEN)
        places = self._places[known]
        is_misplaced = places < np.maximum.accumulate(places)
        if not is_misplaced.any():
            return None
        if self._starts is None or self._starts.all():
            return int(known[np.argmax(is_misplaced)])
        # Another message may stand between the packets of one that is stored late, and readers would drop that one: the
        # first that has an earlier one behind it is sent again from its first packet on.
        lowest_after = np.minimum.accumulate(places[::-1])[::-1]
        late = int(known[np.argmax(places > lowest_after)])
        return int(np.flatnonzero(self._starts[: late + 1])[-1])
