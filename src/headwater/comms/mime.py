"""A message in the form that mail servers take (RFC 5322, MIME), the same at every attempt but for its boundaries. Pure."""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final

from headwater.comms.address import Address, parse_address
from headwater.comms.message import Email

# ASCII only, so that every server takes it. Lines are as long as they may be: Python encodes words that are longer than a
# line, such as the address in a List-Unsubscribe, which nobody could follow then.
_POLICY: Final = SMTP.clone(cte_type="7bit", max_line_length=998)


@dataclass(frozen=True, slots=True)
class Letter:
    """A message on its way: from whom, to those who do not have it yet, and the id that is the same at every attempt."""

    id: str
    email: Email
    sender: Address
    recipients: tuple[Address, ...]
    created_at: datetime

    @property
    def message_id(self) -> str:
        return f"<{self.id}>"

    def encode(self) -> bytes:
        """Those who get a blind copy are not named in it, and everybody else is, also those who have it already."""
        message, email = EmailMessage(policy=_POLICY), self.email
        message["Message-ID"] = self.message_id
        message["Date"] = self.created_at
        message["From"] = self.sender.header()
        for name, written in (("To", email.to), ("Cc", email.cc)):
            if written:
                message[name] = [parse_address(one).header() for one in written]
        message["Subject"] = email.subject
        for name, value in email.headers.items():
            message[name] = value
        _add_bodies(message, email)
        for attachment in email.attachments:
            main, sub, charset = attachment.kind
            parameters = {"charset": charset} if charset else {}
            message.add_attachment(attachment.data, main, sub, filename=attachment.name, params=parameters)
        return _checked(message, message.as_bytes())


def stable_id(job_id: int, created_at: datetime, domain: str) -> str:
    """The same at every attempt of a job, and another for every other job, also of another database."""
    digest = hashlib.sha256(f"{job_id} {created_at.timestamp():.6f}".encode()).hexdigest()[:16]
    return f"{job_id}.{digest}@{domain}"


def _checked(message: EmailMessage, encoded: bytes) -> bytes:
    """What nobody asked for must not be among the headers, whatever the library makes of odd values."""
    head = encoded.partition(b"\r\n\r\n")[0].decode("ascii", "replace")
    written = [line.partition(":")[0] for line in head.split("\r\n") if line[:1] not in (" ", "\t")]
    if written != list(message.keys()):
        raise ValueError("a header cannot be written without becoming another one; correct subject, names and headers")
    return encoded


def _add_bodies(message: EmailMessage, email: Email) -> None:
    if email.html is None:
        message.set_content(email.text or "")
    elif email.text is None:
        message.set_content(email.html, subtype="html")
    else:
        message.set_content(email.text)
        message.add_alternative(email.html, subtype="html")
