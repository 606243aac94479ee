"""The environment of a Creek producer: its variables by name, read and checked. Pure.

The names, defaults and forms are Creek's: durations as Go writes them, a list of tables with spaces or commas between. Every
fault is told at once, with the name of its variable.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from headwater.brokers.nats.streams import Retention
from headwater.errors import SettingsError

Value = TypeVar("Value")

_PART = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)(?P<unit>ns|us|µs|μs|ms|s|m|h)")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
# A comma or a blank within quotes belongs to the name.
_TABLE = re.compile(r'(?:"(?:[^"]|"")*"|[^\s,"])+')
# Creek hands on the numbers of its client library.
_RETENTION: Final[Mapping[str, Retention]] = {"0": "limits", "1": "interest", "2": "workqueue"}
# What Creek's logger calls them, and what ours does.
_LEVELS: Final = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "fatal": "error",
    "panic": "error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerEnvironment:
    """What a producer is told. None stands for what is not said, so that nothing is changed there."""

    pg_uri: str = field(repr=False)
    publication: str
    slot: str
    tables: tuple[str, ...]
    message_timeout: timedelta | None
    nats_uri: str = field(repr=False)
    namespace: str
    nats_timeout: timedelta
    max_pending: int
    log_level: str | None
    prometheus_port: int
    replicas: int | None
    retention: Retention | None
    max_age: timedelta | None
    max_bytes: int | None
    max_msgs: int | None
    generation: str
    # Ours, for servers that ask for more than a password in the URL.
    creds_file: str | None
    nkey_file: str | None
    tls_ca: str | None
    tls_cert: str | None
    tls_key: str | None


def read_environment(environ: Mapping[str, str]) -> ProducerEnvironment:
    """The variables of a producer; raises SettingsError with all that is missing or wrong. No value is repeated."""
    read = _Variables(environ)
    found = ProducerEnvironment(
        pg_uri=read.needed("PG_URI", "the database, as postgres://user:password@host:5432/database"),
        publication=read.needed(
            "PG_PUBLICATION_NAME", "the name of the publication to read, which is made if it is missing"
        ),
        slot=read.needed("PG_PUBLICATION_SLOT", "the name of the replication slot to read, which is made if it is missing"),
        tables=tuple(_TABLE.findall(environ.get("PG_TABLES", ""))),
        message_timeout=read.given("PG_MESSAGE_TIMEOUT", parse_go_duration, "a duration such as 10s or 1m30s, more than 0"),
        nats_uri=read.needed("NATS_URI", "the NATS server, as nats://host:4222"),
        namespace=environ.get("NATS_NAMESPACE") or "CREEK",
        nats_timeout=read.given("NATS_TIMEOUT", parse_go_duration, "a duration such as 30s or 500ms, more than 0")
        or timedelta(seconds=30),
        max_pending=read.given("NATS_MAX_PENDING", _positive, "a whole number, at least 1") or 4000,
        log_level=read.given("LOG_LEVEL", _level, f"one of {', '.join(_LEVELS)}"),
        prometheus_port=read.given("PROMETHEUS_PORT", _port, "a port, 1 to 65535") or 7779,
        replicas=read.given("NATS_REPLICAS", _replicas, "1 to 5"),
        retention=read.given("NATS_RETENTION_POLICY", _retention, "limits (0), interest (1) or workqueue (2)"),
        max_age=read.given("NATS_RETENTION_MAX_AGE", _limit_age, "a duration such as 24h, or 0 for no limit"),
        max_bytes=read.given("NATS_RETENTION_MAX_BYTES", _limit, "a whole number of bytes, or 0 for no limit"),
        max_msgs=read.given("NATS_RETENTION_MAX_MSGS", _limit, "a whole number of messages, or 0 for no limit"),
        generation=read.given("CREEK_GENERATION", _generation, "1 or 2") or "1",
        creds_file=environ.get("NATS_CREDS_FILE") or None,
        nkey_file=environ.get("NATS_NKEY_FILE") or None,
        tls_ca=environ.get("NATS_TLS_CA") or None,
        tls_cert=environ.get("NATS_TLS_CERT") or None,
        tls_key=environ.get("NATS_TLS_KEY") or None,
    )
    if read.faults:
        raise SettingsError("\n  ".join([*read.faults]) if len(read.faults) == 1 else _listed(read.faults))
    return found


def parse_go_duration(text: str) -> timedelta:
    """A duration as Go writes it, such as `1m30s`, longer than nothing; raises ValueError."""
    parts = list(_PART.finditer(text))
    if not parts or "".join(part[0] for part in parts) != text:
        raise ValueError("not a duration")
    found = timedelta(seconds=sum(float(part["number"]) * _SECONDS[part["unit"]] for part in parts))
    if found <= timedelta(0):
        raise ValueError("not longer than nothing")
    return found


class _Variables:
    """Reads variables one by one, and gathers what is wrong with them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.faults: list[str] = []

    def needed(self, name: str, meaning: str) -> str:
        value = self._environ.get(name, "").strip()
        if not value:
            self.faults.append(f"{name} is not set; set it to {meaning}")
        return value

    def given(self, name: str, parse: Callable[[str], Value | None], form: str) -> Value | None:
        """The value; None if the variable is not set, or empty."""
        text = self._environ.get(name, "").strip()
        if not text:
            return None
        try:
            return parse(text)
        except ValueError:
            self.faults.append(f"{name} must be {form}; correct it, or unset it for the default")
            return None


def _listed(faults: list[str]) -> str:
    return "\n  ".join([f"the environment has {len(faults)} faults:", *faults])


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("not a positive number")
    return int(text)


def _port(text: str) -> int:
    if _positive(text) > 65535:
        raise ValueError("no port")
    return int(text)


def _replicas(text: str) -> int:
    if _positive(text) > 5:
        raise ValueError("more than a server takes")
    return int(text)


def _limit(text: str) -> int | None:
    """A limit; none for 0, and for -1, as the server writes it."""
    return None if text in ("0", "-1") else _positive(text)


def _limit_age(text: str) -> timedelta | None:
    return None if re.fullmatch(r"0(ns|us|ms|s|m|h)?", text) else parse_go_duration(text)


def _retention(text: str) -> Retention:
    for number, name in _RETENTION.items():
        if text.lower() in (number, name):
            return name
    raise ValueError("no retention policy")


def _level(text: str) -> str:
    if text.lower() not in _LEVELS:
        raise ValueError("no level")
    return _LEVELS[text.lower()]


def _generation(text: str) -> str:
    if text not in ("1", "2"):
        raise ValueError("no generation")
    return text
