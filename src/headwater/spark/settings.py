"""What a pipeline is: a source, an optional transform, sinks, and where it keeps its state. Values, checked when made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations
from typing import TypeAlias

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.streams import StreamLimits
from headwater.brokers.registry import BrokerAccess
from headwater.creek.names import Generation, Names
from headwater.errors import SettingsError
from headwater.http import parse_listen
from headwater.outbox.columns import OUTBOX_TABLE, OutboxColumns
from headwater.postgres.replication.slot import check_slot_name
from headwater.spark.rules import (
    MIB,
    TOPIC_BYTES,
    TOPIC_MOST_BYTES,
    Encoding,
    ExpiredRule,
    LaneRule,
    OutboxLanes,
    SchemaChanges,
    SlotLossRule,
    SnapshotRule,
    TopicStart,
)
from headwater.spark.sink_settings import (
    ConsoleSinkSettings,
    MessageTableSettings,
    NoopSinkSettings,
    ParquetSinkSettings,
    PostgresSinkSettings,
    TopicSinkSettings,
)

__all__ = [
    "MIB",
    "TOPIC_BYTES",
    "TOPIC_MOST_BYTES",
    "BrokerSinkSettings",
    "ChangesSettings",
    "ConsoleSinkSettings",
    "Encoding",
    "ExpiredRule",
    "LaneRule",
    "MessageTableSettings",
    "NatsSinkSettings",
    "NoopSinkSettings",
    "OutboxLanes",
    "OutboxSettings",
    "ParquetSinkSettings",
    "PipelineSettings",
    "PostgresSinkSettings",
    "SchemaChanges",
    "SinkSettings",
    "SlotLossRule",
    "SlotSettings",
    "SnapshotRule",
    "SourceSettings",
    "TopicSettings",
    "TopicSinkSettings",
    "TopicStart",
    "TransformSettings",
    "check_common",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangesSettings:
    """The source: tables of one database, read through a slot and a publication.

    `tables` are names or patterns such as `public.*`. `lanes` is how many tasks may work on one batch; a pipeline that has
    run keeps the number and the rule that it began with. The server is told how far it may forget every `status_interval`.
    """

    url: str = field(repr=False)
    tables: tuple[str, ...]
    slot: str
    publication: str
    lanes: int = 4
    lane_by: LaneRule = LaneRule.TABLE
    max_rows: int | None = None
    max_bytes: int = 16 * MIB
    snapshot: SnapshotRule = SnapshotRule.INITIAL
    on_slot_loss: SlotLossRule = SlotLossRule.FAIL
    status_interval: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        check_slot_name(self.slot)
        if not self.tables:
            raise SettingsError("name at least one table to read")
        check_common(self)
        if self.max_rows is not None and self.max_rows < 1:
            raise SettingsError("max_rows must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings:
    """The source: messages that applications insert into a table, read through a slot and a publication of inserts.

    `lanes` is how many tasks may work on one batch where only keys keep their order. When the slot is lost, the table is
    read from the checkpoint on, `recovery_rows` in each batch. The checkpoint is saved every `checkpoint_interval`; for a
    table whose rows do not tell their transaction it is the time of the newest message, `time_skew` earlier. With `emitted`
    there is no table: messages are those that were emitted into the WAL, and the loss of the slot is their loss.
    """

    url: str = field(repr=False)
    slot: str
    publication: str
    table: str = OUTBOX_TABLE
    columns: OutboxColumns = field(default_factory=OutboxColumns.headwater)
    lanes: int = 4
    lane_by: OutboxLanes = OutboxLanes.OUTBOX
    # Events are larger than changes, and take brokers less time than tables.
    max_bytes: int = 32 * MIB
    recovery_rows: int = 50_000
    checkpoint_interval: timedelta = timedelta(seconds=10)
    time_skew: timedelta = timedelta(seconds=-2)
    status_interval: timedelta = timedelta(seconds=1)
    emitted: bool = False

    def __post_init__(self) -> None:
        check_slot_name(self.slot)
        check_common(self)
        if self.emitted and self.lane_by is OutboxLanes.KEY:
            raise SettingsError("messages that are emitted into the WAL keep the order of all; set lane_by to outbox")
        if not 1 <= self.recovery_rows <= 1_000_000:
            raise SettingsError("recovery_rows must be between 1 and 1000000")
        if self.checkpoint_interval < timedelta(milliseconds=1):
            raise SettingsError("checkpoint_interval must be at least 1ms")
        if self.time_skew > timedelta(0):
            raise SettingsError("replication_checkpoint_time_skew must not be more than 0s: it is taken off the time")
        if self.lane_by is OutboxLanes.KEY and self.columns.key is None:
            raise SettingsError("lane_by is key, and the outbox has no column for it; map one, or set lane_by to outbox")

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.table,)

    @property
    def on_slot_loss(self) -> SlotLossRule:
        """The table has what the slot had."""
        return SlotLossRule.RESNAPSHOT


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The source: a topic, read for a group, which is then how far all sinks are. It has no slot.

    `start` is where a group that is new begins.
    """

    url: str = field(repr=False)
    topic: str
    group: str
    start: TopicStart = TopicStart.EARLIEST
    on_expired: ExpiredRule = ExpiredRule.FAIL
    max_rows: int | None = None
    max_bytes: int = TOPIC_BYTES

    def __post_init__(self) -> None:
        if not self.topic:
            raise SettingsError("name the topic to read")
        if self.max_rows is not None and self.max_rows < 1:
            raise SettingsError("max_rows must be at least 1")
        if not MIB // 16 <= self.max_bytes <= TOPIC_MOST_BYTES:
            raise SettingsError("max_bytes must be between 64KiB and 1GiB")

    @property
    def slot(self) -> str:
        """What stands for a slot where pipelines are told apart by theirs: a group has one reader, too."""
        return f"topic {self.topic}, group {self.group}"

    @property
    def publication(self) -> str:
        return ""

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.topic,)

    @property
    def lane_by(self) -> OutboxLanes:
        """Keys keep their order, for each has its partition."""
        return OutboxLanes.KEY


SlotSettings: TypeAlias = ChangesSettings | OutboxSettings
SourceSettings: TypeAlias = SlotSettings | TopicSettings


def check_common(source: SlotSettings) -> None:
    """Refuse what no source can do."""
    if source.status_interval < timedelta(milliseconds=1):
        raise SettingsError("status_interval must be at least 1ms")
    if not 1 <= source.lanes <= 256:
        raise SettingsError("lanes must be between 1 and 256")
    if not MIB // 16 <= source.max_bytes <= 64 * MIB:
        # Java holds some copies of a batch; more than this would not fit into the memory that it has by default.
        raise SettingsError("max_bytes must be between 64KiB and 64MiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSettings:
    """What happens to changes on their way, in this order: columns masked and hashed, rows filtered, the user's own code.

    `mask` gives the text that stands for the values of a column, `hash` names columns that become SHA-256 in hex, with
    `salt` in front of the value; columns are `schema.table.column` and hold text. `filter` is a Spark SQL condition over the
    columns of `changes`; `sql` a query over the view `changes`, `function` a `module:function` from DataFrame to DataFrame.
    """

    mask: Mapping[str, str] = field(default_factory=dict)
    hash: tuple[str, ...] = ()
    salt: str = field(default="", repr=False)
    filter: str | None = None
    sql: str | None = None
    function: str | None = None

    def __post_init__(self) -> None:
        if self.sql is not None and self.function is not None:
            raise SettingsError("there is both `sql` and `function`; keep one of them")
        for column in (*self.mask, *self.hash):
            if len(column.split(".")) != 3 or not all(column.split(".")):
                raise SettingsError(f"{column!r} names no column; write it as schema.table.column")
        for column in self.hash:
            if column in self.mask:
                raise SettingsError(f"column {column} is both masked and hashed; keep one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class NatsSinkSettings:
    """Streams of a NATS JetStream, named as Creek does: `namespace` is what all names begin with.

    With `cloudevents` messages have the headers of that standard, too. With `requests` clients may ask for schemas and
    snapshots; of `requests_tables`, names or patterns, if there are any, and of all tables of the publication otherwise.
    """

    name: str
    access: NatsAccess
    namespace: str = "CREEK"
    generation: Generation = Generation.ONE
    encoding: Encoding = Encoding.CREEK
    cloudevents: bool = False
    limits: StreamLimits = field(default_factory=StreamLimits)
    requests: bool = True
    requests_tables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Whatever the database is called, the namespace has to be one.
        Names(self.namespace, "")

    @property
    def answers(self) -> bool:
        """Whether requests of clients are answered; there are no schemas to ask for in JSON."""
        return self.requests and self.encoding is Encoding.CREEK


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSinkSettings:
    """A message broker, for messages of an outbox, or for changes as JSON in Debezium's envelope."""

    name: str
    access: BrokerAccess


SinkSettings: TypeAlias = (
    PostgresSinkSettings
    | MessageTableSettings
    | TopicSinkSettings
    | ParquetSinkSettings
    | ConsoleSinkSettings
    | NoopSinkSettings
    | NatsSinkSettings
    | BrokerSinkSettings
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """A pipeline. `state_url` is the database with Headwater's own tables, by default that of the source.

    `checkpoint` is a directory or URI for Spark; `spark` are settings of Spark's that win over ours, without the master;
    `trigger_interval` is the least time between two batches; `listen` is the `host:port` to answer monitors at, if any.
    """

    name: str
    source: SourceSettings
    sinks: tuple[SinkSettings, ...]
    checkpoint: str
    state_url: str = field(repr=False)
    transform: TransformSettings | None = None
    master: str = "local[*]"
    # May hold keys to a storage, which no log is to show.
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    trigger_interval: timedelta = timedelta(0)
    listen: str | None = None

    def __post_init__(self) -> None:
        if self.listen is not None:
            parse_listen(self.listen)
        transform = self.transform
        if self._reads_messages and transform is not None and (transform.mask or transform.hash):
            what = "a topic" if isinstance(self.source, TopicSettings) else "an outbox"
            raise SettingsError(f"mask and hash work on columns of tables, and {what} has messages; use filter or sql")
        if not self.sinks:
            raise SettingsError("name at least one sink")
        names = [sink.name for sink in self.sinks]
        for name in names:
            if names.count(name) > 1:
                raise SettingsError(f"two sinks are called {name!r}; give each a name of its own")
        for sink in self.sinks:
            self._check_kind(sink)
            if isinstance(sink, NatsSinkSettings):
                self._check_nats(sink)
        self._check_streams([sink for sink in self.sinks if isinstance(sink, NatsSinkSettings)])

    @property
    def has_nats(self) -> bool:
        return any(isinstance(sink, NatsSinkSettings) for sink in self.sinks)

    @property
    def follows_publication(self) -> bool:
        """Whether tables that are added to the publication, by name, are delivered too: so it is with the Creek wire."""
        return self.has_nats

    def _check_streams(self, sinks: Sequence[NatsSinkSettings]) -> None:
        """A change has the same id and subject in both, so a server would drop what the second one sends."""
        for first, second in combinations(sinks, 2):
            is_shared = (first.access.describe(), first.namespace) == (second.access.describe(), second.namespace)
            if is_shared and first.generation is second.generation:
                raise SettingsError(
                    f"sinks {first.name!r} and {second.name!r} have the same streams; give one of them another namespace"
                )

    @property
    def _reads_messages(self) -> bool:
        return not isinstance(self.source, ChangesSettings)

    def _check_kind(self, sink: SinkSettings) -> None:
        """Messages are no rows of tables."""
        holds_tables = isinstance(sink, PostgresSinkSettings | ParquetSinkSettings | NatsSinkSettings)
        if self._reads_messages and holds_tables:
            what = "a topic" if isinstance(self.source, TopicSettings) else "an outbox"
            raise SettingsError(f"sink {sink.name!r} holds tables, and {what} has messages; name a broker")
        if isinstance(sink, MessageTableSettings) and not isinstance(self.source, TopicSettings):
            raise SettingsError(f"sink {sink.name!r} has a table for messages of a topic; leave `table` out")
        if isinstance(sink, TopicSinkSettings) and self._reads_messages:
            raise SettingsError(f"sink {sink.name!r} is a topic, which takes changes of tables; set the source to changes")

    def _check_nats(self, sink: NatsSinkSettings) -> None:
        if self.source.lane_by is not LaneRule.TABLE:
            raise SettingsError(
                f"sink {sink.name!r} keeps all changes of a table in order, which lanes by key do not; set lane_by to table"
            )
        if self.transform is not None and sink.encoding is Encoding.CREEK:
            raise SettingsError(
                f"sink {sink.name!r} writes Avro by the columns of the source's tables, which a transform may have changed; "
                "set its encoding to json, or leave the transform out"
            )
