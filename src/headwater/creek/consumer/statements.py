"""The statements of the consumer's tables, typed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from headwater.creek.consumer.mapping import TableMapping, Target, Topic
from headwater.model import Lsn, Snapshot, SnapshotRead
from headwater.postgres.statements import Statement, load

SCHEMA: Final = "_creek_consumer"
SQL: Final = load("headwater.creek.consumer", schema=SCHEMA)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a stream: that of a name which was made at a time, behind all messages that end at or before `sequence`.

    `begun` has, by topic, where messages begin that have begun by then and end later.
    """

    stream: str
    identity: str
    sequence: int
    begun: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Join:
    """The messages that rows of a snapshot hold already: by transactions where these are known, else by position."""

    read: SnapshotRead | None = None
    skip_lsn: Lsn | None = None

    @property
    def end(self) -> Lsn | None:
        """From where on the rows hold no message; None if there is no snapshot."""
        ends = [] if self.read is None else [self.read.until]
        ends += [] if self.skip_lsn is None else [Lsn(self.skip_lsn + 1)]
        return max(ends, default=None)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A row of `subscriptions`; `read_to` and `read_begun` say how far its stream was read as a whole."""

    topic: str
    target: str
    lsn: Lsn | None
    at: datetime | None
    is_active: bool
    stream: str | None
    identity: str | None
    sequence: int | None
    begun: int | None
    generation: int
    is_behind: bool
    snapshot: str | None
    until_lsn: Lsn | None
    skip_lsn: Lsn | None
    error: str | None
    read_to: int | None
    read_begun: int | None

    @property
    def mapping(self) -> TableMapping:
        return TableMapping(Topic.parse(self.topic), Target.parse(self.target))

    @property
    def place(self) -> Place | None:
        """Where it goes on: all messages of its table before that are applied. None if it has no place yet."""
        if self.sequence is None or self.stream is None or self.identity is None:
            return None
        sequence, begun = self.sequence, self.begun
        if not self.is_behind and self.read_to is not None and self.read_to > sequence:
            sequence, begun = self.read_to, self.read_begun
        return Place(self.stream, self.identity, sequence, {} if begun is None else {self.topic: begun})

    @property
    def join(self) -> Join:
        read = None
        if self.snapshot is not None and self.until_lsn is not None:
            read = SnapshotRead(Snapshot.parse(self.snapshot), self.until_lsn)
        return Join(read, self.skip_lsn)


@dataclass(frozen=True, slots=True)
class Request:
    """Something that was asked for by SQL. `kind` is create, snapshot or apply; `name` the topic of a snapshot."""

    id: int
    kind: str
    topic: str
    target: str
    mode: str
    name: str | None
    command: str

    @property
    def mapping(self) -> TableMapping:
        return TableMapping(Topic.parse(self.topic), Target.parse(self.target))


@dataclass(frozen=True, slots=True)
class Moved:
    """A target that is further on; `lsn` and `at` of the last message that was applied, if any was.

    `begun` is where a message begins that ends behind the place where it is then. It `is_joined` with its snapshot once a
    message was applied that came after that.
    """

    target: Target
    begun: int | None
    lsn: Lsn | None
    at: datetime | None
    is_joined: bool


@dataclass(frozen=True, slots=True)
class Loaded:
    """A snapshot that is in: what it holds, and from where the changes of its table go on."""

    mapping: TableMapping
    place: Place
    lsn: Lsn
    at: datetime
    join: Join


def list_subscriptions() -> Statement[Subscription]:
    return SQL["list_subscriptions"].bind(Subscription)


def hold_subscriptions(targets: Sequence[Target]) -> Statement[Subscription]:
    return SQL["hold_subscriptions"].bind(Subscription, targets=[str(target) for target in targets])


def move_subscriptions(moved: Sequence[Moved], sequence: int) -> Statement[object]:
    return SQL["move_subscriptions"].bind(
        object,
        sequence=sequence,
        targets=[str(one.target) for one in moved],
        begun=[one.begun for one in moved],
        lsns=[None if one.lsn is None else str(one.lsn) for one in moved],
        ats=[one.at for one in moved],
        joined=[one.is_joined for one in moved],
    )


def place_subscription(target: str, place: Place) -> Statement[object]:
    return SQL["place_subscription"].bind(
        object, target=target, stream=place.stream, identity=place.identity, sequence=place.sequence
    )


def fail_subscription(one: Subscription, error: str) -> Statement[object]:
    place = one.place
    return SQL["fail_subscription"].bind(
        object,
        target=one.target,
        generation=one.generation,
        error=error,
        sequence=None if place is None else place.sequence,
        begun=None if place is None else place.begun.get(one.topic),
    )


def retry_failed() -> Statement[object]:
    return SQL["retry_failed"].bind(object)


def advance_subscriptions(
    advanced: Sequence[tuple[TableMapping, int]], start: int, place: Place, *, is_settled: bool
) -> Statement[str]:
    """Tables with their generations, which were at `start`; the rows are the targets of those that were not."""
    return SQL["advance_subscriptions"].bind(
        str,
        targets=[str(table.target) for table, _ in advanced],
        generations=[generation for _, generation in advanced],
        begun=[place.begun.get(str(table.topic)) for table, _ in advanced],
        start=start,
        sequence=place.sequence,
        is_settled=is_settled,
    )


def part_subscriptions(stream: str, identity: str) -> Statement[object]:
    return SQL["part_subscriptions"].bind(object, stream=stream, identity=identity)


def save_stream(start: int, place: Place, *, is_known: bool = False) -> Statement[str]:
    """A stream that was at `start`; there is a row if it was not, or if it `is_known` to have been somewhere and was not."""
    begun = json.dumps(dict(place.begun))
    return SQL["save_stream"].bind(
        str,
        stream=place.stream,
        identity=place.identity,
        start=start,
        sequence=place.sequence,
        begun=begun,
        is_known=is_known,
    )


def find_stream(stream: str, identity: str) -> Statement[Place]:
    return SQL["find_stream"].bind(Place, stream=stream, identity=identity)


def lock_target(mapping: TableMapping) -> Statement[str]:
    return SQL["lock_target"].bind(str, topic=str(mapping.topic), target=str(mapping.target))


def save_loaded(loaded: Loaded) -> Statement[object]:
    read = loaded.join.read
    return SQL["save_loaded"].bind(
        object,
        topic=str(loaded.mapping.topic),
        target=str(loaded.mapping.target),
        stream=loaded.place.stream,
        identity=loaded.place.identity,
        sequence=loaded.place.sequence,
        lsn=loaded.lsn,
        at=loaded.at,
        snapshot=None if read is None else str(read.snapshot),
        until_lsn=None if read is None else read.until,
        skip_lsn=loaded.join.skip_lsn,
    )


def add_table(mapping: TableMapping) -> Statement[object]:
    return SQL["add_table"].bind(object, mapping=str(mapping))


def remove_table(mapping: TableMapping) -> Statement[object]:
    return SQL["remove_table"].bind(object, mapping=str(mapping))


def ask_for_snapshot(mapping: TableMapping, mode: str) -> Statement[object]:
    return SQL["ask_for_snapshot"].bind(object, mapping=str(mapping), mode=mode)


def listen() -> Statement[None]:
    """Hear of it when something is asked for."""
    return SQL["listen"].compose()


def take_request() -> Statement[Request]:
    return SQL["take_request"].bind(Request)


def return_requests() -> Statement[object]:
    return SQL["return_requests"].bind(object)


def end_request(request: Request, error: str | None) -> Statement[object]:
    return SQL["end_request"].bind(object, id=request.id, error=error)
