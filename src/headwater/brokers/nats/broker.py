"""NATS JetStream as a broker: messages as columns in, each stored in a stream or refused when the call returns."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from headwater.brokers.base import Offered, Published, Refused, check_template, destinations
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.envelope import forbidden, header_lines, subject_problem
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.publisher import Outgoing, Publisher
from headwater.brokers.nats.streams import StreamLimits, call, ensure_stream
from headwater.errors import BrokerUnavailable, SettingsError
from headwater.model import Messages

T = TypeVar("T")

# Between tries while the server is away; short, since what is lost is the time after it is well again.
_PAUSE_SECONDS = 0.1
# Also when the time is almost up, an answer gets a fair chance.
_LEAST_SECONDS = 0.5
_DESCRIPTION = "Messages that Headwater publishes"


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsBrokerSettings:
    """Where messages go: {topic} and {type} in `subject` stand for those of the message.

    With `stream`, subjects that no stream stores are given to the stream of that name, which is made if it is missing: those
    in `stream_subjects`, such as `orders.>`, or else each subject by itself. Without it, such messages are refused.
    """

    subject: str = "{topic}"
    # `source` of the CloudEvents.
    source: str = "headwater"
    stream: str | None = None
    stream_subjects: Sequence[str] = ()
    limits: StreamLimits = field(default_factory=StreamLimits)

    def __post_init__(self) -> None:
        check_template("subject for NATS", self.subject)
        if not self.source:
            raise SettingsError("the source of CloudEvents is empty; name the application, as in https://example.com/shop")
        if self.stream is not None and (not self.stream or any(mark in self.stream for mark in ".*>/\\ \t\r\n")):
            raise SettingsError(f"{self.stream!r} is no name of a stream; it may not hold dots, blanks, * or >")
        if self.stream_subjects and self.stream is None:
            raise SettingsError("stream_subjects for NATS need a stream")


class NatsBroker:
    """Publishes to JetStream; the id of a message is its Nats-Msg-Id, so the stream leaves out what it has.

    Messages of one stream keep their order. A closed broker opens again when it is used.
    """

    def __init__(self, access: NatsAccess, settings: NatsBrokerSettings | None = None) -> None:
        self._access, self._settings = access, settings or NatsBrokerSettings()
        self._seconds = access.timeout.total_seconds()
        self._publisher: Publisher | None = None
        # The stream of each subject that has one.
        self._streams: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"NatsBroker({self._access.describe()})"

    def publish(self, messages: Messages) -> Published:
        """As `Broker.publish` says."""
        subjects = destinations(self._settings.subject, messages)
        refused = self._refused(messages, subjects, self._seconds)
        by_stream: defaultdict[str, list[int]] = defaultdict(list)
        for index, subject in enumerate(subjects.to_pylist()):
            if index not in refused:
                by_stream[self._streams[subject]].append(index)
        stored = duplicates = 0
        for places in by_stream.values():
            published = self._publish(messages, subjects, np.array(places))
            stored, duplicates = stored + published.stored, duplicates + published.duplicates
            refused |= {one.index: one.reason for one in published.refused}
        return Published(stored, duplicates, _sorted(refused))

    def offer(self, messages: Messages) -> Offered:
        """As `Broker.offer` says; the messages of all streams are on their way together."""
        deadline = time.monotonic() + self._seconds
        subjects = destinations(self._settings.subject, messages)
        refused = self._refused(messages, subjects, 0)
        places = np.array([place for place in range(len(messages)) if place not in refused], np.int64)
        offered = Offered(0)
        if len(places):
            publisher = self._reach(lambda publisher: publisher, 0)
            seconds = max(deadline - time.monotonic(), _LEAST_SECONDS)
            offered = publisher.offer(self._outgoing(messages, subjects, places), seconds)
            if offered.left:
                # A stream may have gone: the next call asks anew.
                self._streams.clear()
        refused |= {int(places[one.index]): one.reason for one in offered.refused}
        left = tuple(replace(one, index=int(places[one.index])) for one in offered.left)
        return Offered(offered.stored, offered.duplicates, _sorted(refused), left)

    def check(self) -> None:
        """Connect, and log in."""
        self._reach(lambda publisher: publisher.connected(), self._seconds)

    def close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()

    def _publish(self, messages: Messages, subjects: pa.Array, places: np.ndarray) -> Published:
        """Messages of one stream: JetStream numbers them, and by that the order is known."""
        outgoing = self._outgoing(messages, subjects, places)
        try:
            published = self._reach(lambda publisher: publisher, self._seconds).publish(outgoing)
        except BrokerUnavailable:
            # A stream may have gone: the next call asks anew, and refuses what has none.
            self._streams.clear()
            raise
        refused = tuple(Refused(int(places[one.index]), one.reason) for one in published.refused)
        return Published(published.stored, published.duplicates, refused)

    def _outgoing(self, messages: Messages, subjects: pa.Array, places: np.ndarray) -> Outgoing:
        if len(places) < len(messages):
            messages, subjects = messages.taken(places), subjects.take(pa.array(places))
        unique = subjects.unique()
        return Outgoing(
            unique[0].as_py(),
            messages.column("id"),
            messages.column("payload"),
            header_lines(messages, self._settings.source),
            subjects=subjects if len(unique) > 1 else None,
        )

    def _refused(self, messages: Messages, subjects: pa.Array, seconds: float) -> dict[int, str]:
        """What cannot be published, by place, and why; the streams of all others are known afterwards."""
        unique = subjects.unique().to_pylist()
        problems = {subject: problem for subject in unique if (problem := subject_problem(subject)) is not None}
        unknown = [subject for subject in unique if subject not in problems and subject not in self._streams]
        if unknown:
            self._reach(lambda publisher: self._find_streams(publisher.connected(), unknown), seconds)
        for subject in unknown:
            if subject not in self._streams:
                problems[subject] = self._unroutable(subject)
        found = forbidden(messages)
        if problems:
            found |= {index: problems[one] for index, one in enumerate(subjects.to_pylist()) if one in problems}
        return found

    def _find_streams(self, link: Link, subjects: Sequence[str]) -> None:
        self._look_up(link, subjects)
        missing = [subject for subject in subjects if subject not in self._streams]
        if missing and self._settings.stream is not None:
            wanted = self._settings.stream_subjects or missing
            ensure_stream(link, self._settings.stream, wanted, _DESCRIPTION, self._settings.limits)
            self._look_up(link, missing)

    def _look_up(self, link: Link, subjects: Sequence[str]) -> None:
        for subject in subjects:
            # At most one stream has a subject.
            for stream in call(link, "STREAM.NAMES", {"subject": subject}).get("streams") or []:
                self._streams[subject] = stream

    def _unroutable(self, subject: str) -> str:
        if (stream := self._settings.stream) is not None:
            return f"unroutable: no stream stores subject {subject!r}; add it to stream_subjects of {stream!r}"
        return f"unroutable: no stream stores subject {subject!r}; make one, or set `stream` for Headwater to make it"

    def _reach(self, work: Callable[[Publisher], T], seconds: float) -> T:
        """Do what needs a server, again and again while it is away, for so long."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if self._publisher is None:
                    self._publisher = Publisher(self._access)
                return work(self._publisher)
            except BrokerUnavailable:
                self.close()
                if time.monotonic() + _PAUSE_SECONDS > deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)
            except BaseException:
                # Answers to what was asked must not be taken for those of the next call.
                self.close()
                raise


def _sorted(refused: dict[int, str]) -> tuple[Refused, ...]:
    return tuple(Refused(index, refused[index]) for index in sorted(refused))
