"""E-mail addresses as people write them, `zoe@example.com` or `Zoë <zoe@example.com>`: taken apart and checked. Pure.

The rules are stricter than those of RFC 5322, so that nothing can be read in two ways: no comments, no quoted part before
the @, no address literals, and no character that ends a line. Domains with other letters than ASCII are written as `xn--`.
"""

import re
from dataclasses import dataclass
from email.errors import MessageError
from email.headerregistry import Address as HeaderAddress
from email.policy import SMTP
from typing import Final

# RFC 5321, 4.5.3.1: octets before the @, and of the whole path without its brackets.
_MAX_LOCAL: Final = 64
_MAX_BYTES: Final = 254
# Long enough for any name of a person or a department with its address.
MAX_WRITTEN: Final = 1000

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LOCAL: Final = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_LABEL: Final = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)")
# Characters that the older rules for domains, which Python has, take for others: mail would go to another domain.
_AMBIGUOUS: Final = frozenset("ßς\u200c\u200d")
_SPECIAL: Final = re.compile(r"[\s<>()\[\],;:\"\\@]")
_BARE: Final = re.compile(rf"[^{_SPECIAL.pattern[1:]}+")
# Whatever ends a line for somebody, and everything else that is not to be seen.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
# A text that is encoded already (RFC 2047). What it stands for may have line breaks, which some releases of the standard
# library write out.
_ENCODED: Final = re.compile(r"=\?[^?\s]+\?[A-Za-z]\?")


@dataclass(frozen=True, slots=True)
class Address:
    """Whom to write to: `address` in ASCII, as servers take it, and the name that goes with it, or nothing."""

    address: str
    name: str = ""

    @property
    def domain(self) -> str:
        return self.address.rpartition("@")[2]

    def header(self) -> HeaderAddress:
        return HeaderAddress(self.name, addr_spec=self.address)


def check_line(text: str, most: int) -> None:
    """Raise ValueError for a text that has no place in a header: with a line break, also a hidden one, or too long."""
    if _CONTROL.search(text):
        raise ValueError("has a line break or another control character; write it in one line")
    if _ENCODED.search(text):
        raise ValueError("has an encoded word (=?...?=); write the text itself, it is encoded when it is sent")
    if len(text) > most:
        raise ValueError(f"has more than {most} characters; shorten it")


def parse_address(written: str) -> Address:
    """Raises ValueError, in a sentence without a subject, for what is no single address."""
    check_line(written, MAX_WRITTEN)
    name, local, domain = _parts(written.strip())
    _check_local(local)
    address = f"{local}@{_ascii(domain)}"
    if len(address) > _MAX_BYTES:
        raise ValueError(f"is longer than {_MAX_BYTES} bytes without its name; no server takes it")
    return Address(address, name)


def _parts(written: str) -> tuple[str, str, str]:
    """Name, part before the @, domain; those without a name, by far the most, need no parser."""
    local, at, domain = written.rpartition("@")
    if at and _BARE.fullmatch(local) and not _SPECIAL.search(domain):
        return "", local, domain
    if not written.endswith(">"):
        raise _no_address()
    try:
        header = SMTP.header_factory("to", written)
        found, groups = header.addresses, header.groups
    except (ValueError, IndexError, AttributeError, MessageError):
        # The parser of the standard library has no single error for what it cannot read.
        raise _no_address() from None
    if len(found) != 1 or groups[0].display_name is not None or _has_defects(header.defects):
        raise _no_address()
    return found[0].display_name, found[0].username, found[0].domain


def _has_defects(defects: tuple[Exception, ...]) -> bool:
    # That a name has a dot without quotes, as in `J. Doe <j@example.com>`, is obsolete and harmless; for the other there is
    # a sentence of its own.
    return any(type(one).__name__ not in ("ObsoleteHeaderDefect", "NonASCIILocalPartDefect") for one in defects)


def _no_address() -> ValueError:
    return ValueError("is no e-mail address; write one as zoe@example.com or Zoe <zoe@example.com>")


def _check_local(local: str) -> None:
    if not local.isascii():
        raise ValueError("has letters before the @ that are not ASCII; few servers take that, and this one sends none")
    if not _LOCAL.fullmatch(local):
        raise _no_address()
    if len(local) > _MAX_LOCAL:
        raise ValueError(f"has more than {_MAX_LOCAL} characters before the @; no server takes it")


def _ascii(domain: str) -> str:
    """The domain as DNS has it."""
    if _AMBIGUOUS & set(domain):
        raise ValueError("has a letter in its domain that is read in two ways; write the domain in its form with xn--")
    try:
        encoded = domain.encode("idna").decode() if not domain.isascii() else domain
    except UnicodeError:
        raise ValueError("has a domain that is none; correct it") from None
    labels = encoded.split(".")
    if len(labels) < 2:
        raise ValueError("has a domain without a dot; write it in full, as in example.com")
    if not all(_LABEL.fullmatch(label) for label in labels) or labels[-1].isdecimal():
        raise ValueError("has a domain that is none; correct it")
    return encoded
