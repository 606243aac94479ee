"""What a check found: how bad it is, on which object, and the remedy."""

from dataclasses import dataclass
from enum import StrEnum

from headwater.errors import HeadwaterError


class Level(StrEnum):
    """Whether a finding stands in the way (error), may cause trouble later (warning), or neither."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `remedy` is empty if there is nothing to do."""

    level: Level
    subject: str
    found: str
    remedy: str = ""


def ok(subject: str, found: str) -> Finding:
    return Finding(Level.OK, subject, found)


def warning(subject: str, found: str, remedy: str) -> Finding:
    return Finding(Level.WARNING, subject, found, remedy)


def error(subject: str, found: str, remedy: str) -> Finding:
    return Finding(Level.ERROR, subject, found, remedy)


def refused(subject: str, cause: HeadwaterError) -> Finding:
    """An error of ours as a finding: all our messages end with the remedy, after the last semicolon."""
    return refused_text(subject, str(cause))


def refused_text(subject: str, said: str) -> Finding:
    """The same for a message that was not raised."""
    found, _, remedy = said.rpartition("; ")
    return error(subject, found or remedy, remedy if found else "")
