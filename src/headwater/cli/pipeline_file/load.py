"""From the file to the settings of a pipeline: paths made absolute, defaults filled in, every fault named at once."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final, assert_never

from pydantic import ValidationError

from headwater.brokers.kafka.access import KafkaAccess
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.broker import NatsBrokerSettings
from headwater.brokers.nats.streams import StreamLimits
from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.registry import BrokerAccess, NatsMessages
from headwater.brokers.servicebus.access import ServiceBusAccess
from headwater.cli.pipeline_file.complaint import complaints, shown
from headwater.cli.pipeline_file.model import (
    AnySink,
    AnySource,
    Columns,
    ConsoleSink,
    File,
    KafkaSink,
    NatsSink,
    NoopSink,
    OutboxSource,
    ParquetSink,
    PostgresSink,
    RabbitmqSink,
    ServiceBusSink,
)
from headwater.cli.pipeline_file.values import Path, Toml, interpolate
from headwater.creek.names import Generation
from headwater.errors import SettingsError
from headwater.outbox.columns import OutboxColumns
from headwater.postgres.connect import complete
from headwater.spark.session import merge
from headwater.spark.settings import (
    BrokerSinkSettings,
    ChangesSettings,
    ConsoleSinkSettings,
    NatsSinkSettings,
    NoopSinkSettings,
    OutboxSettings,
    ParquetSinkSettings,
    PipelineSettings,
    PostgresSinkSettings,
    SinkSettings,
    SourceSettings,
    TransformSettings,
    parse_listen,
)

DEFAULT_MASTER: Final = "local[*]"

_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def load(path: FilePath, environ: Mapping[str, str]) -> PipelineSettings:
    """The pipeline that a file describes; `environ` is what `${VARIABLE}` is taken from.

    Raises SettingsError with all that is wrong with the file. Relative paths are relative to the file.
    """
    faults: dict[Path, str] = {}
    content = interpolate(_read(path), environ, faults)
    if faults:
        raise _refused(path, list(faults.items()))
    try:
        file = File.model_validate(content)
    except ValidationError as exc:
        raise _refused(path, complaints(exc)) from exc
    return _pipeline(file, path)


def _read(path: FilePath) -> dict[str, Toml]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        raise SettingsError(f"{path} does not exist; write one with `headwater init`, or name another with --file") from exc
    except IsADirectoryError as exc:
        raise SettingsError(f"{path} is a directory; name the pipeline file in it") from exc
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror}; check its rights") from exc
    except UnicodeDecodeError as exc:
        raise SettingsError(f"{path} is no text in UTF-8; save it as such") from exc
    except tomllib.TOMLDecodeError as exc:
        raise SettingsError(f"{path} is not valid TOML: {str(exc)[:1].lower()}{str(exc)[1:]}; correct it there") from exc


def _refused(path: FilePath, faults: Sequence[tuple[Path, str]]) -> SettingsError:
    lines = [f"{shown(where)}: {fault}" if where else fault for where, fault in faults]
    if len(lines) == 1:
        return SettingsError(f"{path}: {lines[0]}")
    return SettingsError("\n  ".join([f"{path} has {len(lines)} errors:", *lines]))


@dataclass(slots=True)
class _Faults:
    """What the settings themselves refuse, gathered, so that all of it can be said at once."""

    found: list[tuple[Path, str]] = field(default_factory=list)

    @contextmanager
    def at(self, *where: str | int) -> Iterator[None]:
        """Within it, a refusal is noted for this place, and the block ends."""
        try:
            yield
        except SettingsError as exc:
            self.found.append((where, str(exc)))


def _pipeline(file: File, path: FilePath) -> PipelineSettings:
    faults = _Faults()
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
        raise _refused(path, faults.found)
    try:
        return PipelineSettings(
            name=file.name,
            source=source,
            sinks=tuple(_sink(sink, path.parent, file.source) for sink in file.sinks),
            checkpoint=_place(file.checkpoint or f"checkpoints/{file.name}", path.parent),
            state_url=source.url if file.state_url is None else file.state_url,
            transform=transform,
            master=master,
            spark=spark,
            trigger_interval=file.trigger_interval,
            listen=file.listen,
        )
    except SettingsError as exc:
        raise _refused(path, [(("sinks",), str(exc))]) from exc


def _check_sinks(file: File, faults: _Faults, base: FilePath) -> None:
    """Refuse what is no connection string, or no way into a server, now rather than when it is first used."""
    with faults.at("source", "url"):
        complete(file.source.url)
    with faults.at("state_url"):
        complete(file.state_url or "")
    for place, sink in enumerate(file.sinks):
        if isinstance(sink, PostgresSink):
            with faults.at("sinks", place, "url"):
                complete(sink.url)
        if isinstance(sink, NatsSink):
            with faults.at("sinks", place):
                _sink(sink, base, file.source)
        if isinstance(sink, RabbitmqSink | ServiceBusSink | KafkaSink):
            with faults.at("sinks", place):
                _access(sink, base)


def _source(source: AnySource, pipeline: str) -> SourceSettings:
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


def _sink(sink: AnySink, base: FilePath, source: AnySource) -> SinkSettings:
    match sink:
        case PostgresSink():
            return PostgresSinkSettings(
                name=sink.name, url=sink.url, create_tables=sink.create_tables, schema_changes=sink.schema_changes
            )
        case ParquetSink():
            return ParquetSinkSettings(name=sink.name, path=_place(sink.path, base))
        case ConsoleSink():
            return ConsoleSinkSettings(name=sink.name)
        case NoopSink():
            return NoopSinkSettings(name=sink.name)
        case NatsSink() if isinstance(source, OutboxSource):
            return BrokerSinkSettings(name=sink.name, access=_nats_messages(sink, base))
        case NatsSink():
            return _nats_sink(sink, base)
        case RabbitmqSink() | ServiceBusSink() | KafkaSink():
            return BrokerSinkSettings(name=sink.name, access=_access(sink, base))
        case _:
            assert_never(sink)


def _access(sink: RabbitmqSink | ServiceBusSink | KafkaSink, base: FilePath) -> BrokerAccess:
    """Where a broker is, and how to get in: the keys of the file are those of the access, but for a few."""
    given = sink.model_dump(exclude={"type", "name", "event_source"})
    match sink:
        case RabbitmqSink():
            files = {name: _file(given[name], base) for name in ("tls_ca", "tls_cert", "tls_key")}
            return RabbitmqAccess(**{**given, **files}, source=sink.event_source)
        case ServiceBusSink():
            return ServiceBusAccess(**given, source=sink.event_source)
        case KafkaSink():
            return KafkaAccess(**given, source=sink.event_source)
        case _:
            assert_never(sink)


def _nats_messages(sink: NatsSink, base: FilePath) -> NatsMessages:
    settings = NatsBrokerSettings(
        subject=sink.subject,
        source=sink.event_source,
        stream=sink.stream,
        stream_subjects=sink.stream_subjects,
        limits=_limits(sink),
    )
    return NatsMessages(access=_nats_access(sink, base), settings=settings)


def _nats_access(sink: NatsSink, base: FilePath) -> NatsAccess:
    return NatsAccess(
        url=sink.url,
        user=sink.user,
        password=sink.password,
        token=sink.token,
        is_tls_first=sink.tls_first,
        timeout=sink.timeout,
        max_pending=sink.max_pending,
        nkey_file=_file(sink.nkey_file, base),
        creds_file=_file(sink.creds_file, base),
        tls_ca=_file(sink.tls_ca, base),
        tls_cert=_file(sink.tls_cert, base),
        tls_key=_file(sink.tls_key, base),
    )


def _limits(sink: NatsSink) -> StreamLimits:
    return StreamLimits(
        replicas=sink.replicas,
        max_age=sink.max_age,
        max_bytes=sink.max_bytes,
        max_msgs=sink.max_msgs,
        retention=sink.retention,
    )


def _nats_sink(sink: NatsSink, base: FilePath) -> NatsSinkSettings:
    return NatsSinkSettings(
        name=sink.name,
        access=_nats_access(sink, base),
        namespace=sink.namespace,
        generation=Generation(str(sink.generation)),
        encoding=sink.encoding,
        cloudevents=sink.cloudevents,
        limits=_limits(sink),
        requests=sink.requests,
        requests_tables=sink.requests_tables,
    )


def _file(file: str | None, base: FilePath) -> str | None:
    return None if file is None else _place(file, base)


def _place(place: str, base: FilePath) -> str:
    """A URI as it is; a path made absolute, so that it does not matter from where the program is started."""
    return place if _HAS_SCHEME.match(place) else str((base / place).resolve())
