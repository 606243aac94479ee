"""What was read from a stream and is not yet delivered for good: the messages that ranges are cut from.

It lives in Spark's planner process. The stream keeps its messages, so whatever is forgotten here can be read again.
"""

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Condition, Thread

import numpy as np

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.reader import Received, StreamReader
from headwater.creek.framing import FIRST_BYTES, Reassembly
from headwater.errors import HeadwaterError, PositionError
from headwater.spark.sources.creek.messages import Messages, joined
from headwater.spark.sources.creek.offset import Mark
from headwater.spark.sources.creek.stream import StreamWatch

# As many as a read hands over at a time: enough that the work is not in the calls.
_READ_MESSAGES = 8192
# How long to wait at a time for what may not come.
_PATIENCE_SECONDS = 0.2
# What comes in one go is taken as one batch: until nothing has come for a moment, but not for long.
_LULL_SECONDS, _GATHER_SECONDS = 0.01, 0.25
# A stream that only others' messages come in is passed over now and then: it may forget them, and must not be missed then.
_PASS_SECONDS = 30.0
_UNCHANGED = re.compile(rb"^Headwater-Unchanged:[ \t]*(.*?)[ \t]*\r?$", re.MULTILINE | re.IGNORECASE)


@dataclass(slots=True)
class _Long:
    """A message of several packets: from its first one to its last, or to where it was given up."""

    subject: str
    first: int
    headers: bytes | None
    last: int | None = None

    def is_open_at(self, sequence: int) -> bool:
        return self.first <= sequence and (self.last is None or self.last > sequence)


class MessageLog:
    """The messages of some subjects behind a mark, in order. A thread of its own reads ahead of what is asked for."""

    def __init__(  # noqa: PLR0913 - what is read, from where on, and how far ahead
        self,
        access: NatsAccess,
        watch: StreamWatch,
        identity: str,
        subjects: Mapping[str, int],
        start: Mark,
        ahead_bytes: int,
    ) -> None:
        """`subjects` gives each a number; raises PositionError if the stream does not have what lies behind `start`."""
        watch.require(identity, start.first_needed)
        self._access, self._watch, self._ahead_bytes = access, watch, ahead_bytes
        self._subjects, self._start = dict(subjects), start
        # Guards all that follows, and tells of what has come.
        self._came = Condition()
        self._parts: deque[Messages] = deque()
        self._held = 0
        self._reassembly = Reassembly()
        self._long: list[_Long] = []
        self._floor = self._end = start.sequence
        self._passed_at, self._passed = time.monotonic(), 0
        self._is_bounded, self._is_closed = True, False
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._read, name="creek stream", daemon=True)
        self._thread.start()

    @property
    def subjects(self) -> Mapping[str, int]:
        return self._subjects

    @property
    def floor(self) -> int:
        """Everything up to here has been delivered."""
        return self._floor

    @property
    def end(self) -> int:
        """How far has been read."""
        return self._end

    def close(self) -> None:
        with self._came:
            self._is_closed = True
            self._came.notify_all()
        self._thread.join(_PATIENCE_SECONDS * 10)

    def advance(self, committed: int) -> None:
        """Everything up to `committed` is delivered for good: forget it."""
        with self._came:
            self._floor = max(self._floor, committed)
            self._end = max(self._end, self._floor)
            while self._parts and int(self._parts[0].sequences[-1]) <= self._floor:
                self._held -= len(self._parts.popleft().data)
            self._long = [one for one in self._long if one.last is None or one.last > self._floor]
            self._came.notify_all()

    def fill(self, max_bytes: int, wait_seconds: float) -> None:
        """Wait a little for something to come; while more and more does, for so many bytes of it."""
        with self._came:
            self._wait(lambda: bool(self._parts), wait_seconds)
            deadline, held = time.monotonic() + _GATHER_SECONDS, -1
            while held < self._held < max_bytes and time.monotonic() < deadline:
                held = self._held
                self._came.wait(_LULL_SECONDS)
            if self._failure is not None and not self._parts:
                # What came before it is delivered first.
                raise self._failure
            is_idle = not self._parts and time.monotonic() - self._passed_at > _PASS_SECONDS
        if is_idle:
            self.pass_over()

    def fill_to(self, sequence: int, max_bytes: int | None = None) -> None:
        """Wait until everything up to a sequence has come, or so much is held."""

        def is_enough() -> bool:
            return self._end >= sequence or (max_bytes is not None and self._held >= max_bytes)

        while True:
            with self._came:
                self._is_bounded = max_bytes is not None
                self._came.notify_all()
                before = self._end
                self._wait(is_enough, _PATIENCE_SECONDS)
                if is_enough():
                    self._is_bounded = True
                    return
                if self._failure is not None:
                    raise self._failure
                is_still = self._end == before
            if is_still:
                self.pass_over()

    def pass_over(self) -> None:
        """If all of ours has come, what others have written since is nothing to us.

        What the stream has thrown away behind the end may have been ours. The reader, which may have it already, tells: it
        goes on, or fails.
        """
        self._passed_at = time.monotonic()
        last = self._watch.info().last_seq
        wanted = max(map(self._watch.last_of, self._subjects))
        # Asked last: what was there now was there when the subjects were looked at.
        first = self._watch.info().first_seq
        with self._came:
            if wanted <= self._end and first <= self._end + 1:
                self._end = self._passed = max(self._end, last)

    def bound(self, max_bytes: int, max_rows: int | None, until: int | None = None) -> Mark:
        """Where the next range ends, within the limits; at the floor if there is nothing to deliver."""
        with self._came:
            return self._bound(max_bytes, max_rows, until)

    def _bound(self, max_bytes: int, max_rows: int | None, until: int | None) -> Mark:
        end = self._end if until is None else min(until, self._end)
        size = rows = last = 0
        for part in self._parts:
            waiting = part.between(self._floor, end)
            if not len(waiting):
                continue
            taken = waiting.within(max_bytes - size, None if max_rows is None else max_rows - rows)
            taken = max(taken, 0 if rows else 1)
            if taken < len(waiting):
                return self._mark_at(int(waiting.sequences[taken - 1]) if taken else last)
            size, rows, last = size + len(waiting.data), rows + len(waiting), int(waiting.sequences[-1])
        # Behind the last message nothing of ours comes up to the end of what was read.
        return self._mark_at(max(self._floor, end))

    def has_messages(self, start: Mark, end: Mark) -> bool:
        """Whether there is anything in a range."""
        return any(map(len, self._within(start, end)))

    def between(self, start: Mark, end: Mark) -> Messages:
        """The messages of a range."""
        if start.sequence < self._floor or end.sequence > self._end:
            raise PositionError(
                f"messages {start.sequence} to {end.sequence} of stream {self._watch.stream!r} were asked for, and "
                f"{self._floor} to {self._end} are there; report it"
            )
        return joined(self._within(start, end))

    def counts(self, start: Mark, end: Mark) -> dict[int, int]:
        """How many messages of each subject, by its number, there are in a range."""
        found: Counter[int] = Counter()
        for part in self._within(start, end):
            numbers, counts = np.unique(part.subjects, return_counts=True)
            found.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        return dict(found)

    def was_passed_over(self, sequence: int) -> bool:
        """Whether what lies between a sequence and the end of what was read was passed over, and is worth to be logged."""
        return self._passed > sequence

    def _within(self, start: Mark, end: Mark) -> list[Messages]:
        with self._came:
            return [part.between(start.sequence, end.sequence) for part in self._parts]

    def _wait(self, is_enough: Callable[[], bool], seconds: float) -> None:
        self._came.wait_for(lambda: is_enough() or self._failure is not None, seconds)

    def _read(self) -> None:
        """What the thread does: take messages in as long as there is room for them."""
        try:
            with closing(self._reader()) as reader:
                while self._has_room():
                    received = reader.read(_READ_MESSAGES, _PATIENCE_SECONDS)
                    with self._came:
                        if received:
                            self._add(received)
                        if received or reader.complete > self._end:
                            self._end = max(self._end, reader.complete)
                            self._came.notify_all()
        except HeadwaterError as exc:
            self._fail(exc)
        except BaseException as exc:
            self._fail(exc)
            raise

    def _fail(self, failure: BaseException) -> None:
        with self._came:
            self._failure = failure
            self._came.notify_all()

    def _reader(self) -> StreamReader:
        return StreamReader(self._access, self._watch.stream, list(self._subjects), self._start.first_needed)

    def _has_room(self) -> bool:
        """Wait until there is room; False when nothing more is wanted."""
        with self._came:
            self._came.wait_for(lambda: self._is_closed or not self._is_bounded or self._held < self._ahead_bytes)
            return not self._is_closed

    def _mark_at(self, sequence: int) -> Mark:
        """The mark of a sequence up to which all has been read."""
        if sequence == self._start.sequence:
            return self._start
        return Mark(sequence, {one.subject: one.first for one in self._long if one.is_open_at(sequence)})

    def _add(self, received: Sequence[Received]) -> None:
        found = self._simple(received) or self._assembled(received)
        if len(found):
            self._parts.append(found)
            self._held += len(found.data)
        self._end = max(self._end, received[-1].sequence)

    def _simple(self, received: Sequence[Received]) -> Messages | None:
        """Messages of one packet each, which nearly all are; None if one is not."""
        if self._long and any(one.last is None for one in self._long):
            return None
        if received[0].sequence <= self._start.sequence:
            return None
        bodies, unchanged = [], {}
        for _, sequence, _, headers, payload in received:
            if payload[:2] != b"\0\0" or int.from_bytes(payload[2:6]) != len(payload) - FIRST_BYTES:
                return None
            bodies.append(payload[FIRST_BYTES:])
            if headers is not None and (names := unchanged_in(headers)) is not None:
                unchanged[sequence] = names
        numbers = self._subjects
        return Messages.of(bodies, [one.sequence for one in received], [numbers[one.subject] for one in received], unchanged)

    def _assembled(self, received: Sequence[Received]) -> Messages:
        """Messages of any number of packets."""
        bodies: list[bytes] = []
        sequences: list[int] = []
        subjects: list[int] = []
        unchanged: dict[int, str] = {}
        for subject, sequence, _, headers, payload in received:
            if sequence <= self._start.sequence and sequence < self._start.begun.get(subject, sequence + 1):
                # Delivered before; it was only read again for the sake of another message.
                continue
            number = int.from_bytes(payload[:2])
            body = self._reassembly.add(subject, payload)
            one = self._follow(subject, sequence, headers, is_first=number == 0, is_whole=body is not None)
            if body is not None:
                bodies.append(body)
                sequences.append(sequence)
                subjects.append(self._subjects[subject])
                names = unchanged_in(one.headers if one is not None else headers)
                if names is not None:
                    unchanged[sequence] = names
        return Messages.of(bodies, sequences, subjects, unchanged)

    def _follow(self, subject: str, sequence: int, headers: bytes | None, *, is_first: bool, is_whole: bool) -> _Long | None:
        """Keep track of messages that take several packets; the one that this packet belongs to, if it is one of these."""
        one = next((one for one in self._long if one.subject == subject and one.last is None), None)
        if one is not None and (is_first or is_whole):
            one.last = sequence
        if is_first and not is_whole:
            self._long.append(_Long(subject, sequence, headers))
        return None if is_first else one


def unchanged_in(headers: bytes | None) -> str | None:
    """The names of columns that an update left alone without saying what they hold, as the header has them."""
    found = None if headers is None or b"nchanged" not in headers else _UNCHANGED.search(headers)
    return None if found is None else found[1].decode()
