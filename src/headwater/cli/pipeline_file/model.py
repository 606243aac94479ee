"""What a pipeline file may say: its keys, their types and defaults, as pydantic checks them."""

from datetime import timedelta
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

from headwater.brokers.nats.streams import Retention
from headwater.cli.pipeline_file.values import Toml, flatten, parse_duration, parse_size
from headwater.outbox.columns import OUTBOX_TABLE
from headwater.spark.settings import MIB, Encoding, LaneRule, OutboxLanes, SchemaChanges, SlotLossRule, SnapshotRule


def _read_size(value: Toml) -> Toml:
    return parse_size(value) if isinstance(value, str) else value


def _read_duration(value: Toml) -> timedelta:
    if not isinstance(value, str):
        raise ValueError("must be a duration such as 500ms, 2s or 1m")
    return parse_duration(value)


def _read_skew(value: Toml) -> timedelta:
    return -_read_duration(value[1:]) if isinstance(value, str) and value.startswith("-") else _read_duration(value)


def _read_spark(value: Toml) -> Toml:
    return dict(flatten(value)) if isinstance(value, dict) else value


Size: TypeAlias = Annotated[int, BeforeValidator(_read_size)]
Duration: TypeAlias = Annotated[timedelta, BeforeValidator(_read_duration)]


class Section(BaseModel):
    """A table of the file: no other keys than its own, and no value ever repeated in an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


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
    header_columns: dict[str, str] = {}


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


def _source_type(value: object) -> str:
    if isinstance(value, dict):
        return str(value.get("type", "changes"))
    return str(getattr(value, "type", "changes"))


AnySource: TypeAlias = Annotated[
    Annotated[Source, Tag("changes")] | Annotated[OutboxSource, Tag("outbox")], Discriminator(_source_type)
]


class Transform(Section):
    """`[transform]`."""

    filter: str | None = None
    sql: str | None = None
    function: str | None = None
    mask: dict[str, str] = {}
    hash: tuple[str, ...] = ()
    salt: str = ""


class PostgresSink(Section):
    """`[[sinks]]` of type postgres."""

    type: Literal["postgres"]
    name: str = "postgres"
    url: str
    create_tables: bool = True
    schema_changes: SchemaChanges = SchemaChanges.EVOLVE


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


class NatsSink(Section):
    """`[[sinks]]` of type nats."""

    type: Literal["nats"]
    name: str = "nats"
    url: str
    user: str | None = None
    password: str | None = None
    token: str | None = None
    nkey_file: str | None = None
    creds_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_first: bool = False
    timeout: Duration = timedelta(seconds=30)
    max_pending: int = 4000
    namespace: str = "CREEK"
    generation: Literal[1, 2] = 1
    encoding: Encoding = Encoding.CREEK
    cloudevents: bool = False
    replicas: int | None = None
    max_age: Duration | None = None
    max_bytes: Size | None = None
    max_msgs: int | None = None
    retention: Retention | None = None
    requests: bool = True
    requests_tables: tuple[str, ...] = ()
    subject: str = "{topic}"
    stream: str | None = None
    stream_subjects: tuple[str, ...] = ()
    event_source: str = "headwater"


class RabbitmqSink(Section):
    """`[[sinks]]` of type rabbitmq."""

    type: Literal["rabbitmq"]
    name: str = "rabbitmq"
    url: str
    exchange: str = ""
    routing_key: str = "{topic}"
    mandatory: bool = True
    declare: bool = False
    event_source: str = "headwater"
    timeout: Duration = timedelta(seconds=30)
    heartbeat: Duration = timedelta(seconds=30)
    max_pending: int = 5000
    max_bytes: Size = 128 * MIB
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


class ServiceBusSink(Section):
    """`[[sinks]]` of type servicebus."""

    type: Literal["servicebus"]
    name: str = "servicebus"
    connection_string: str
    entity: str = "{topic}"
    sessions: bool = True
    event_source: str = "headwater"
    timeout: Duration = timedelta(seconds=30)


class KafkaSink(Section):
    """`[[sinks]]` of type kafka; `settings` are librdkafka's own."""

    type: Literal["kafka"]
    name: str = "kafka"
    bootstrap_servers: str
    topic: str = "{topic}"
    event_source: str = "headwater"
    timeout: Duration = timedelta(seconds=30)
    settings: Annotated[dict[str, str], BeforeValidator(_read_spark)] = {}


AnySink: TypeAlias = Annotated[
    PostgresSink | ParquetSink | ConsoleSink | NoopSink | NatsSink | RabbitmqSink | ServiceBusSink | KafkaSink,
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
    spark: Annotated[dict[str, str], BeforeValidator(_read_spark)] = {}
