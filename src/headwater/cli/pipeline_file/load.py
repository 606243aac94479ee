"""From the file to the settings of a pipeline: paths made absolute, defaults filled in, every fault named at once."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path as FilePath
from typing import Any, Final, assert_never

from headwater.cli.pipeline_file.brokers import KafkaSink, RabbitmqSink, ServiceBusSink, access_of, nats_access, nats_limits
from headwater.cli.pipeline_file.complaint import Shape
from headwater.cli.pipeline_file.model import (
    AnySink,
    AnySource,
    Columns,
    ConsoleSink,
    File,
    NatsSink,
    NoopSink,
    OutboxSource,
    ParquetSink,
    PostgresSink,
    Source,
    TopicSink,
    TopicSource,
    Transform,
)
from headwater.cli.pipeline_file.reading import Faults, read, refused
from headwater.cli.pipeline_file.section import place_of
from headwater.creek.names import Generation
from headwater.errors import SettingsError
from headwater.http import parse_listen
from headwater.outbox.columns import OutboxColumns
from headwater.postgres.connect import complete
from headwater.spark.session import merge
from headwater.spark.settings import (
    BrokerSinkSettings,
    ChangesSettings,
    ConsoleSinkSettings,
    MessageTableSettings,
    NatsSinkSettings,
    NoopSinkSettings,
    OutboxSettings,
    ParquetSinkSettings,
    PipelineSettings,
    PostgresSinkSettings,
    SinkSettings,
    SourceSettings,
    TopicSettings,
    TopicSinkSettings,
    TransformSettings,
)

DEFAULT_MASTER: Final = "local[*]"

_SHAPE: Final = Shape(
    File,
    kinds={
        "source": {"changes": Source, "outbox": OutboxSource, "topic": TopicSource},
        "sinks": {
            "postgres": PostgresSink,
            "topic": TopicSink,
            "parquet": ParquetSink,
            "nats": NatsSink,
            "rabbitmq": RabbitmqSink,
            "servicebus": ServiceBusSink,
            "kafka": KafkaSink,
            "console": ConsoleSink,
            "noop": NoopSink,
        },
    },
    sections={"source": Source, "transform": Transform},
    inner={"columns": Columns},
)


def load(path: FilePath, environ: Mapping[str, str]) -> PipelineSettings:
    """The pipeline that a file describes; `environ` is what `${VARIABLE}` is taken from.

    Raises SettingsError with all that is wrong with the file. Relative paths are relative to the file.
    """
    file = read(path, environ, File, _SHAPE, missing="write one with `headwater init`, or name another with --file")
    return _pipeline(file, path)


def _pipeline(file: File, path: FilePath) -> PipelineSettings:
    faults = Faults()
    _check_sinks(file, faults, path.parent)
    spark = dict(file.spark)
    master = spark.pop("master", DEFAULT_MASTER)
    with faults.at("spark"):
        merge(master, spark)
    with faults.at("listen"):
        parse_listen(file.listen or "127.0.0.1:0")
    with faults.at("transform"):
        transform = TransformSettings(**file.transform.model_dump()) if file.transform is not None else None
    with faults.at("source"):
        source = _source(file.source, file.name)
    if faults.found:
        raise refused(path, faults.found)
    try:
        return PipelineSettings(
            name=file.name,
            source=source,
            sinks=tuple(_sink(sink, path.parent, file.source, source.url) for sink in file.sinks),
            checkpoint=place_of(file.checkpoint or f"checkpoints/{file.name}", path.parent),
            state_url=source.url if file.state_url is None else file.state_url,
            transform=transform,
            master=master,
            spark=spark,
            trigger_interval=file.trigger_interval,
            listen=file.listen,
        )
    except SettingsError as exc:
        raise refused(path, [(("sinks",), str(exc))]) from exc


def _check_sinks(file: File, faults: Faults, base: FilePath) -> None:
    """Refuse what is no connection string, or no way into a server, now rather than when it is first used."""
    with faults.at("source", "url"):
        complete(file.source.url)
    with faults.at("state_url"):
        complete(file.state_url or "")
    for place, sink in enumerate(file.sinks):
        if isinstance(sink, PostgresSink | TopicSink):
            with faults.at("sinks", place, "url"):
                complete(sink.url)
        if isinstance(sink, NatsSink):
            with faults.at("sinks", place):
                _sink(sink, base, file.source, file.source.url)
        if isinstance(sink, RabbitmqSink | ServiceBusSink | KafkaSink):
            with faults.at("sinks", place):
                access_of(sink, base)


def _source(source: AnySource, pipeline: str) -> SourceSettings:
    if isinstance(source, TopicSource):
        return TopicSettings(
            url=source.url or complete(""),
            topic=source.topic,
            group=source.group or pipeline,
            start=source.start,
            on_expired=source.on_expired,
            max_rows=source.max_rows,
            max_bytes=source.max_bytes,
        )
    slot = source.slot or pipeline
    if isinstance(source, OutboxSource):
        return OutboxSettings(
            url=source.url or complete(""),
            slot=slot,
            publication=source.publication or slot,
            table=source.table,
            columns=_columns(source),
            lanes=source.lanes,
            lane_by=source.lane_by,
            max_bytes=source.max_bytes,
            recovery_rows=source.recovery_rows,
            checkpoint_interval=source.checkpoint_interval,
            time_skew=source.replication_checkpoint_time_skew,
            status_interval=source.status_interval,
            emitted=source.emitted,
        )
    return ChangesSettings(
        # Spark hands on no option that is empty.
        url=source.url or complete(""),
        tables=source.tables,
        slot=slot,
        publication=source.publication or slot,
        lanes=source.lanes,
        lane_by=source.lane_by,
        max_rows=source.max_rows,
        max_bytes=source.max_bytes,
        snapshot=source.snapshot,
        on_slot_loss=source.on_slot_loss,
        status_interval=source.status_interval,
    )


def _columns(source: OutboxSource) -> OutboxColumns:
    """The columns of a preset, and what the file says of them."""
    given = (source.columns or Columns()).model_dump(exclude_none=True, exclude={"header_columns"})
    headers = tuple((source.columns or Columns()).header_columns.items())
    preset = source.preset or ("headwater" if source.columns is None else None)
    match preset:
        case None:
            known: dict[str, Any] = {}
        case "headwater":
            known = asdict(OutboxColumns.headwater())
        case "debezium":
            known = asdict(OutboxColumns.debezium())
        case "dialogporten":
            known = asdict(OutboxColumns.dialogporten("outbox"))
    known |= given
    # A value for all takes the place of a column, and the other way round.
    known |= {f"{part}_value": None for part in ("topic", "type") if given.get(part)}
    known |= {part: None for part in ("topic", "type") if given.get(f"{part}_value")}
    missing = [part for part in ("id", "payload") if part not in known]
    if missing:
        raise SettingsError(f"columns has no {missing[0]}; name the column, or set preset to debezium or dialogporten")
    return OutboxColumns(**{**known, "header_columns": headers or known.get("header_columns", ())})


def _sink(sink: AnySink, base: FilePath, source: AnySource, source_url: str) -> SinkSettings:
    match sink:
        case PostgresSink():
            return _postgres_sink(sink, source)
        case TopicSink():
            return TopicSinkSettings(name=sink.name, url=sink.url or source_url, topic=sink.topic)
        case ParquetSink():
            return ParquetSinkSettings(name=sink.name, path=place_of(sink.path, base))
        case ConsoleSink():
            return ConsoleSinkSettings(name=sink.name)
        case NoopSink():
            return NoopSinkSettings(name=sink.name)
        case NatsSink() if isinstance(source, OutboxSource | TopicSource):
            return BrokerSinkSettings(name=sink.name, access=access_of(sink, base))
        case NatsSink():
            return _nats_sink(sink, base)
        case RabbitmqSink() | ServiceBusSink() | KafkaSink():
            return BrokerSinkSettings(name=sink.name, access=access_of(sink, base))
        case _:
            assert_never(sink)


def _postgres_sink(sink: PostgresSink, source: AnySource) -> SinkSettings:
    """Tables like those of the source, or one for messages of a topic."""
    if sink.table is not None:
        return MessageTableSettings(name=sink.name, url=sink.url, table=sink.table, create_tables=sink.create_tables)
    if isinstance(source, TopicSource):
        raise SettingsError(f"sink {sink.name!r} needs `table`, the table that messages of the topic are written to")
    return PostgresSinkSettings(
        name=sink.name, url=sink.url, create_tables=sink.create_tables, schema_changes=sink.schema_changes
    )


def _nats_sink(sink: NatsSink, base: FilePath) -> NatsSinkSettings:
    return NatsSinkSettings(
        name=sink.name,
        access=nats_access(sink, base),
        namespace=sink.namespace,
        generation=Generation(str(sink.generation)),
        encoding=sink.encoding,
        cloudevents=sink.cloudevents,
        limits=nats_limits(sink),
        requests=sink.requests,
        requests_tables=sink.requests_tables,
    )
