"""Messages as jobs carry them: as JSON, with attachments by their digests, since claims would carry them to and fro. Pure.

A message that was put into the queue by other means may have its attachments in it, within the queue's own limit.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headwater.comms.message import Email

# Which request a message came with, by its fingerprint. What we note in a payload ourselves begins with an underscore.
REQUEST: Final = "_request"
_DIGEST: Final = "sha256"


@dataclass(frozen=True, slots=True)
class Packed:
    """The payload of a job, and what is attached, by digest."""

    payload: dict[str, Any]
    contents: dict[str, bytes] = field(repr=False)


def pack(email: Email) -> Packed:
    payload, contents = email.plain(), {}
    for entry, attachment in zip(payload.get("attachments", []), email.attachments, strict=True):
        data = attachment.data
        digest = hashlib.sha256(data).hexdigest()
        contents[digest] = data
        del entry["content"]
        entry[_DIGEST] = digest
    return Packed(payload, contents)


def contents_of(packed: Iterable[Packed]) -> dict[str, bytes]:
    """What is attached to several messages, each file once."""
    return {digest: data for one in packed for digest, data in one.contents.items()}


def wanted_of(payload: object) -> list[str]:
    """The digests of what is attached and not in the payload itself."""
    return [entry[_DIGEST] for entry in _attachments(payload) if isinstance(entry.get(_DIGEST), str)]


def unpack(payload: object, contents: Mapping[str, bytes]) -> Email:
    """The message; raises pydantic's ValidationError if it is none, and ValueError if something attached is gone."""
    if not isinstance(payload, dict):
        return Email.model_validate(payload)
    given = {key: value for key, value in payload.items() if not key.startswith("_")}
    if wanted_of(payload):
        given["attachments"] = [_filled(entry, contents) for entry in given["attachments"]]
    return Email.model_validate(given)


def _attachments(payload: object) -> list[dict[str, Any]]:
    listed = payload.get("attachments") if isinstance(payload, dict) else None
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _filled(entry: Any, contents: Mapping[str, bytes]) -> Any:
    if not isinstance(entry, dict) or _DIGEST not in entry:
        return entry
    digest = entry[_DIGEST]
    if digest not in contents:
        raise ValueError(f"attachment {entry.get('name')!r} is not kept any more; submit the message again")
    kept = {key: value for key, value in entry.items() if key != _DIGEST}
    return {**kept, "content": base64.b64encode(contents[digest]).decode()}
