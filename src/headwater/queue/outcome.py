"""What a handler wants next, and what is written of it. Pure."""

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from headwater.errors import JobError
from headwater.model.amount import parse_duration

# Enough of an error for a person; the rest is in the log.
_ERROR_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class Done:
    """The job is finished; a handler that returns nothing says the same."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Try it again: after a time, such as `5s`, or by the handler's policy. It counts as an attempt all the same."""

    after: timedelta | str | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if self.after is not None:
            object.__setattr__(self, "after", as_duration(self.after, "after of Retry"))

    @property
    def wait(self) -> timedelta | None:
        assert not isinstance(self.after, str)
        return self.after


@dataclass(frozen=True, slots=True)
class Discard:
    """Trying again cannot help: the job is kept as one that failed, with the reason."""

    reason: str


Outcome: TypeAlias = Done | Retry | Discard


@dataclass(frozen=True, slots=True)
class Finished:
    """It is done, or was cancelled."""

    outcome: str = "done"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """It has failed for good."""

    error: str
    error_class: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """It comes again after a time; it `counts` as an attempt, unless that was not its own fault."""

    wait: timedelta
    error: str
    error_class: str
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Released:
    """It was not begun, and is free for others."""


Settlement: TypeAlias = Finished | GivenUp | Postponed | Released


def as_duration(value: timedelta | str, what: str) -> timedelta:
    """A duration that is not negative, from a timedelta or a text such as `5s`; raises JobError."""
    if isinstance(value, str):
        try:
            value = parse_duration(value)
        except ValueError as exc:
            raise JobError(f"{what} is {value!r}; it {exc}") from exc
    if not isinstance(value, timedelta) or value < timedelta(0):
        raise JobError(f"{what} is {value!r}; give a timedelta that is not negative, or a text such as '5s'")
    return value


def cut(text: str) -> str:
    """A text that PostgreSQL can hold, of moderate length."""
    clean = text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return clean if len(clean) <= _ERROR_CHARACTERS else clean[: _ERROR_CHARACTERS - 1] + "…"
