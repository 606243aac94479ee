"""Messages that go out, as columns, and their publishes as one buffer: no Python runs per message."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.brokers.columns import FEW, Integers, lengths, starts
from headwater.errors import SettingsError

_ID = b"\r\nNATS/1.0\r\nNats-Msg-Id: "
# What the headers of a message have besides the id and its own lines: from NATS/1.0 on, without the line end before it.
HEADER_BYTES = len(_ID) - 2 + len(b"\r\n\r\n")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Messages of one stream, in order: all of one subject, or each of its own."""

    # That of all messages, unless there are `subjects`: then it only stands for them in what is said about them.
    subject: str
    # Nats-Msg-Id of each; JetStream stores none of them twice within the stream's duplicate window.
    ids: pa.Array
    payloads: pa.Array
    # More header lines of each, `Name: value\r\n` after one another.
    headers: pa.Array | None = None
    # Where messages may consist of several packets: true for the first of each. Without it, each is a message of its own.
    starts: pa.Array | None = None
    # The subject of each, where they are not of one.
    subjects: pa.Array | None = None

    def __post_init__(self) -> None:
        if len({len(column) for column in self._columns if column is not None}) != 1:
            raise SettingsError(f"the columns of the messages for {self.subject!r} differ in length")
        for subject in [self.subject] if self.subjects is None else self.subjects.unique().to_pylist():
            if not subject or any(character.isspace() for character in subject):
                raise SettingsError(f"{subject!r} is no subject of NATS; it must not be empty nor hold blanks")

    def __len__(self) -> int:
        return len(self.ids)

    def sizes(self) -> Integers:
        """What each message counts against the server's max_payload: its headers and its payload."""
        sizes = lengths(self.ids) + lengths(self.payloads) + HEADER_BYTES
        return sizes if self.headers is None else sizes + lengths(self.headers)

    def subject_of(self, index: int) -> str:
        return self.subject if self.subjects is None else str(self.subjects[index])

    def part(self, start: int, end: int) -> "Outgoing":
        columns = (column if column is None else column.slice(start, end - start) for column in self._columns)
        return Outgoing(self.subject, *columns)

    def chosen(self, indices: Integers, rounds: Integers) -> "Outgoing":
        """Some of the messages; the ids of those whose round n is not 0 end in `-r<n>`."""
        if len(indices) and indices[-1] - indices[0] + 1 == len(indices):
            chosen = self.part(int(indices[0]), int(indices[-1]) + 1)
        else:
            places = pa.array(indices)
            columns = (column if column is None else column.take(places) for column in self._columns)
            chosen = Outgoing(self.subject, *columns)
        return replace(chosen, ids=_renamed(chosen.ids, rounds)) if rounds.any() else chosen

    @property
    def _columns(self) -> tuple[pa.Array | None, ...]:
        return self.ids, self.payloads, self.headers, self.starts, self.subjects


@dataclass(frozen=True, slots=True)
class Frames:
    """Publishes, one after the other, and where each begins; the last offset is the end."""

    data: memoryview
    offsets: Integers

    def part(self, start: int, end: int) -> memoryview:
        return self.data[self.offsets[start] : self.offsets[end]]


def build_frames(outgoing: Outgoing, reply_prefix: str, first: int) -> Frames:
    """HPUB of each message with its id; answers go to the prefix and the message's number, counted from `first`."""
    if len(outgoing) <= FEW:
        return _build_few(outgoing, reply_prefix, first)
    header_sizes, headers = lengths(outgoing.ids) + HEADER_BYTES, outgoing.headers
    if headers is not None:
        headers = pc.fill_null(headers.cast(pa.large_binary()), b"")
        header_sizes = header_sizes + lengths(headers)
    # The scalars of a join cost as much as arrays do, so what stands between blanks is joined first.
    line = pc.binary_join_element_wise(
        _digits(np.arange(first, first + len(outgoing))),
        _digits(header_sizes),
        _digits(header_sizes + lengths(outgoing.payloads)),
        _constant(b" "),
    )
    joined = pc.binary_join_element_wise(
        *_destinations(outgoing, reply_prefix),
        line,
        _constant(_ID),
        outgoing.ids.cast(pa.large_binary()),
        *([_constant(b"\r\n\r\n")] if headers is None else [_constant(b"\r\n"), headers, _constant(b"\r\n")]),
        outgoing.payloads.cast(pa.large_binary()),
        _constant(b"\r\n"),
        _constant(b""),
    )
    return Frames(memoryview(joined.buffers()[2]), starts(joined))


def _build_few(outgoing: Outgoing, reply_prefix: str, first: int) -> Frames:
    """The same one by one, which is faster for few."""
    nothing = [None] * len(outgoing)
    subjects = nothing if outgoing.subjects is None else outgoing.subjects.to_pylist()
    lines = nothing if outgoing.headers is None else outgoing.headers.to_pylist()
    publishes = []
    values = zip(outgoing.ids.to_pylist(), map(_bytes, outgoing.payloads.to_pylist()), lines, subjects, strict=True)
    for number, (id, payload, line, subject) in enumerate(values, first):
        headers = b"%b%b\r\n%b\r\n" % (_ID[2:], _bytes(id), _bytes(line or b""))
        place = f"HPUB {subject or outgoing.subject} {reply_prefix}{number} {len(headers)} {len(headers) + len(payload)}\r\n"
        publishes.append(b"%b%b%b\r\n" % (place.encode(), headers, payload))
    return Frames(memoryview(b"".join(publishes)), np.cumsum([0, *map(len, publishes)]))


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def _destinations(outgoing: Outgoing, reply_prefix: str) -> list[pa.Array | pa.Scalar]:
    if outgoing.subjects is None:
        return [_constant(f"HPUB {outgoing.subject} {reply_prefix}".encode())]
    return [_constant(b"HPUB "), outgoing.subjects.cast(pa.large_binary()), _constant(f" {reply_prefix}".encode())]


def _renamed(ids: pa.Array, rounds: Integers) -> pa.Array:
    ids = ids.cast(pa.large_binary())
    suffixed = pc.binary_join_element_wise(ids, _constant(b"-r"), _digits(rounds), _constant(b""))
    return pc.if_else(pa.array(rounds > 0), suffixed, ids)


def _digits(numbers: Integers) -> pa.Array:
    return pa.array(numbers).cast(pa.large_string()).cast(pa.large_binary())


def _constant(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.large_binary())
