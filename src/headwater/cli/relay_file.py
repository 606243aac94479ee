"""The file of `headwater outbox relay`: the database, the broker, and the numbers of the relay, checked before it starts."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, create_model

from headwater.brokers.registry import BrokerAccess
from headwater.cli.pipeline_file.brokers import KafkaSink, NatsTarget, RabbitmqSink, ServiceBusSink, access_of
from headwater.cli.pipeline_file.complaint import Shape
from headwater.cli.pipeline_file.reading import Faults, read, refused
from headwater.cli.pipeline_file.section import Duration, Section, Size, read_duration
from headwater.cli.pipeline_file.values import Toml
from headwater.http import parse_listen
from headwater.outbox import RelaySettings
from headwater.postgres.connect import complete


def _read_limit(value: Toml) -> timedelta | None:
    try:
        return None if value == "never" else read_duration(value)
    except ValueError as exc:
        raise ValueError(f'{exc}, or "never"') from exc


# How the kinds of values of the settings are written in a file.
_WRITTEN: Final[Mapping[object, Any]] = {
    int: StrictInt,
    bool: StrictBool,
    timedelta: Duration,
    timedelta | None: Annotated[timedelta | None, BeforeValidator(_read_limit)],
}


def _section() -> type[Section]:
    """`[relay]`: the settings by their own names, each with the default that it has there."""
    keys: dict[str, Any] = {
        one.name: (Size if one.name.endswith("_bytes") else _WRITTEN[one.type], one.default) for one in fields(RelaySettings)
    }
    return create_model("RelaySection", __base__=Section, __doc__="`[relay]`.", **keys)


RelaySection: Final = _section()

AnyTarget: TypeAlias = Annotated[NatsTarget | RabbitmqSink | ServiceBusSink | KafkaSink, Field(discriminator="type")]


class File(Section):
    """The whole file."""

    url: str = ""
    listen: str | None = None
    broker: AnyTarget
    relay: RelaySection = RelaySection()  # type: ignore[valid-type] # made of the settings, which mypy cannot follow


_SHAPE: Final = Shape(
    File,
    kinds={"broker": {"nats": NatsTarget, "rabbitmq": RabbitmqSink, "servicebus": ServiceBusSink, "kafka": KafkaSink}},
    sections={"relay": RelaySection},
)


@dataclass(frozen=True, slots=True)
class RelayFile:
    """A relay as a file describes it."""

    url: str
    broker: BrokerAccess
    settings: RelaySettings
    listen: str | None


def load_relay(path: Path, environ: Mapping[str, str]) -> RelayFile:
    """The relay that a file describes; raises SettingsError with all that is wrong with it.

    `environ` is what `${VARIABLE}` is taken from, and HEADWATER_URL where the file names no database; relative paths are
    relative to the file.
    """
    missing = "name the file of the relay; `headwater outbox relay --help` shows one"
    file = read(path, environ, File, _SHAPE, missing=missing)
    url = file.url or environ.get("HEADWATER_URL", "")
    faults = Faults()
    with faults.at("url"):
        complete(url)
    with faults.at("listen"):
        parse_listen(file.listen or "127.0.0.1:0")
    with faults.at("relay"):
        settings = RelaySettings(**dict(file.relay))
    with faults.at("broker"):
        broker = access_of(file.broker, path.parent)
    if faults.found:
        raise refused(path, faults.found)
    return RelayFile(url, broker, settings, file.listen)
