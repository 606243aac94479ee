"""The options of the source `headwater.creek`, taken from text. Spark hands on the names in lower case."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

from headwater.brokers.nats.access import NatsAccess
from headwater.creek.consumer.mapping import TableMapping
from headwater.creek.names import Generation, Kind, Names
from headwater.errors import SettingsError
from headwater.spark.settings import MIB
from headwater.spark.shape import Shape

Choice = TypeVar("Choice", bound=StrEnum)

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
_YES_OR_NO = {"true": True, "false": False}
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
    options = dict(_recognised(given))
    if not options.get("url"):
        raise SettingsError("`headwater.creek` needs the option 'url'")
    namespace = options.get("namespace", "CREEK")
    generation = _choice(Generation, "generation", options.get("generation", Generation.ONE))
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
        shape=_choice(Shape, "shape", options.get("shape", Shape.ENVELOPE)),
        lanes=_number("lanes", options.get("lanes", "4"), 1, 256),
        start=_choice(Start, "start", options.get("start", Start.EARLIEST)),
        max_rows=_number("maxRowsPerTrigger", options.get("maxRowsPerTrigger", "0"), 0) or None,
        max_bytes=_number("maxBytesPerTrigger", options.get("maxBytesPerTrigger", str(16 * MIB)), _LEAST_BYTES, _MOST_BYTES),
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
    seconds = _number("timeoutSeconds", options.get("timeoutSeconds", "30"), 1)
    given: dict[str, Any] = {name: options[option] for option, name in _ACCESS.items() if option in options}
    if "tlsFirst" in options:
        given["is_tls_first"] = _yes_or_no("tlsFirst", options["tlsFirst"])
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


def _recognised(given: Mapping[str, str]) -> Mapping[str, str]:
    found = {}
    for name, value in given.items():
        if name.lower() not in _KNOWN:
            near = get_close_matches(name.lower(), _KNOWN, 1)
            hint = f"did you mean {_KNOWN[near[0]]!r}?" if near else f"there are {', '.join(_KNOWN.values())}"
            raise SettingsError(f"`headwater.creek` has no option {name!r}; {hint}")
        found[_KNOWN[name.lower()]] = value
    return found


def _choice(kind: type[Choice], name: str, text: str) -> Choice:
    try:
        return kind(text)
    except ValueError as exc:
        raise SettingsError(f"option `{name}` is {text!r}, and has to be one of {', '.join(kind)}") from exc


def _yes_or_no(name: str, text: str) -> bool:
    if text.lower() not in _YES_OR_NO:
        raise SettingsError(f"option `{name}` is {text!r}, and has to be true or false")
    return _YES_OR_NO[text.lower()]


def _number(name: str, text: str, least: int, most: int | None = None) -> int:
    limits = f"at least {least}" if most is None else f"between {least} and {most}"
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        raise SettingsError(f"option `{name}` is {text!r}, and has to be a whole number, {limits}")
    return int(text)
