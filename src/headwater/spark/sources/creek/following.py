"""Which tables a query reads, and from where: those of its options, or those that a consumer in a database follows."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import psycopg

from headwater.brokers.nats.streams import StreamInfo
from headwater.creek.consumer.mapping import TableMapping
from headwater.creek.consumer.statements import Subscription, find_stream, list_subscriptions
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.statements import fetch_sync
from headwater.spark.sources.creek.offset import Behind, Mark, Offset
from headwater.spark.sources.creek.options import Options, Start
from headwater.spark.sources.creek.stream import identity_of


class Following(Protocol):
    """Says where to begin, and whether anything was added or taken out since."""

    def initial(self, info: StreamInfo) -> Offset: ...

    def refreshed(self, offset: Offset) -> Offset: ...

    def close(self) -> None: ...


class FixedTables:
    """The tables of the options."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def initial(self, info: StreamInfo) -> Offset:
        options = self._options
        last = info.last_seq if options.start is Start.LATEST else max(0, info.first_seq - 1)
        tables = tuple((table, 0) for table in options.tables)
        return Offset(options.stream, identity_of(info), Mark(last), options.lanes, tables)

    def refreshed(self, offset: Offset) -> Offset:
        return offset

    def close(self) -> None:
        """There is nothing to let go of."""


class Subscriptions:
    """The tables that a consumer follows in its target, where each begins by itself."""

    def __init__(self, options: Options, url: str) -> None:
        self._options, self._url = options, url
        self._connection: Connection | None = None

    def initial(self, info: StreamInfo) -> Offset:
        options, identity = self._options, identity_of(info)
        with translated(self._url):
            found = fetch_sync(self._opened(), find_stream(options.stream, identity))
        # What nobody has read yet is caught up with by each table for itself.
        mark = self._mark(found[0].sequence, found[0].begun) if found else Mark(info.last_seq)
        fresh = Offset(options.stream, identity, mark, options.lanes)
        return self._with(fresh, self._followed(fresh), is_new=True)

    def refreshed(self, offset: Offset) -> Offset:
        return self._with(offset, self._followed(offset), is_new=False)

    def close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection = None

    def _with(self, offset: Offset, followed: list[Subscription], *, is_new: bool) -> Offset:
        """The offset with the tables that are followed now; what has begun anew is behind."""
        known = dict(offset.tables)
        behind = {(one.table, one.generation): one for one in offset.behind}
        tables: list[tuple[TableMapping, int]] = []
        waiting: list[Behind] = []
        for one in followed:
            key = (one.mapping, one.generation)
            mark = self._mark_of(one)
            # Whoever was at least where the stream was read to goes on with it.
            is_here = is_new and not one.is_behind and mark.sequence >= offset.mark.sequence
            if known.get(one.mapping) == one.generation or is_here:
                tables.append(key)
            else:
                waiting.append(behind.get(key) or Behind(*key, mark))
        return replace(offset, tables=tuple(tables), behind=tuple(waiting))

    def _mark_of(self, one: Subscription) -> Mark:
        place = one.place
        return Mark(0) if place is None else self._mark(place.sequence, place.begun)

    def _mark(self, sequence: int, begun: Mapping[str, int]) -> Mark:
        subjects = {self._options.subject(TableMapping.parse(topic)): first for topic, first in begun.items()}
        return Mark(sequence, subjects)

    def _followed(self, offset: Offset) -> list[Subscription]:
        """Those that can go on in this stream; of the others, whoever runs the consumer says why they cannot."""
        with translated(self._url):
            try:
                found = fetch_sync(self._opened(), list_subscriptions())
            except psycopg.OperationalError:
                self.close()
                raise
        here = (offset.stream, offset.identity)
        return [
            one
            for one in found
            if one.is_active and one.error is None and one.sequence is not None and (one.stream, one.identity) == here
        ]

    def _opened(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect_sync(self._url)
        return self._connection
