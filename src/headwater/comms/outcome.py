"""What became of an attempt to send a message, and what every sender owes. Pure."""

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Final, Protocol

from headwater.comms.mime import Letter

# Enough to read the reason; servers may say any amount.
_MAX_RESPONSE: Final = 1000


class Verdict(StrEnum):
    """Everybody has it; somebody may get it yet, if it is tried again; or somebody never will."""

    SENT = "sent"
    TRANSIENT = "transient"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class Refused:
    """A recipient that a server did not take, with its answer."""

    address: str
    code: int
    response: str

    @property
    def is_permanent(self) -> bool:
        return self.code >= 500

    def __str__(self) -> str:
        return f"{self.address}: {self.code} {self.response}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The verdict, the server's code and words, who has the message now, and who was refused."""

    verdict: Verdict
    code: int | None = None
    response: str = ""
    accepted: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()
    retry_after: timedelta | None = None
    # It is the provider that is away, or takes nothing of us at the moment; so it would be for any other message.
    is_away: bool = False

    def __str__(self) -> str:
        return f"{self.code} {self.response}" if self.code else self.response


class Sender(Protocol):
    """Takes a message to a provider. `send` raises nothing but what is a fault of ours; it may be cancelled."""

    name: str

    async def send(self, letter: Letter) -> Outcome: ...

    async def close(self) -> None: ...


def transient(response: str, code: int | None = None, retry_after: timedelta | None = None) -> Outcome:
    return Outcome(verdict=Verdict.TRANSIENT, code=code, response=response, retry_after=retry_after)


def away(response: str, code: int | None = None, retry_after: timedelta | None = None) -> Outcome:
    return replace(transient(response, code, retry_after), is_away=True)


def permanent(response: str, code: int | None = None) -> Outcome:
    return Outcome(verdict=Verdict.PERMANENT, code=code, response=response)


def judge(accepted: tuple[str, ...], refused: tuple[Refused, ...], code: int | None, response: str) -> Outcome:
    """Of a message that some have and others do not: it is tried again for those who may get it yet."""
    made = Outcome(verdict=Verdict.SENT, code=code, response=response, accepted=accepted, refused=refused)
    if not refused:
        return made
    is_final = all(one.is_permanent for one in refused)
    said = "refused for " + ", ".join(map(str, refused))
    return replace(
        made,
        verdict=Verdict.PERMANENT if is_final else Verdict.TRANSIENT,
        code=refused[0].code,
        response=f"{said}; accepted for {', '.join(accepted)}" if accepted else said,
    )


def join_past(outcome: Outcome, refused: tuple[Refused, ...]) -> Outcome:
    """Of a message that was not offered to those who were refused for good before: they are named all the same."""
    if not refused:
        return outcome
    if outcome.verdict is Verdict.SENT or outcome.refused:
        return judge(outcome.accepted, (*outcome.refused, *refused), outcome.code, outcome.response)
    said = f"{outcome.response}; refused before for {', '.join(map(str, refused))}"
    return replace(outcome, refused=refused, response=said)


def cut(text: str, secrets: tuple[str, ...] = ()) -> str:
    """What a server said, in one line of bounded length, and without what we told it in confidence."""
    for secret in secrets:
        text = text.replace(secret, "***") if secret else text
    line = " ".join(text.replace("\x00", "").encode("utf-8", "replace").decode().split())
    return line if len(line) <= _MAX_RESPONSE else f"{line[: _MAX_RESPONSE - 3]}..."
