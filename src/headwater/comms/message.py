"""An e-mail as it comes from outside, checked: what it says, whom it goes to, what is attached.

All limits and rules are here, so that what was accepted can be sent.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictStr, model_validator

from headwater.comms.address import Address, check_line, parse_address

MIB: Final = 1024 * 1024
# Of all attachments together; what most providers take in one message, with room for what base64 adds to it.
MAX_BYTES: Final = 10 * MIB
# Of text and HTML together, which a job carries; mail programs show less.
MAX_TEXT: Final = 400 * 1024
# RFC 5321, 4.5.3.1.8: every server takes 100.
MAX_RECIPIENTS: Final = 100
# Two lines of the longest kind that a message may have.
MAX_LINE: Final = 1996
MAX_HEADERS: Final = 50
MAX_ATTACHMENTS: Final = 50
MAX_NAME: Final = 255

_HEADER_NAME: Final = re.compile(r"[!-9;-~]{1,76}")
_CONTENT_TYPE: Final = re.compile(
    r"(?P<main>[a-z0-9]+)/(?P<sub>[a-z0-9][a-z0-9.+_-]*)(?:; ?charset=\"?(?P<charset>[a-z0-9._-]+)\"?)?"
)
# Half of a pair, and controls other than the ends of lines and pages.
_UNPRINTABLE: Final = re.compile(r"[\x00-\x08\x0b\x0e-\x1f\x7f\ud800-\udfff]")
_LEFT_OUT: Final = "leave it out"
# What is made of the rest of the message, or by servers on the way, with the key that it is made of.
_RESERVED: Final[Mapping[str, str]] = {
    **{name: f"use the key `{name}`" for name in ("from", "to", "cc", "bcc", "subject")},
    **dict.fromkeys(
        ("date", "message-id", "mime-version", "return-path", "received", "sender", "dkim-signature"), _LEFT_OUT
    ),
}
_RESERVED_PREFIXES: Final = ("content-", "resent-", "arc-")


def _line(text: str) -> str:
    check_line(text, MAX_LINE)
    return text


def _body(text: str) -> str:
    if _UNPRINTABLE.search(text):
        raise ValueError("has a character that no text has, such as NUL; remove it")
    return text


def _address(written: str) -> str:
    parse_address(written)
    return written


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty; name the file")
    check_line(text, MAX_NAME)
    return text


def _content_type(text: str) -> str:
    found = _CONTENT_TYPE.fullmatch(text.lower())
    if found is None:
        raise ValueError("is no content type; write one as application/pdf or text/csv; charset=utf-8")
    if found["main"] in ("multipart", "message"):
        raise ValueError(f"cannot be {found['main']}/...; attach it as application/octet-stream")
    return text.lower()


def _base64(text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("is not base64; encode the file's bytes by the standard alphabet, without line breaks") from None
    return text


Line: TypeAlias = Annotated[StrictStr, AfterValidator(_line)]
Body: TypeAlias = Annotated[StrictStr, AfterValidator(_body)]
Written: TypeAlias = Annotated[StrictStr, AfterValidator(_address)]


class _Given(BaseModel):
    """No other keys than its own, and no value ever repeated in an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, populate_by_name=True)


class Attachment(_Given):
    """A file that goes with a message; `content` is its bytes in base64."""

    name: Annotated[StrictStr, AfterValidator(_name)]
    content_type: Annotated[StrictStr, AfterValidator(_content_type)] = "application/octet-stream"
    content: Annotated[StrictStr, AfterValidator(_base64)] = Field(repr=False)

    @classmethod
    def of(cls, name: str, content: bytes, content_type: str = "application/octet-stream") -> "Attachment":
        """One of bytes."""
        return cls(name=name, content=base64.b64encode(content).decode(), content_type=content_type)

    @property
    def data(self) -> bytes:
        return base64.b64decode(self.content)

    @property
    def kind(self) -> tuple[str, str, str | None]:
        """Main type, subtype, charset."""
        found = _CONTENT_TYPE.fullmatch(self.content_type)
        assert found is not None, "checked when it was made"
        return found["main"], found["sub"], found["charset"]


class Email(_Given):
    """A message. `sender` is `from` in JSON, and the service's own if it is left out; addresses may have names.

    There is at least one recipient, and a subject, a body or an attachment.
    """

    sender: Written | None = Field(default=None, validation_alias="from", serialization_alias="from")
    to: tuple[Written, ...] = ()
    cc: tuple[Written, ...] = ()
    bcc: tuple[Written, ...] = ()
    subject: Line = ""
    text: Body | None = Field(default=None, repr=False)
    html: Body | None = Field(default=None, repr=False)
    attachments: tuple[Attachment, ...] = ()
    headers: dict[StrictStr, Line] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        for fault in _faults(self):
            raise ValueError(fault)
        return self

    @property
    def recipients(self) -> tuple[Address, ...]:
        """Everybody it goes to, once each, in order; the case of letters counts before the @ only."""
        found: dict[tuple[str, str], Address] = {}
        for one in map(parse_address, (*self.to, *self.cc, *self.bcc)):
            found.setdefault((one.address.rpartition("@")[0], one.domain.lower()), one)
        return tuple(found.values())

    @property
    def text_bytes(self) -> int:
        return len((self.text or "").encode()) + len((self.html or "").encode())

    @property
    def bytes(self) -> int:
        """How much there is to send, before it is encoded."""
        return self.text_bytes + sum(len(one.content) * 3 // 4 for one in self.attachments)

    def plain(self) -> dict[str, Any]:
        """As JSON has it, without what was left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _faults(email: Email) -> Iterable[str]:
    count = len(email.to) + len(email.cc) + len(email.bcc)
    if count == 0:
        yield "to: is empty, and so are cc and bcc; name at least one recipient"
    if count > MAX_RECIPIENTS:
        yield f"to: there are {count} recipients with cc and bcc, and at most {MAX_RECIPIENTS} are sent; send several"
    if not (email.subject.strip() or (email.text or "").strip() or (email.html or "").strip() or email.attachments):
        yield "subject: is empty, and there is no text, html or attachment either; give at least one of them"
    if len(email.attachments) > MAX_ATTACHMENTS:
        yield f"attachments: there are {len(email.attachments)}, and at most {MAX_ATTACHMENTS} go in one message"
    if len(email.headers) > MAX_HEADERS:
        yield f"headers: there are {len(email.headers)}, and at most {MAX_HEADERS} go in one message"
    yield from _header_faults(email.headers)
    if email.text_bytes > MAX_TEXT:
        yield f"text: has {email.text_bytes:,} bytes with html, and at most {MAX_TEXT:,} are sent; attach what is longer"
    if (attached := email.bytes - email.text_bytes) > MAX_BYTES:
        yield f"attachments: have {attached:,} bytes in all, and at most {MAX_BYTES:,} are sent; link to large files"


def _header_faults(headers: Mapping[str, str]) -> Iterable[str]:
    seen: set[str] = set()
    for name in headers:
        lower = name.lower()
        if not _HEADER_NAME.fullmatch(name):
            yield "headers: has a name that is none; names are of visible ASCII characters without a colon, at most 76"
        elif lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES):
            yield f"headers.{name}: is made when the message is sent; {_RESERVED.get(lower, _LEFT_OUT)}"
        elif lower in seen:
            yield f"headers.{name}: is there twice, in other letters; give it once"
        seen.add(lower)
