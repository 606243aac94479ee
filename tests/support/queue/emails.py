"""Messages for tests, as they come and as they are sent."""

from datetime import UTC, datetime

from headwater.comms.address import parse_address
from headwater.comms.message import Email
from headwater.comms.mime import Letter, stable_id

AT = datetime(2026, 11, 17, 2, 0, tzinfo=UTC)


def email(*to: str, **changes) -> Email:
    given = {"from": "shop@example.com", "to": to or ("zoe@example.com",), "subject": "Invoice 7", "text": "Pay, please."}
    return Email.model_validate({**given, **changes})


def letter(*to: str, job_id: int = 7, **changes) -> Letter:
    made = email(*to, **changes)
    sender = parse_address(made.sender or "")
    return Letter(stable_id(job_id, AT, sender.domain), made, sender, made.recipients, AT)
