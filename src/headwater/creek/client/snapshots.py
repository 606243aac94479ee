"""Snapshots: asked for, listed, and read row by row up to their end."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from headwater.creek.client.broker import Broker
from headwater.creek.client.headers import ROWS, SNAPSHOT, UNTIL, find_header
from headwater.creek.client.messages import Messages, Whole
from headwater.creek.decode import Decoder
from headwater.creek.messages import EOF, SnapshotHeader, SnapshotRequest
from headwater.creek.names import Kind, Names, parse_subject
from headwater.creek.requests import ERROR_HEADER
from headwater.errors import BrokerUnavailable, MessageError, SnapshotFailed
from headwater.model import Lsn, Snapshot, SnapshotRead

# The random part at the end of a topic, and the form of what is before it.
_RANDOM_CHARACTERS = 5
_TIME = "%Y%m%d%H%M%S_%f"
# The header and the end.
_MESSAGES_AROUND_ROWS = 2


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A snapshot that is in the stream: `name` is its topic, `messages` how many rows it has (more, if some are large)."""

    name: str
    at: datetime
    messages: int


def parse_infos(counts: dict[str, int]) -> list[SnapshotInfo]:
    """Snapshots by the subjects that they are on, in the order of their topics; another subject than Creek's is left out."""
    found = []
    for name in sorted(counts):
        try:
            at = datetime.strptime(name.rpartition(".")[2][:-_RANDOM_CHARACTERS], _TIME).replace(tzinfo=UTC)
        except ValueError:
            continue
        found.append(SnapshotInfo(name, at, max(0, counts[name] - _MESSAGES_AROUND_ROWS)))
    return found


async def request_snapshot(broker: Broker, names: Names, schema: str, table: str) -> str:
    """The topic of a snapshot that a producer has begun; raises `SnapshotFailed` with its reason if it refuses."""
    request = SnapshotRequest(names.database, schema, table)
    answer = await broker.request(names.snapshot_requests[0], request.to_json())
    text = answer.data.decode(errors="replace")
    reason = (answer.headers or {}).get(ERROR_HEADER)
    if reason is None and not _is_topic(text, names):
        reason = text[:500] or "the answer is empty"
    if reason is not None:
        raise SnapshotFailed(f"database {names.database!r} gives no snapshot of {schema}.{table}: {reason}")
    return text


def _is_topic(text: str, names: Names) -> bool:
    try:
        return parse_subject(text, names.root, names.generation).kind is Kind.SNAPSHOT
    except ValueError:
        return False


class SnapshotReader:
    """One snapshot: its header, its key, and its rows, which come as the producer reads them.

    `seen` tells which changes the rows hold already, if the producer says so: skip a message of the WAL for which
    `seen.holds(source.tx_id, source.lsn)`. Without it, skip those whose LSN is not beyond that of the header, as Creek does.
    """

    def __init__(self, messages: Messages, header: SnapshotHeader, seen: SnapshotRead | None, seconds: float) -> None:
        self._messages, self.header, self.seen, self._seconds = messages, header, seen, seconds
        self._decoder = Decoder(header.schema)
        self._rows, self._is_over = 0, False

    @classmethod
    async def begin(cls, messages: Messages, topic: str, seconds: float) -> Self:
        """A reader whose header has come; whatever goes wrong, nothing stays open."""
        try:
            _, headers, body = await _next(messages, topic, seconds)
            header = replace(SnapshotHeader.from_json(body), topic=topic)
            return cls(messages, header, _seen(headers), seconds)
        except ValueError as error:
            await messages.feed.close()
            raise MessageError(f"snapshot {topic} begins with something else than a header: {error}") from error
        except BaseException:
            await messages.feed.close()
            raise

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns of the key."""
        return tuple(dict.fromkeys(field.name for field in self._decoder.schema.after.fields if field.is_key))

    def rows(self) -> AsyncIterator[dict[str, object]]:
        """The rows that were not given out yet."""
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, object]:
        if self._is_over:
            raise StopAsyncIteration
        whole = self._messages.take() or await _next(self._messages, self.header.topic, self._seconds)
        sequence, headers, body = whole
        _check(headers, self.header.topic)
        if body == EOF and self._is_end(headers):
            await self.aclose()
            raise StopAsyncIteration
        try:
            row = self._decoder.row(body)
        except MessageError as error:
            raise MessageError(f"message {sequence} of snapshot {self.header.topic} cannot be read: {error}") from error
        self._rows += 1
        return row

    def _is_end(self, headers: bytes | None) -> bool:
        """Whether it is the end; to those of Headwater's own a row may look alike, but for the number of rows."""
        rows = find_header(headers, ROWS)
        if rows is None:
            self._is_over = self.seen is None
        elif self._rows >= int(rows):
            self._is_over = True
        else:
            raise SnapshotFailed(
                f"snapshot {self.header.topic} has {rows} rows, and only {self._rows} came; ask for another"
            )
        return self._is_over

    async def aclose(self) -> None:
        await self._messages.feed.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _seen(headers: bytes | None) -> SnapshotRead | None:
    snapshot, until = find_header(headers, SNAPSHOT), find_header(headers, UNTIL)
    return SnapshotRead(Snapshot.parse(snapshot), Lsn.parse(until)) if snapshot and until else None


async def _next(messages: Messages, topic: str, seconds: float) -> Whole:
    whole = await messages.next(seconds)
    if whole is None:
        raise BrokerUnavailable(
            f"snapshot {topic} is not complete, and nothing more of it came within {seconds:g} s; ask for another"
        )
    _check(whole[1], topic)
    return whole


def _check(headers: bytes | None, topic: str) -> None:
    if (reason := find_header(headers, ERROR_HEADER)) is not None:
        raise SnapshotFailed(f"snapshot {topic} was broken off: {reason}")
