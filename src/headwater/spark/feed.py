"""What a pipeline reads: changes of tables, messages of an outbox or of a topic, each with its offsets and its own ways."""

import json
import logging
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from datetime import timedelta
from threading import Event
from typing import Any, Protocol, assert_never

from headwater.capture.emitted import EMITTED
from headwater.capture.slots import SourceSlot, ensure_slot, renew_slot
from headwater.capture.tables import TableStore, prepare_tables
from headwater.errors import SourceError
from headwater.model import Lsn, Position
from headwater.outbox.checkpoint import CheckpointStore, prepare_outbox, take_checkpoint
from headwater.outbox.columns import OUTBOX_TABLE
from headwater.outbox.mapping import Recovery, check_mapping
from headwater.outbox.partitions import ensure_partitions
from headwater.postgres.connect import connect_sync, translated
from headwater.spark.checkpoint import BEGINNING, span_of
from headwater.spark.rules import OutboxLanes
from headwater.spark.settings import ChangesSettings, OutboxSettings, PipelineSettings, TopicSettings
from headwater.spark.shape import Shape
from headwater.spark.sinks.sink import Span
from headwater.spark.sources import changes, outbox, topic
from headwater.spark.sources.content import Content
from headwater.spark.sources.outbox.delivery import Delivery
from headwater.spark.sources.outbox.offset import OutboxOffset, span_between
from headwater.spark.sources.topic.offset import TopicOffset
from headwater.topics import find_sync, require_topics

_log = logging.getLogger(__name__)

Logged = Mapping[str, Any]

# Partitions are made for days ahead.
_PARTITIONS_SECONDS = 3600.0


class Feed(Protocol):
    """The source of a pipeline, as the driver deals with it."""

    @property
    def format(self) -> str:
        """The name that Spark knows the source by."""

    @property
    def shape(self) -> Shape:
        """The shape that sinks are given batches in."""

    @property
    def options(self) -> dict[str, str]:
        """The options of the source."""

    def provide(self, stopping: Event) -> None:
        """Make the publication and the slot, if the pipeline has none yet; from now on it is this run's to read.

        A slot that was lost is never made anew here: what was written since would be missing. Raises SlotLost. A slot takes
        until all transactions that are running have ended; `stopping` ends that wait with ConnectionLost, here and below.
        """

    @property
    def after_loss(self) -> str:
        """What becomes of what a lost slot held."""

    def renew(self, reason: str, stopping: Event) -> None:
        """Give a lost slot up, and make another."""

    def range_of(self, before: Logged | None, end: Logged) -> tuple[Span, Position, Content]:
        """The range between two offsets that Spark has logged, where it ends, and what it holds."""

    def delivered(self, end: Logged) -> None:
        """Every sink has taken the range that ends at an offset."""

    def require_all_read(self) -> None:
        """Raise SourceError if something that was to be read could not be."""

    def close(self) -> None:
        """Let go of connections."""


def build_feed(settings: PipelineSettings) -> Feed:
    """The feed of a pipeline."""
    match settings.source:
        case ChangesSettings() as source:
            return ChangesFeed(settings, source)
        case OutboxSettings() as source:
            return OutboxFeed(settings, source)
        case TopicSettings() as source:
            return TopicFeed(settings, source)
        case _:
            assert_never(settings.source)


class ChangesFeed:
    """Changes of tables."""

    format = changes.NAME

    def __init__(self, settings: PipelineSettings, source: ChangesSettings) -> None:
        self._settings, self._source = settings, source
        self._slot = SourceSlot(source.url, source.slot, source.publication, source.tables)

    @property
    def shape(self) -> Shape:
        return Shape.WIRE if self._settings.transform is None else Shape.ENVELOPE

    @property
    def options(self) -> dict[str, str]:
        source, transform = self._source, self._settings.transform
        options = {
            "url": source.url,
            "slot": source.slot,
            "publication": source.publication,
            "tables": ",".join(source.tables),
            "shape": self.shape.value,
            "lanes": str(source.lanes),
            "laneBy": source.lane_by.value,
            "maxBytesPerTrigger": str(source.max_bytes),
            "maxRowsPerTrigger": str(source.max_rows or 0),
            "snapshot": source.snapshot.value,
            "pipeline": self._settings.name,
            "stateUrl": self._settings.state_url,
            "wholePublication": str(self._settings.follows_publication).lower(),
            "statusIntervalMs": _milliseconds(source.status_interval),
        }
        if transform is not None:
            options |= {"mask": json.dumps(dict(transform.mask)), "hash": ",".join(transform.hash), "salt": transform.salt}
        return options

    def provide(self, stopping: Event) -> None:
        prepare_tables(self._settings.state_url)
        with closing(self._tables()) as store:
            ensure_slot(self._slot, store, stopping=stopping)

    @property
    def after_loss(self) -> str:
        return "all tables are read as a whole again"

    def renew(self, reason: str, stopping: Event) -> None:
        with closing(self._tables()) as store:
            renew_slot(self._slot, store, reason, stopping)

    def range_of(self, before: Logged | None, end: Logged) -> tuple[Span, Position, Content]:
        return span_of(before, end)

    def delivered(self, end: Logged) -> None:
        """The slot is moved by the source itself, and sinks keep what they have."""

    def require_all_read(self) -> None:
        with closing(self._tables()) as store:
            left = [table for table in store.tables() if table.state == "wanted" and table.error is not None]
        if left:
            more = f" (and {len(left) - 1} more)" if len(left) > 1 else ""
            raise SourceError(f"table {left[0].schema}.{left[0].name} could not be read: {left[0].error}{more}")

    def close(self) -> None:
        """It holds none."""

    def _tables(self) -> TableStore:
        return TableStore(self._settings.state_url, self._settings.name)


class OutboxFeed:
    """Messages of an outbox; what is delivered of it is written down with each batch."""

    format = outbox.NAME

    def __init__(self, settings: PipelineSettings, source: OutboxSettings) -> None:
        self._settings, self._source = settings, source
        self._slot = SourceSlot(source.url, source.slot, source.publication, source.tables, outbox.INSERTS)
        self._epoch, self._generation = 0, ""
        self._store: CheckpointStore | None = None
        self._partitions_at = float("-inf")

    @property
    def shape(self) -> Shape:
        return Shape.PACKED if self._settings.transform is None else Shape.MESSAGE

    @property
    def options(self) -> dict[str, str]:
        source = self._source
        return {
            "url": source.url,
            "slot": source.slot,
            "publication": source.publication,
            "table": source.table,
            "columns": json.dumps(asdict(source.columns)),
            "shape": self.shape.value,
            "lanes": str(source.lanes),
            "keyed": str(source.lane_by is OutboxLanes.KEY).lower(),
            "maxBytesPerTrigger": str(source.max_bytes),
            "recoveryRows": str(source.recovery_rows),
            "pipeline": self._settings.name,
            "stateUrl": self._settings.state_url,
            "epoch": str(self._epoch),
            "checkpointIntervalMs": _milliseconds(source.checkpoint_interval),
            "statusIntervalMs": _milliseconds(source.status_interval),
            "emitted": str(source.emitted).lower(),
            "timeSkewMs": str(source.time_skew // timedelta(milliseconds=1)),
        }

    def provide(self, stopping: Event) -> None:
        source, state_url, name = self._source, self._settings.state_url, self._settings.name
        prepare_outbox(source.url)
        table = EMITTED.table if source.emitted else self._check_table()
        self._keep_partitions()
        self.close()
        # Before the slot: if that is lost, it is for this run to deliver what it held.
        self._epoch = take_checkpoint(source.url, name, table)
        self._store = CheckpointStore(source.url, name, self._epoch)
        prepare_tables(state_url)
        with closing(TableStore(state_url, name)) as store:
            self._generation = ensure_slot(self._slot, store, stopping=stopping).generation

    @property
    def after_loss(self) -> str:
        has_rows = not self._source.emitted and self._source.columns.created_at is not None
        return "what was not delivered is read from the table" if has_rows else "what was not delivered is lost"

    def renew(self, reason: str, stopping: Event) -> None:
        with closing(TableStore(self._settings.state_url, self._settings.name)) as store:
            self._generation = renew_slot(self._slot, store, reason, stopping).generation

    def range_of(self, before: Logged | None, end: Logged) -> tuple[Span, Position, Content]:
        last = OutboxOffset.from_json(end)
        first = None if before is None else OutboxOffset.from_json(before)
        return span_between(first, last), last.position, last.content

    def delivered(self, end: Logged) -> None:
        if self._store is None:
            raise SourceError("the outbox was not provided for; report it")
        offset = OutboxOffset.from_json(end)
        # A batch that was logged before the slot was lost comes again with nothing in it.
        if offset.generation == self._generation:
            Delivery(self._store, self._source.time_skew).record(offset)
        self._keep_partitions()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _check_table(self) -> str:
        """The table that messages are written to; says what to expect of it when the slot is lost."""
        source, facts = self._source, {"slot": self._source.slot}
        with translated(source.url), closing(connect_sync(source.url)) as connection:
            table = check_mapping(connection, source.table, source.columns)
        if table.recovery is not Recovery.EXACT:
            _log.warning("outbox %s: %s", source.table, table.promise, extra=facts)
        elif not table.has_index:
            said = "outbox %s: has no index on (%s, %s), so that recovery has to sort it as a whole"
            _log.warning(said, source.table, source.columns.created_at, source.columns.id, extra=facts)
        return f"{table.schema}.{table.name}"

    def _keep_partitions(self) -> None:
        """Make the partitions of the next days, of our own table, now and then; without them rows go to the default one."""
        if self._source.emitted or self._source.table != OUTBOX_TABLE or time.monotonic() < self._partitions_at:
            return
        self._partitions_at = time.monotonic() + _PARTITIONS_SECONDS
        with translated(self._source.url), closing(connect_sync(self._source.url)) as connection:
            ensured = ensure_partitions(connection, spares_present=True)
        for missing in ensured.missing:
            _log.warning("partition %s was not made: %s", missing.name, missing.reason, extra={"slot": self._source.slot})

    def require_all_read(self) -> None:
        """There is nothing that is left out."""


class TopicFeed:
    """Messages of a topic; the source itself moves the cursors of the group."""

    format = topic.NAME

    def __init__(self, settings: PipelineSettings, source: TopicSettings) -> None:
        self._settings, self._source = settings, source

    @property
    def shape(self) -> Shape:
        return Shape.PACKED if self._settings.transform is None else Shape.MESSAGE

    @property
    def options(self) -> dict[str, str]:
        source = self._source
        return {
            "url": source.url,
            "topic": source.topic,
            "group": source.group,
            "startingOffsets": source.start.value,
            "maxBytesPerTrigger": str(source.max_bytes),
            "maxRowsPerTrigger": str(source.max_rows or 0),
            "onExpired": source.on_expired.value,
            "shape": self.shape.value,
        }

    def provide(self, stopping: Event) -> None:
        with translated(self._source.url), closing(connect_sync(self._source.url)) as connection:
            require_topics(connection)
            find_sync(connection, self._source.topic)

    @property
    def after_loss(self) -> str:
        return "nothing is lost"

    def renew(self, reason: str, stopping: Event) -> None:
        raise SourceError(f"a topic has no slot that could be lost ({reason}); report it")

    def range_of(self, before: Logged | None, end: Logged) -> tuple[Span, Position, Content]:
        last = TopicOffset.from_json(end)
        start = BEGINNING if before is None else _sum(TopicOffset.from_json(before))
        return Span(start, _sum(last)), _sum(last), last.content

    def delivered(self, end: Logged) -> None:
        """Spark commits it next, and the group follows then."""

    def require_all_read(self) -> None:
        """There is nothing that is left out."""

    def close(self) -> None:
        """It holds none."""


def _sum(offset: TopicOffset) -> Position:
    """One number for how far all partitions are: sinks know each by itself."""
    return Position(Lsn(sum(offset.next.values())), 0)


def _milliseconds(interval: timedelta) -> str:
    return f"{max(1, interval // timedelta(milliseconds=1))}"
