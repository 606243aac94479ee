"""The file of `headwater comms serve`: the database, the API, and by what messages are sent, checked before it starts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from pydantic import BeforeValidator, Field, StrictInt, create_model

from headwater.cli.pipeline_file.complaint import Shape
from headwater.cli.pipeline_file.reading import Faults, refused, survey
from headwater.cli.pipeline_file.section import Duration, Section, Size, place_of
from headwater.cli.pipeline_file.values import Toml
from headwater.comms.http_settings import HttpSettings
from headwater.comms.settings import ApiSettings, SendSettings, check_queue, check_sender
from headwater.comms.smtp_settings import SmtpSettings, Tls
from headwater.http import parse_listen
from headwater.postgres.connect import complete

# What holds where the file says nothing.
_API: Final = ApiSettings()
_SEND: Final = SendSettings()
_SMTP: Final = SmtpSettings(host="localhost")
_HTTP: Final = HttpSettings(url="http://localhost")
_DEFAULT_LISTEN: Final = "127.0.0.1:8025"
_RATE: Final = re.compile(r"(?P<count>\d+(?:\.\d+)?)\s*/\s*(?P<unit>s|m|h)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600}


class Role(StrEnum):
    """What a process does: take messages, send them, or both."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    BOTH = "both"

    @property
    def produces(self) -> bool:
        return self is not Role.CONSUMER

    @property
    def consumes(self) -> bool:
        return self is not Role.PRODUCER


def _read_rate(value: Toml) -> float:
    """Messages per second."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError('must be messages per second, such as 14, or a text such as "100/m" or "5000/h"')
    return float(found["count"]) / _SECONDS[found["unit"]]


Rate: TypeAlias = Annotated[float | None, BeforeValidator(_read_rate)]


class ApiSection(Section):
    """`[api]`."""

    token: str | None = None
    max_messages: StrictInt = _API.max_messages
    max_bytes: Size = _API.max_bytes
    connections: StrictInt = _API.connections


class SendSection(Section):
    """`[send]`."""

    concurrency: StrictInt = _SEND.concurrency
    rate: Rate = None
    within: Duration = _SEND.within
    attempts: StrictInt = _SEND.attempts
    retry_first: Duration = _SEND.retry_first
    retry_longest: Duration = _SEND.retry_longest
    lease: Duration = _SEND.lease
    poll: Duration = _SEND.poll
    stop_within: Duration = _SEND.stop_within
    keep: Duration = _SEND.keep
    keep_done: Duration = _SEND.keep_done


class SmtpSection(Section):
    """`[smtp]`."""

    host: str
    port: StrictInt = 0
    tls: Tls = _SMTP.tls
    user: str | None = None
    password: str | None = None
    timeout: Duration = _SMTP.timeout
    idle: Duration = _SMTP.idle
    messages_per_connection: StrictInt = _SMTP.messages_per_connection
    hello: str | None = None
    tls_ca: str | None = None


class HttpSection(Section):
    """`[http]`; `headers` and `body` are tables in it."""

    url: str
    method: str = _HTTP.method
    headers: dict[str, str] = Field(default_factory=dict)
    body: dict[str, Any] | None = None
    timeout: Duration = _HTTP.timeout
    idle: Duration = _HTTP.idle


class _File(Section):
    """The whole file, but for `from`, which no attribute in Python can be called."""

    url: str = ""
    listen_url: str | None = None
    listen: str | None = None
    queue: str = _SEND.queue
    api: ApiSection = ApiSection()
    send: SendSection = SendSection()
    smtp: SmtpSection | None = None
    http: HttpSection | None = None


_FROM: Final[dict[str, Any]] = {"from": (str | None, None)}
File: Final = create_model("File", __base__=_File, __doc__="The whole file.", **_FROM)

_SHAPE: Final = Shape(
    File, kinds={}, sections={"api": ApiSection, "send": SendSection, "smtp": SmtpSection, "http": HttpSection}
)


@dataclass(frozen=True, slots=True)
class CommsFile:
    """A service as a file describes it; without `by` it sends nothing."""

    url: str
    listen_url: str | None
    listen: str | None
    api: ApiSettings
    send: SendSettings
    by: SmtpSettings | HttpSettings | None


def load_comms(
    path: Path, environ: Mapping[str, str], role: Role, listen: str | None = None, listen_url: str | None = None
) -> CommsFile:
    """The service that a file describes; raises SettingsError with all that is wrong with it.

    `environ` is what `${VARIABLE}` is taken from, and HEADWATER_URL where the file names no database; relative paths are
    relative to the file. `listen` and `listen_url` count before those of the file.
    """
    missing = "name the file of the service; `headwater comms serve --help` shows one"
    file, faults = survey(path, environ, File, _SHAPE, missing=missing)
    url = file.url or environ.get("HEADWATER_URL", "")
    listen_url = listen_url or file.listen_url
    wanted = listen or file.listen or (_DEFAULT_LISTEN if role.produces else None)
    common = dict[str, Any]()
    with faults.at("from"):
        check_sender(getattr(file, "from"))
        common["sender"] = getattr(file, "from")
    with faults.at("queue"):
        check_queue(file.queue)
        common["queue"] = file.queue
    with faults.at("url"):
        complete(url)
    with faults.at("listen_url"):
        complete(listen_url or "")
    with faults.at("listen"):
        parse_listen(wanted or _DEFAULT_LISTEN)
    with faults.at("api"):
        api = ApiSettings(**dict(file.api), **common)
    with faults.at("send"):
        send = SendSettings(**dict(file.send), **common)
    by = _by(file, path.parent, role, faults)
    if faults.found:
        raise refused(path, faults.found)
    return CommsFile(url, listen_url, wanted, api, send, by)


def _by(file: _File, base: Path, role: Role, faults: Faults) -> SmtpSettings | HttpSettings | None:
    given = [name for name in ("smtp", "http") if getattr(file, name) is not None or name in faults.tops]
    if len(given) > 1:
        said = "there are both [smtp] and [http]; messages are sent by one of them, so leave the other out"
        faults.found.append(((), said))
    if not given and role.consumes:
        said = "there is neither [smtp] nor [http]; say by what messages are sent, or take --role producer"
        faults.found.append(((), said))
    made: SmtpSettings | HttpSettings | None = None
    if file.smtp is not None:
        tls_ca = None if file.smtp.tls_ca is None else place_of(file.smtp.tls_ca, base)
        with faults.at("smtp"):
            made = SmtpSettings(**{**dict(file.smtp), "tls_ca": tls_ca})
        with faults.at("smtp", "tls_ca"):
            # That the file can be used is found out here, and not when the first message is sent.
            replace(_SMTP, tls_ca=tls_ca).tls_context()
    if file.http is not None:
        with faults.at("http"):
            made = HttpSettings(**dict(file.http))
    return made
