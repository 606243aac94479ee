"""What a pipeline file may say: its keys, their types and defaults, as pydantic checks them."""

from datetime import timedelta
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from headwater.brokers.nats.streams import Retention
from headwater.cli.pipeline_file.values import Toml, flatten, parse_duration, parse_size
from headwater.spark.settings import MIB, Encoding, LaneRule, SchemaChanges, SlotLossRule, SnapshotRule


def _read_size(value: Toml) -> Toml:
    return parse_size(value) if isinstance(value, str) else value


def _read_duration(value: Toml) -> timedelta:
    if not isinstance(value, str):
        raise ValueError("must be a duration such as 500ms, 2s or 1m")
    return parse_duration(value)


def _read_spark(value: Toml) -> Toml:
    return dict(flatten(value)) if isinstance(value, dict) else value


Size: TypeAlias = Annotated[int, BeforeValidator(_read_size)]
Duration: TypeAlias = Annotated[timedelta, BeforeValidator(_read_duration)]


class Section(BaseModel):
    """A table of the file: no other keys than its own, and no value ever repeated in an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Source(Section):
    """`[source]`."""

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


AnySink: TypeAlias = Annotated[PostgresSink | ParquetSink | ConsoleSink | NoopSink | NatsSink, Field(discriminator="type")]


class File(Section):
    """The whole file. `spark` has the master among Spark's own settings."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
    checkpoint: str | None = None
    state_url: str | None = None
    trigger_interval: Duration = timedelta(0)
    listen: str | None = None
    source: Source
    transform: Transform | None = None
    sinks: Annotated[tuple[AnySink, ...], Field(min_length=1)]
    spark: Annotated[dict[str, str], BeforeValidator(_read_spark)] = {}
