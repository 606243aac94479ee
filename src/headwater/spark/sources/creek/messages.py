"""Messages of a stream laid end to end, with the sequence and the subject of each: what the planner keeps. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

# The two bytes that begin each message; its fingerprint is behind them.
_MAGIC = np.frombuffer(b"\xc3\x01", np.uint8)
_FINGERPRINT_AT = len(_MAGIC)
_FINGERPRINT_BYTES = 8
LEAST_BYTES = _FINGERPRINT_AT + _FINGERPRINT_BYTES


@dataclass(frozen=True, slots=True)
class Messages:
    """Whole messages in the order of the stream.

    Message i is `data[bounds[i]:bounds[i + 1]]`, its place is the sequence of its last packet, and `subjects[i]` is a number
    of its subject. `unchanged` has the values of the header of that name, by the place of their messages.
    """

    data: bytes
    bounds: Ints
    sequences: Ints
    subjects: Ints
    unchanged: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sequences)

    def at(self, number: int) -> tuple[int, bytes]:
        """The place of a message, and the message."""
        return int(self.sequences[number]), self.data[self.bounds[number] : self.bounds[number + 1]]

    @classmethod
    def of(
        cls, bodies: Sequence[bytes], sequences: Sequence[int], subjects: Sequence[int], unchanged: Mapping[int, str]
    ) -> "Messages":
        """`unchanged` by sequence."""
        bounds = np.zeros(len(bodies) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, bodies), np.int64, len(bodies)), out=bounds[1:])
        return cls(b"".join(bodies), bounds, np.array(sequences, np.int64), np.array(subjects, np.int64), unchanged)

    def between(self, start: int, end: int) -> "Messages":
        """Those behind one sequence and up to another."""
        first, last = np.searchsorted(self.sequences, [start, end], "right").tolist()
        if (first, last) == (0, len(self)):
            return self
        bounds = self.bounds[first : last + 1]
        places = self.sequences[first:last]
        unchanged = {at: names for at, names in self.unchanged.items() if start < at <= end}
        data = self.data[bounds[0] : bounds[-1]] if len(places) else b""
        return Messages(data, bounds - bounds[0], places, self.subjects[first:last], unchanged)

    def of_subject(self, subject: int) -> "Messages":
        mine = np.flatnonzero(self.subjects == subject)
        if len(mine) == len(self):
            return self
        view = memoryview(self.data)
        bodies = [bytes(view[self.bounds[i] : self.bounds[i + 1]]) for i in mine.tolist()]
        sequences = self.sequences[mine]
        kept = set(sequences.tolist()) if self.unchanged else set()
        unchanged = {at: names for at, names in self.unchanged.items() if at in kept}
        return Messages.of(bodies, sequences.tolist(), [subject] * len(bodies), unchanged)

    def within(self, max_bytes: int, max_rows: int | None) -> int:
        """How many of the first messages are within the limits."""
        count = int(np.searchsorted(self.bounds[1:], max_bytes, "right"))
        return count if max_rows is None else min(count, max_rows)

    @property
    def fingerprints(self) -> npt.NDArray[np.bytes_]:
        """The fingerprint of each message's schema; all zero for one that is too short, or none of Creek's."""
        starts = self.bounds[:-1]
        found = np.zeros(len(self), f"S{_FINGERPRINT_BYTES}").view(np.uint8).reshape(len(self), _FINGERPRINT_BYTES)
        is_long = np.flatnonzero(self.bounds[1:] - starts >= LEAST_BYTES)
        raw = np.frombuffer(self.data, np.uint8)
        heads = raw[starts[is_long, None] + np.arange(LEAST_BYTES)]
        is_ours = (heads[:, :_FINGERPRINT_AT] == _MAGIC).all(axis=1)
        found[is_long[is_ours]] = heads[is_ours, _FINGERPRINT_AT:]
        # Numpy's texts end at their last byte that is not zero, so these are compared as they are, and written out as bytes.
        return found.reshape(-1).view(f"V{_FINGERPRINT_BYTES}")


def joined(parts: Iterable[Messages]) -> Messages:
    """The messages of several runs, one behind the other."""
    found = [part for part in parts if len(part)]
    if len(found) == 1:
        return found[0]
    starts = np.cumsum([0, *(len(part.data) for part in found)])
    bounds = [part.bounds[1:] + start for part, start in zip(found, starts[:-1], strict=True)]
    none = np.zeros(0, np.int64)
    unchanged: dict[int, str] = {}
    for part in found:
        unchanged.update(part.unchanged)
    return Messages(
        b"".join(part.data for part in found),
        np.concatenate([np.zeros(1, np.int64), *bounds]),
        np.concatenate([none, *(part.sequences for part in found)]),
        np.concatenate([none, *(part.subjects for part in found)]),
        unchanged,
    )
