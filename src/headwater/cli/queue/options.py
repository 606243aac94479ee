"""Options that several commands of `headwater queue` have, and what people write for them."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from headwater.cli.moment import parse_time
from headwater.errors import SettingsError
from headwater.model.amount import parse_duration

# The largest number that a job, or a limit, may have.
MOST_ID: Final = 2**63 - 1
MOST: Final = 2**31 - 1

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", show_default=False)]
OfQueue = Annotated[str | None, typer.Option("--queue", metavar="NAME", help="Only of this queue.", show_default="all")]
OfKind = Annotated[str | None, typer.Option("--kind", metavar="KIND", help="Only of this kind.", show_default="all")]
Ids = Annotated[
    list[int] | None,
    typer.Argument(metavar="ID...", min=1, max=MOST_ID, help="Jobs, by their ids.", show_default=False),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def parse_ago(option: str, text: str, now: datetime) -> datetime:
    """A time, or a duration before now."""
    age = _duration(text)
    return now - age if age is not None else _time(option, text, "an age such as 7d")


def parse_when(option: str, text: str) -> datetime:
    """A time, or a duration from now on."""
    wait = _duration(text)
    return datetime.now(UTC) + wait if wait is not None else _time(option, text, "a duration from now on such as 10m")


def parse_rate(option: str, text: str) -> tuple[int, timedelta]:
    """So many within a time, as `100/second` or `5/10s`."""
    number, slash, unit = text.partition("/")
    per = _duration(unit if unit[:1].isdigit() else f"1{unit}")
    if not slash or not number.isdecimal() or not 0 < int(number) <= MOST or not per:
        raise SettingsError(f"{option} must be a rate such as 100/second, 10/minute or 5/10s, not {text!r}")
    return int(number), per


def rate_text(rate: int, per: timedelta) -> str:
    """A rate as people write it."""
    for unit, length in (("day", timedelta(days=1)), ("hour", timedelta(hours=1)), ("minute", timedelta(minutes=1))):
        if per == length:
            return f"{rate:,}/{unit}"
    return f"{rate:,}/second" if per == timedelta(seconds=1) else f"{rate:,}/{per.total_seconds():g}s"


def moment(at: datetime | None) -> str:
    """A time for a table."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S%z}"


def seconds_text(seconds: float | None) -> str:
    """How long something waits, for a table."""
    return "" if seconds is None else f"{seconds:,.1f} s"


def _duration(text: str) -> timedelta | None:
    try:
        return parse_duration(text)
    except ValueError:
        return None


def _time(option: str, text: str, other: str) -> datetime:
    try:
        return parse_time(option, text)
    except SettingsError as exc:
        if "time zone" in str(exc):
            raise
        raise SettingsError(f"{option} must be a time such as 2026-11-16T10:00:00Z, or {other}, not {text!r}") from exc
