"""Messages as JetStream gets them: header lines by columns, and what NATS would never take. Pure.

Values of headers are percent-encoded, so that no value can end its line: those of CloudEvents as their binding says, the
user's own as little as possible, so that ordinary text stays as it is. Percent-decoding gives each of them back. Names are
not encoded; a message with one that NATS cannot carry is refused.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from headwater.brokers.columns import FEW, Row, event_columns, gathered, header_entries, holders, rows
from headwater.model import Messages

# NATS has no property for it, and keeps content-type for events that are whole in the payload.
_CONTENT_TYPE: Final = "datacontenttype"
# Printable ASCII but for the blank, the quote and the percent sign, or, for the user's own, but for the percent sign and
# blanks at either end.
_EVENT_SAFE: Final = "!#$&'()*+,/:;=?@[]\\^`{|}~<>-._"
_OWN_SAFE: Final = _EVENT_SAFE + ' "'
_EVENT_UNSAFE: Final = r"[^!#$&-~]"
_OWN_UNSAFE: Final = r"[^ -$&-~]|^ | $"
_ID: Final = r"^[!-~]+$"
_NAME: Final = r"^[!-9;-~]+$"
_EVENT_ODD: Final = re.compile(_EVENT_UNSAFE).search
_OWN_ODD: Final = re.compile(_OWN_UNSAFE).search
_PLAIN: Final = re.compile(r"[!-~]+").fullmatch
_SUSPECT: Final = re.compile(r"^(nats-|ce-)|^$|[^!-9;-~]", re.IGNORECASE).search
# The server ends a connection on a line of more than 4,096 bytes, which holds the address of the answer and sizes, too.
_MOST_SUBJECT_BYTES: Final = 3000


def header_lines(messages: Messages, source: str) -> pa.Array:
    """The header lines of each message besides its id."""
    if len(messages) <= FEW:
        with suppress(OverflowError):
            return pa.array([_lines(row, source) for row in rows(messages)], pa.binary())
    attributes = {**event_columns(messages, source), _CONTENT_TYPE: messages.column("content_type")}
    lines = [_attribute_lines(f"ce-{name}", values) for name, values in attributes.items()]
    names, values, offsets = header_entries(messages)
    if len(names):
        own = pc.binary_join_element_wise(names, ": ", _encoded(values, _OWN_UNSAFE, _own), "\r\n", "")
        lines.append(gathered(own.cast(pa.binary()), offsets).cast(pa.string()))
    return pc.binary_join_element_wise(*lines, "").cast(pa.binary())


def _lines(row: Row, source: str) -> bytes:
    """The same for one message."""
    attributes = {**row.event(source), _CONTENT_TYPE: row.content_type}
    lines = [f"ce-{name}: {_event(value) if _EVENT_ODD(value) else value}\r\n" for name, value in attributes.items()]
    lines += [f"{name}: {_own(value) if _OWN_ODD(value) else value}\r\n" for name, value in row.headers]
    return "".join(lines).encode()


def forbidden(messages: Messages) -> dict[int, str]:
    """Messages that NATS cannot carry, by place, and why not."""
    if len(messages) <= FEW and _are_plain(messages):
        return {}
    is_bad = pc.invert(pc.match_substring_regex(messages.column("id"), _ID))
    found = dict.fromkeys(
        pc.indices_nonzero(is_bad).to_pylist(), "the id is empty or not of printable ASCII, so it cannot be a Nats-Msg-Id"
    )
    names, _, offsets = header_entries(messages)
    if not len(names):
        return found
    lower = pc.utf8_lower(names)
    ours = pa.array([f"ce-{name}" for name in (*event_columns(messages, ""), _CONTENT_TYPE)])
    unnamed = holders(pc.invert(pc.match_substring_regex(names, _NAME)), names, offsets)
    servers = holders(pc.starts_with(lower, "nats-"), names, offsets)
    taken = holders(pc.is_in(lower, ours), names, offsets)
    return {
        **{place: f"header {name[:40]!r} has a name that NATS cannot carry; rename it" for place, name in unnamed.items()},
        **{place: f"header {name!r} is an order to the NATS server; rename it" for place, name in servers.items()},
        **{place: f"header {name!r} is an attribute of the event itself; rename it" for place, name in taken.items()},
        **found,
    }


def _are_plain(messages: Messages) -> bool:
    """Whether a short look tells that nothing is forbidden."""
    names, _, _ = header_entries(messages)
    return all(_PLAIN(id) for id in messages.column("id").to_pylist()) and not any(
        _SUSPECT(name) for name in names.to_pylist()
    )


def subject_problem(subject: str) -> str | None:
    """Why nothing can be published to it."""
    if len(subject.encode()) > _MOST_SUBJECT_BYTES:
        return f"a subject of more than {_MOST_SUBJECT_BYTES} bytes is more than NATS takes"
    if any(character.isspace() or not character.isprintable() for character in subject):
        return f"{subject!r} is no subject of NATS: it holds blanks"
    tokens = subject.split(".")
    if "" in tokens:
        return f"{subject!r} is no subject of NATS: there is nothing between two dots, or at an end"
    if "*" in tokens or ">" in tokens:
        return f"{subject!r} is no subject to publish to: it has a wildcard"
    # A topic must not be able to ask the server to delete a stream.
    if subject.startswith("$"):
        return f"{subject!r} belongs to the NATS server: what begins with $ is a request to it"
    return None


def _attribute_lines(name: str, values: pa.Array | pa.Scalar) -> pa.Array | pa.Scalar:
    if isinstance(values, pa.Scalar):
        return pa.scalar(f"{name}: {_event(values.as_py())}\r\n")
    lines = pc.binary_join_element_wise(f"{name}: ", _encoded(values, _EVENT_UNSAFE, _event), "\r\n", "")
    return pc.fill_null(lines, "") if values.null_count else lines


def _encoded(values: pa.Array, unsafe: str, encode: Callable[[str], str]) -> pa.Array:
    """The values, encoded where they need it; hardly any do."""
    is_unsafe = pc.fill_null(pc.match_substring_regex(values, unsafe), False)
    places = pc.indices_nonzero(is_unsafe)
    if not len(places):
        return values
    replaced = pa.array([encode(value) for value in values.take(places).to_pylist()], pa.string())
    return pc.replace_with_mask(values, is_unsafe, replaced)


def _event(text: str) -> str:
    return quote(text, safe=_EVENT_SAFE)


def _own(text: str) -> str:
    encoded = quote(text, safe=_OWN_SAFE)
    inner = encoded.strip(" ")
    before = len(encoded) - len(encoded.lstrip(" "))
    return f"{'%20' * before}{inner}{'%20' * (len(encoded) - before - len(inner))}"
