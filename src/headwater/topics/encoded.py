"""Messages as they are written: by columns, so that what is done with many of them is done at once. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from headwater.topics.message import Fields


@dataclass(frozen=True, slots=True)
class Encoded:
    """Payloads, how many bytes each message has in all, and keys and headers unless no message has any."""

    payloads: Sequence[bytes]
    sizes: Sequence[int]
    keys: Sequence[bytes | None] | None = None
    # JSON texts, empty where there are none.
    headers: Sequence[bytes] | None = None

    @classmethod
    def of(cls, messages: Iterable[Fields]) -> "Encoded":
        payloads, keys, headers, sizes = zip(*messages, strict=True)
        return _without_empty(payloads, sizes, keys, headers)

    @classmethod
    def of_one(cls, message: Fields) -> "Encoded":
        payload, key, headers, size = message
        return cls((payload,), (size,), None if key is None else (key,), (headers,) if headers else None)

    @classmethod
    def joined(cls, parts: "Sequence[Encoded]") -> "Encoded":
        """All of them, in their order."""
        if len(parts) == 1:
            return parts[0]
        has_keys, has_headers = any(part.keys for part in parts), any(part.headers for part in parts)
        return cls(
            [payload for part in parts for payload in part.payloads],
            [size for part in parts for size in part.sizes],
            [key for part in parts for key in part.keys or [None] * len(part)] if has_keys else None,
            [header for part in parts for header in part.headers or [b""] * len(part)] if has_headers else None,
        )

    def __len__(self) -> int:
        return len(self.payloads)

    def portions(self, most_bytes: int) -> "Iterator[Encoded]":
        """In their order, each time as many as have no more than so many bytes together, or one that has more."""
        ends = list(accumulate(self.sizes))
        begin, before = 0, 0
        while begin < len(ends):
            end = max(bisect_right(ends, before + most_bytes, begin), begin + 1)
            yield self._between(begin, end)
            begin, before = end, ends[end - 1]

    def picked(self, places: Sequence[int]) -> "Encoded":
        """Those at some places."""
        return _without_empty(
            [self.payloads[place] for place in places],
            [self.sizes[place] for place in places],
            None if self.keys is None else [self.keys[place] for place in places],
            None if self.headers is None else [self.headers[place] for place in places],
        )

    def _between(self, begin: int, end: int) -> "Encoded":
        if (begin, end) == (0, len(self)):
            return self
        return _without_empty(
            self.payloads[begin:end],
            self.sizes[begin:end],
            self.keys and self.keys[begin:end],
            self.headers and self.headers[begin:end],
        )


def _without_empty(
    payloads: Sequence[bytes],
    sizes: Sequence[int],
    keys: Sequence[bytes | None] | None,
    headers: Sequence[bytes] | None,
) -> Encoded:
    """The columns but for those that no message has."""
    has_keys = keys is not None and keys.count(None) < len(keys)
    return Encoded(payloads, sizes, keys if has_keys else None, headers if any(headers or ()) else None)
