"""JetStream's streams: looked up, made, and given our subjects, without touching what an operator set.

Reference: https://docs.nats.io/reference/reference-protocols/nats_api_reference
"""

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Literal

from headwater.brokers.nats.link import Link
from headwater.errors import BrokerError, BrokerUnavailable

Retention = Literal["limits", "interest", "workqueue"]

API = "$JS.API"
_NO_STREAM = 10059
_NAME_TAKEN = 10058
_OVERLAP = 10065
# JetStream itself is away for now: it elects a leader, or waits for one.
_PASSING = frozenset({10004, 10007, 10008, 10009, 10118})
_NOT_ENABLED = frozenset({10039, 10076})
# Two producers that add their subjects to one stream at the same time may each write over the other's: whoever changed a
# stream looks again after a moment. The update takes the server about a millisecond.
_CHECK_SECONDS = 0.1
_CHANGES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """What a stream keeps, and on how many servers. None leaves an existing stream as it is, and a new one to the server."""

    replicas: int | None = None
    max_age: timedelta | None = None
    max_bytes: int | None = None
    max_msgs: int | None = None
    retention: Retention | None = None

    def config(self) -> dict[str, object]:
        """As JetStream writes them."""
        age = None if self.max_age is None else round(self.max_age / timedelta(microseconds=1)) * 1000
        given = {
            "num_replicas": self.replicas,
            "max_age": age,
            # The server's word for without limit is -1; 0 is what people write.
            "max_bytes": self.max_bytes or (None if self.max_bytes is None else -1),
            "max_msgs": self.max_msgs or (None if self.max_msgs is None else -1),
            "retention": self.retention,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream as it is now; `last_seq` is 0 when nothing was ever stored, `first_seq` one more than it when all is gone."""

    name: str
    subjects: tuple[str, ...]
    created: datetime
    messages: int
    first_seq: int
    last_seq: int
    config: Mapping[str, Any] = field(repr=False)
    # Messages of each subject, of those that were asked for.
    subject_counts: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}), repr=False)


class ApiError(BrokerError):
    """JetStream refused a request; `code` is its own number for the reason."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def stream_info(link: Link, name: str, count_subjects: str | None = None) -> StreamInfo | None:
    """The stream, or None when there is none; with a subject filter (`>` for all), also how many messages each has."""
    counts: dict[str, int] = {}
    while True:
        asked = {} if count_subjects is None else {"subjects_filter": count_subjects, "offset": len(counts)}
        try:
            answer = call(link, f"STREAM.INFO.{name}", asked)
        except ApiError as error:
            if error.code == _NO_STREAM:
                return None
            raise
        found: dict[str, int] = answer["state"].get("subjects") or {}
        counts |= found
        # The server gives at most 100,000 subjects at a time.
        if not found or len(counts) >= answer.get("total", 0):
            return _parse_info(answer, counts)


def ensure_stream(
    link: Link,
    name: str,
    subjects: Sequence[str],
    description: str,
    limits: StreamLimits = StreamLimits(),  # noqa: B008
) -> None:
    """Make the stream, or add to an existing one the subjects that it lacks and the limits that are given.

    What is not given stays as an operator set it. Several may do this for the same stream at the same time.
    """
    for _ in range(_CHANGES):
        info = stream_info(link, name)
        if info is None:
            wanted: dict[str, Any] = {
                "name": name,
                "description": description,
                "subjects": list(subjects),
                **limits.config(),
            }
            is_done = _change(link, f"STREAM.CREATE.{name}", wanted)
        else:
            wanted = {**info.config, "subjects": merged_subjects(info.subjects, subjects), **limits.config()}
            if wanted["max_age"]:
                # JetStream remembers no id longer than the message.
                wanted["duplicate_window"] = min(wanted["duplicate_window"], wanted["max_age"])
            if wanted == info.config:
                return
            is_done = _change(link, f"STREAM.UPDATE.{name}", wanted)
        if is_done:
            time.sleep(random.uniform(_CHECK_SECONDS / 2, _CHECK_SECONDS))
    raise BrokerUnavailable(f"stream {name!r} is changed by others all the time; its subjects cannot be added")


def merged_subjects(present: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The subjects of a stream with ours added: JetStream allows none that another one covers."""
    merged = list(present)
    for subject in wanted:
        if not any(covers(one, subject) for one in merged):
            merged = [one for one in merged if not covers(subject, one)] + [subject]
    return merged


def covers(pattern: str, subject: str) -> bool:
    """Whether all that `subject` matches is matched by `pattern` too."""
    wide, narrow = pattern.split("."), subject.split(".")
    for at, token in enumerate(wide):
        if token == ">":
            return len(narrow) > at
        if at >= len(narrow) or narrow[at] == ">" or (token != "*" and token != narrow[at]):
            return False
    return len(wide) == len(narrow)


def call(link: Link, verb: str, request: Mapping[str, object]) -> dict[str, Any]:
    """Ask JetStream's API; its errors are raised."""
    answer = link.ask(f"{API}.{verb}", json.dumps(request).encode() if request else b"")
    if answer is None:
        raise _nobody(link)
    parsed: dict[str, Any] = json.loads(answer.payload)
    if error := parsed.get("error"):
        raise _translated(link, verb, int(error.get("err_code", 0)), str(error.get("description", error)))
    return parsed


def _change(link: Link, verb: str, config: Mapping[str, object]) -> bool:
    """Whether the stream is now as asked for; False when somebody else made it, or deleted it, just before."""
    try:
        call(link, verb, config)
    except ApiError as error:
        if error.code in (_NAME_TAKEN, _NO_STREAM):
            return False
        if error.code == _OVERLAP:
            raise _overlap(link, config) from error
        raise
    return True


def _overlap(link: Link, config: Mapping[str, Any]) -> BrokerError:
    taken = {
        other: subject
        for subject in config["subjects"]
        for other in call(link, "STREAM.NAMES", {"subject": subject}).get("streams") or []
        if other != config["name"]
    }
    others = ", ".join(f"{other!r} has {subject!r}" for other, subject in sorted(taken.items()))
    return BrokerError(
        f"stream {config['name']!r} cannot have its subjects, since another stream has some of them already ({others}); a "
        "subject belongs to one stream only: delete the other one, take the subjects from it, or choose another namespace"
    )


def _nobody(link: Link) -> BrokerError:
    if link.info.has_jetstream:
        return BrokerUnavailable(f"JetStream at NATS {link.where} does not answer; it may be starting")
    return BrokerError(
        f"JetStream is not enabled on the NATS server at {link.where}; start it with `-js` or a jetstream block"
    )


def _translated(link: Link, verb: str, code: int, words: str) -> BrokerError:
    if code in _PASSING:
        return BrokerUnavailable(f"JetStream at NATS {link.where} is not available: {words}")
    if code in _NOT_ENABLED:
        return BrokerError(f"{words} at NATS {link.where}; give the account a jetstream block, or use another account")
    return ApiError(f"JetStream at NATS {link.where} refused {verb}: {words}", code)


def _parse_info(answer: Mapping[str, Any], counts: Mapping[str, int]) -> StreamInfo:
    config, state = answer["config"], answer["state"]
    return StreamInfo(
        name=config["name"],
        subjects=tuple(config.get("subjects") or ()),
        created=parse_time(answer["created"]),
        messages=state["messages"],
        first_seq=state["first_seq"],
        last_seq=state["last_seq"],
        config=config,
        subject_counts=MappingProxyType(counts),
    )


def parse_time(text: str) -> datetime:
    """RFC 3339 as Go writes it: up to nine digits of a second, of which Python takes six."""
    moment, _, rest = text.partition(".")
    digits = rest.rstrip("Z")
    return datetime.fromisoformat(f"{moment.rstrip('Z')}.{digits[:6]:0<6}+00:00")
