"""What a pipeline file may say: its keys, their types and defaults, as pydantic checks them."""

from datetime import timedelta
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Discriminator, Field, Tag

from headwater.cli.pipeline_file.brokers import KafkaSink, NatsTarget, RabbitmqSink, ServiceBusSink
from headwater.cli.pipeline_file.section import Duration, Section, Size, read_duration, read_table
from headwater.cli.pipeline_file.values import Toml
from headwater.outbox.columns import OUTBOX_TABLE
from headwater.spark.settings import (
    MIB,
    TOPIC_BYTES,
    Encoding,
    ExpiredRule,
    LaneRule,
    OutboxLanes,
    SchemaChanges,
    SlotLossRule,
    SnapshotRule,
    TopicStart,
)


def _read_skew(value: Toml) -> timedelta:
    return -read_duration(value[1:]) if isinstance(value, str) and value.startswith("-") else read_duration(value)


class Source(Section):
    """`[source]`, of type changes."""

    type: Literal["changes"] = "changes"
    url: str = ""
    tables: Annotated[tuple[str, ...], Field(min_length=1)]
    slot: str | None = None
    publication: str | None = None
    lanes: int = 4
    lane_by: LaneRule = LaneRule.TABLE
    max_rows: int | None = None
    max_bytes: Size = 16 * MIB
    snapshot: SnapshotRule = SnapshotRule.INITIAL
    on_slot_loss: SlotLossRule = SlotLossRule.FAIL
    status_interval: Duration = timedelta(seconds=1)


class Columns(Section):
    """`[source.columns]`: which column of an outbox is what, and what stands in for columns that there are not."""

    id: str | None = None
    topic: str | None = None
    type: str | None = None
    key: str | None = None
    payload: str | None = None
    headers: str | None = None
    created_at: str | None = None
    xid: str | None = None
    topic_value: str | None = None
    type_value: str | None = None
    header_columns: dict[str, str] = Field(default_factory=dict)


class OutboxSource(Section):
    """`[source]`, of type outbox."""

    type: Literal["outbox"]
    url: str = ""
    table: str = OUTBOX_TABLE
    emitted: bool = False
    preset: Literal["headwater", "debezium", "dialogporten"] | None = None
    columns: Columns | None = None
    slot: str | None = None
    publication: str | None = None
    lanes: int = 4
    lane_by: OutboxLanes = OutboxLanes.OUTBOX
    max_bytes: Size = 32 * MIB
    recovery_rows: int = 50_000
    checkpoint_interval: Duration = timedelta(seconds=10)
    replication_checkpoint_time_skew: Annotated[timedelta, BeforeValidator(_read_skew)] = timedelta(seconds=-2)
    status_interval: Duration = timedelta(seconds=1)


class TopicSource(Section):
    """`[source]`, of type topic."""

    type: Literal["topic"]
    url: str = ""
    topic: str
    group: str | None = None
    start: TopicStart = TopicStart.EARLIEST
    on_expired: ExpiredRule = ExpiredRule.FAIL
    max_rows: int | None = None
    max_bytes: Size = TOPIC_BYTES


def _source_type(value: object) -> str:
    if isinstance(value, dict):
        return str(value.get("type", "changes"))
    return str(getattr(value, "type", "changes"))


AnySource: TypeAlias = Annotated[
    Annotated[Source, Tag("changes")] | Annotated[OutboxSource, Tag("outbox")] | Annotated[TopicSource, Tag("topic")],
    Discriminator(_source_type),
]


class Transform(Section):
    """`[transform]`."""

    filter: str | None = None
    sql: str | None = None
    function: str | None = None
    mask: dict[str, str] = Field(default_factory=dict)
    hash: tuple[str, ...] = ()
    salt: str = ""


class PostgresSink(Section):
    """`[[sinks]]` of type postgres."""

    type: Literal["postgres"]
    name: str = "postgres"
    url: str
    create_tables: bool = True
    schema_changes: SchemaChanges = SchemaChanges.EVOLVE
    table: str | None = None


class TopicSink(Section):
    """`[[sinks]]` of type topic; without a `url` the topic is in the database of the source."""

    type: Literal["topic"]
    name: str = "topic"
    url: str = ""
    topic: str


class ParquetSink(Section):
    """`[[sinks]]` of type parquet."""

    type: Literal["parquet"]
    name: str = "parquet"
    path: str


class ConsoleSink(Section):
    """`[[sinks]]` of type console."""

    type: Literal["console"]
    name: str = "console"


class NoopSink(Section):
    """`[[sinks]]` of type noop."""

    type: Literal["noop"]
    name: str = "noop"


class NatsSink(NatsTarget):
    """`[[sinks]]` of type nats, which carries changes of tables on the Creek wire."""

    namespace: str = "CREEK"
    generation: Literal[1, 2] = 1
    encoding: Encoding = Encoding.CREEK
    cloudevents: bool = False
    requests: bool = True
    requests_tables: tuple[str, ...] = ()


AnySink: TypeAlias = Annotated[
    PostgresSink | TopicSink | ParquetSink | ConsoleSink | NoopSink | NatsSink | RabbitmqSink | ServiceBusSink | KafkaSink,
    Field(discriminator="type"),
]


class File(Section):
    """The whole file. `spark` has the master among Spark's own settings."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    checkpoint: str | None = None
    state_url: str | None = None
    trigger_interval: Duration = timedelta(0)
    listen: str | None = None
    source: AnySource
    transform: Transform | None = None
    sinks: Annotated[tuple[AnySink, ...], Field(min_length=1)]
    spark: Annotated[dict[str, str], BeforeValidator(read_table)] = Field(default_factory=dict)
