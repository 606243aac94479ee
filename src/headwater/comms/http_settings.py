"""Where an HTTP API for e-mail is, and what it is sent: a plain value, checked when it is made."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

from headwater.comms.address import check_line
from headwater.comms.template import form_faults
from headwater.errors import SettingsError
from headwater.model.settings import find_strangers, find_too_small

_METHODS: Final = ("POST", "PUT")
# Set by us, and the same at every attempt.
KEY_HEADER: Final = "Idempotency-Key"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """An API that takes a message as JSON. `body` is a form that is filled in; without, it is one of our own."""

    url: str = field(repr=False)
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    body: Mapping[str, Any] | None = None
    # For a connection, and for each part of the answer.
    timeout: timedelta = timedelta(seconds=30)
    idle: timedelta = timedelta(seconds=20)

    def __post_init__(self) -> None:
        faults = list(find_strangers(self, "the HTTP API")) or [
            *find_too_small(self, "the HTTP API"),
            *self._faults(),
            *_header_faults(self.headers),
            *(form_faults(self.body) if self.body is not None else []),
        ]
        if faults:
            raise SettingsError(*faults)

    def _faults(self) -> list[str]:
        faults = []
        if not _is_url(self.url):
            faults.append("the url of the HTTP API must look like https://api.example.com/v1/mail")
        if self.method not in _METHODS:
            faults.append(f"method of the HTTP API must be one of {', '.join(_METHODS)}")
        return faults

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must not be repeated: values of headers, and what comes after a word such as Bearer in them."""
        values = [
            value for name, value in self.headers.items() if name.lower() not in ("content-type", "accept", "user-agent")
        ]
        return (*values, *(value.split()[-1] for value in values if len(value.split()) > 1))

    def describe(self) -> str:
        """Where it is, for messages; a path and a query may hold a key."""
        return f"http {urlsplit(self.url).hostname}"


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.split() == [url]
    except ValueError:
        return False


def _header_faults(headers: Mapping[str, str]) -> list[str]:
    faults = []
    for name, value in headers.items():
        if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            faults.append(f"headers of the HTTP API have the name {name!r}, which is none")
        elif name.lower() == KEY_HEADER.lower():
            faults.append(f"{KEY_HEADER} is set by Headwater; leave it out of the headers of the HTTP API")
        try:
            check_line(value, 10_000)
            value.encode("ascii")
        except ValueError:
            faults.append(f"header {name} of the HTTP API has a line break, or a character that is not ASCII")
    return faults
