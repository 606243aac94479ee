"""What all brokers have in common: messages go in, and each is settled when the call returns."""

import string
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from headwater.errors import SettingsError
from headwater.model import Messages

# What a template of destinations may name.
PLACEHOLDERS: Final = ("topic", "type")


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that the broker will never take as it is, by its place in what was given, and why."""

    index: int
    reason: str


@dataclass(frozen=True, slots=True)
class Published:
    """What became of the messages of one call; the numbers add up to how many were given.

    `duplicates` had been stored by an earlier call, where the broker can tell.
    """

    stored: int
    duplicates: int = 0
    refused: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """A message that the broker did not take, for a reason that may pass, by its place in what was given.

    `was_sent`: it went out, so that it may be stored all the same unless the broker itself said that it is not, which is
    `was_answered`. Without an answer, it may also be what broke the connection.
    """

    index: int
    reason: str
    was_sent: bool
    was_answered: bool = False


@dataclass(frozen=True, slots=True)
class Offered:
    """What became of the messages of one offer; the numbers add up to how many were given, and each place is in one only.

    What is in neither `refused` nor `left` is durable at the broker; `duplicates` of these had been before, where the
    broker can tell.
    """

    stored: int
    duplicates: int = 0
    refused: tuple[Refused, ...] = ()
    left: tuple[Left, ...] = ()


class Broker(Protocol):
    """One writer to a broker; not for use by several threads at once. It connects when it is used, and again by itself."""

    def publish(self, messages: Messages) -> Published:
        """Send messages in order; on return each is durable at the broker, or refused for good.

        What the broker did not take, for a reason that may pass, is sent again from the first such message on, so that the
        order holds and later ones may come twice. When nothing has moved for the settings' timeout it raises
        `BrokerUnavailable`, and any part of the messages may have been stored; wrong credentials, for which trying again is
        of no use, are a `BrokerError`.
        """

    def offer(self, messages: Messages) -> Offered:
        """Send each message once, in about the settings' timeout at the longest; one that is not taken holds up no other.

        It raises only before anything was sent: `BrokerUnavailable` when the broker cannot be reached, and `BrokerError`
        when it does not let us in. Whatever happens afterwards, what was acknowledged until then is told as stored, and the
        rest is left.
        """

    def check(self) -> None:
        """Find out whether we are let in, as far as that can be told without a message; raises as `publish` does."""

    def close(self) -> None:
        """Let go of the connection."""


def check_template(setting: str, template: str) -> None:
    """Raise SettingsError if a template of destinations names what there is not."""
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as exc:
        raise SettingsError(f"{setting} {template!r} is no template ({exc}); write it as in orders.{{topic}}") from exc
    unknown = [name for name in names if name not in PLACEHOLDERS]
    if unknown:
        known = " and ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise SettingsError(f"{setting} {template!r} names {{{unknown[0]}}}; there are {known}")
    if not template:
        raise SettingsError(f"{setting} is empty; {{topic}} stands for the topic of each message")


def destinations(template: str, messages: Messages) -> pa.StringArray:
    """Where each message goes, by a template such as `orders.{topic}`."""
    if template == "{topic}":
        return messages.column("topic")
    topics, types = messages.column("topic").to_pylist(), messages.column("type").to_pylist()
    known: dict[tuple[str, str], str] = {}
    return pa.array(
        [
            known.get(pair) or known.setdefault(pair, template.format(topic=pair[0], type=pair[1]))
            for pair in zip(topics, types, strict=True)
        ],
        pa.string(),
    )


def cloud_event(message_id: str, source: str, type_: str, time: str, key: str | None) -> dict[str, str]:
    """The attributes of a CloudEvent but for its content type; headers prefix them as each protocol binding says."""
    attributes = {"specversion": "1.0", "id": message_id, "source": source, "type": type_, "time": time}
    return attributes if key is None else {**attributes, "partitionkey": key}
