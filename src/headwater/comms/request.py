"""The body of `POST /emails` as messages, or what is wrong with it. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import from_json

from headwater.comms.faults import Fault, faults_of
from headwater.comms.message import Email

_KEY: Final = re.compile(r"[!-~]{1,200}")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Nothing of a request was accepted: the status of the answer, and the reason; `faults` are those of messages."""

    status: int
    reason: str
    faults: tuple[Fault, ...] = ()
    count: int = 0


def read_request(body: bytes, default_sender: str | None, most: int) -> Sequence[Email] | Refusal:
    """The messages, all of which are right and say whom they are from."""
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as exc:
        return Refusal(400, f"the body is not JSON ({exc}); send a list of messages, or an object with `messages`")
    given = _listed(content)
    if isinstance(given, Refusal):
        return given
    if not given:
        return Refusal(422, "messages: the list is empty; send at least one")
    if len(given) > most:
        return Refusal(422, f"messages: there are {len(given)}, and at most {most} are taken at once; send several requests")
    return _checked(given, default_sender)


def key_fault(key: str) -> str | None:
    """What is wrong with an Idempotency-Key."""
    if _KEY.fullmatch(key):
        return None
    return "Idempotency-Key must have 1 to 200 visible ASCII characters; a UUID is a good one"


def _listed(content: Any) -> list[Any] | Refusal:
    shape = "send a list of messages, or an object with `messages`"
    if isinstance(content, list):
        return content
    if not isinstance(content, dict):
        return Refusal(422, f"the body is neither a list nor an object; {shape}")
    if not isinstance(content.get("messages"), list):
        return Refusal(422, f"messages: is missing, or no list; {shape}")
    if unknown := sorted(set(content) - {"messages"}):
        return Refusal(422, f"{unknown[0]}: there is no such key beside `messages`; put it into a message, or leave it out")
    return list(content["messages"])


def _checked(given: Sequence[Any], default_sender: str | None) -> Sequence[Email] | Refusal:
    emails: list[Email] = []
    faults: list[Fault] = []
    for place, one in enumerate(given):
        try:
            email = Email.model_validate(one)
        except ValidationError as exc:
            faults += faults_of(exc, place)
            continue
        if email.sender is None and default_sender is None:
            faults.append(Fault(place, "from", "is missing, and the service has none of its own; say whom it is from"))
        emails.append(email)
    return Refusal(422, "", tuple(faults), len(given)) if faults else emails
