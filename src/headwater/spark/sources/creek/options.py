"""The options of the source `headwater.creek`, taken from text. Spark hands on the names in lower case."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any

from headwater.brokers.nats.access import NatsAccess
from headwater.creek.consumer.mapping import TableMapping
from headwater.creek.names import Generation, Kind, Names
from headwater.errors import SettingsError
from headwater.spark.rules import MIB
from headwater.spark.shape import Shape
from headwater.spark.sources.given import read_choice, read_number, read_switch, recognised

_ACCESS = {
    "url": "url",
    "user": "user",
    "password": "password",
    "token": "token",
    "nkeyFile": "nkey_file",
    "credsFile": "creds_file",
    "tlsCa": "tls_ca",
    "tlsCert": "tls_cert",
    "tlsKey": "tls_key",
    "tlsFirst": "is_tls_first",
    "inboxPrefix": "inbox_prefix",
}
_OTHERS = (
    "timeoutSeconds",
    "namespace",
    "generation",
    "tables",
    "shape",
    "lanes",
    "start",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "subscriptionsUrl",
    "stream",
)
# By their names in lower case: that is how Spark hands them on.
_KNOWN = {name.lower(): name for name in (*_ACCESS, *_OTHERS)}
# Partitions travel inside of Spark's messages, which end at 128 MiB.
_MOST_BYTES = 100 * MIB
_LEAST_BYTES = MIB // 16
# Names and mappings; a comma within quotes belongs to the name.
_ENTRY = re.compile(r'(?:"[^"]*"|[^,"]|")+')


class Start(StrEnum):
    """Where a query without a checkpoint begins: with the oldest message that the stream has, or with the next one."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is read, from where, and in which shape.

    `tables` are all in one stream. With a `subscriptions_url` they are those that the consumer in that database follows, and
    begin where it is.
    """

    access: NatsAccess
    namespace: str
    generation: Generation
    tables: tuple[TableMapping, ...]
    stream: str
    shape: Shape
    lanes: int
    start: Start
    max_rows: int | None
    max_bytes: int
    subscriptions_url: str | None = field(repr=False)

    def subject(self, table: TableMapping) -> str:
        topic = table.topic
        return self.names(topic.database).subject(Kind.WAL, topic.schema, topic.table)

    def names(self, database: str) -> Names:
        return Names(self.namespace, database, self.generation)


def parse_options(given: Mapping[str, str]) -> Options:
    """The options of a `readStream`."""
    options = dict(recognised(given, _KNOWN, "headwater.creek"))
    if not options.get("url"):
        raise SettingsError("`headwater.creek` needs the option 'url'")
    namespace = options.get("namespace", "CREEK")
    generation = read_choice(Generation, "generation", options.get("generation", Generation.ONE))
    tables = tuple(
        TableMapping.parse(entry) for match in _ENTRY.finditer(options.get("tables", "")) if (entry := match[0].strip())
    )
    subscriptions_url = options.get("subscriptionsUrl")
    if not tables and subscriptions_url is None:
        raise SettingsError("`headwater.creek` needs the option 'tables', such as shop.public.orders,shop.public.items")
    return Options(
        access=_access(options),
        namespace=namespace,
        generation=generation,
        tables=tables,
        stream=options.get("stream") or _stream(tables, namespace, generation),
        shape=read_choice(Shape, "shape", options.get("shape", Shape.ENVELOPE)),
        lanes=read_number("lanes", options.get("lanes", "4"), 1, 256),
        start=read_choice(Start, "start", options.get("start", Start.EARLIEST)),
        max_rows=read_number("maxRowsPerTrigger", options.get("maxRowsPerTrigger", "0"), 0) or None,
        max_bytes=read_number(
            "maxBytesPerTrigger", options.get("maxBytesPerTrigger", str(16 * MIB)), _LEAST_BYTES, _MOST_BYTES
        ),
        subscriptions_url=subscriptions_url,
    )


def access_options(access: NatsAccess) -> dict[str, str]:
    """The options that name a server as `access` does."""
    given = {option: getattr(access, name) for option, name in _ACCESS.items()}
    return {
        **{option: _written(value) for option, value in given.items() if value is not None},
        "timeoutSeconds": str(max(1, round(access.timeout.total_seconds()))),
    }


def _access(options: Mapping[str, str]) -> NatsAccess:
    seconds = read_number("timeoutSeconds", options.get("timeoutSeconds", "30"), 1)
    given: dict[str, Any] = {name: options[option] for option, name in _ACCESS.items() if option in options}
    if "tlsFirst" in options:
        given["is_tls_first"] = read_switch("tlsFirst", options["tlsFirst"])
    return NatsAccess(timeout=timedelta(seconds=seconds), **given)


def _written(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()


def _stream(tables: Sequence[TableMapping], namespace: str, generation: Generation) -> str:
    streams = {Names(namespace, table.topic.database, generation).stream(Kind.WAL) for table in tables}
    if len(streams) != 1:
        raise SettingsError(
            "the tables of one query are in one stream, and in generation 2 each database has its own; read each with a "
            "query of its own"
        )
    return streams.pop()
