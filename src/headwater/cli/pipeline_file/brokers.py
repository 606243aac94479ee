"""What a file may say of a broker, for sinks of pipelines and for relays of an outbox; and the way in that it stands for.

Nothing of Spark is loaded for it.
"""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, assert_never

from pydantic import BeforeValidator, Field

from headwater.brokers.kafka.access import KafkaAccess
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.broker import NatsBrokerSettings
from headwater.brokers.nats.streams import Retention, StreamLimits
from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.registry import BrokerAccess, NatsMessages
from headwater.brokers.servicebus.access import ServiceBusAccess
from headwater.cli.pipeline_file.section import Duration, Section, Size, place_of, read_table

MIB = 1024 * 1024


class NatsTarget(Section):
    """A NATS server, and where messages go there."""

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
    replicas: int | None = None
    max_age: Duration | None = None
    max_bytes: Size | None = None
    max_msgs: int | None = None
    retention: Retention | None = None
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
    settings: Annotated[dict[str, str], BeforeValidator(read_table)] = Field(default_factory=dict)


AnyBroker: TypeAlias = NatsTarget | RabbitmqSink | ServiceBusSink | KafkaSink


def access_of(broker: AnyBroker, base: Path) -> BrokerAccess:
    """Where a broker is, and how to get in; files are relative to `base`. Raises SettingsError.

    The keys of the file are those of the access, but for a few.
    """
    given = broker.model_dump(exclude={"type", "name", "event_source"})
    match broker:
        case NatsTarget():
            return _nats_messages(broker, base)
        case RabbitmqSink():
            files = {name: _file(given[name], base) for name in ("tls_ca", "tls_cert", "tls_key")}
            return RabbitmqAccess(**{**given, **files}, source=broker.event_source)
        case ServiceBusSink():
            return ServiceBusAccess(**given, source=broker.event_source)
        case KafkaSink():
            return KafkaAccess(**given, source=broker.event_source)
        case _:
            assert_never(broker)


def nats_access(nats: NatsTarget, base: Path) -> NatsAccess:
    """The way into the server."""
    return NatsAccess(
        url=nats.url,
        user=nats.user,
        password=nats.password,
        token=nats.token,
        is_tls_first=nats.tls_first,
        timeout=nats.timeout,
        max_pending=nats.max_pending,
        nkey_file=_file(nats.nkey_file, base),
        creds_file=_file(nats.creds_file, base),
        tls_ca=_file(nats.tls_ca, base),
        tls_cert=_file(nats.tls_cert, base),
        tls_key=_file(nats.tls_key, base),
    )


def nats_limits(nats: NatsTarget) -> StreamLimits:
    """How much a stream keeps."""
    return StreamLimits(
        replicas=nats.replicas,
        max_age=nats.max_age,
        max_bytes=nats.max_bytes,
        max_msgs=nats.max_msgs,
        retention=nats.retention,
    )


def _nats_messages(nats: NatsTarget, base: Path) -> NatsMessages:
    settings = NatsBrokerSettings(
        subject=nats.subject,
        source=nats.event_source,
        stream=nats.stream,
        stream_subjects=nats.stream_subjects,
        limits=nats_limits(nats),
    )
    return NatsMessages(access=nats_access(nats, base), settings=settings)


def _file(file: str | None, base: Path) -> str | None:
    return None if file is None else place_of(file, base)
