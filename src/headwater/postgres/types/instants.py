"""Dates and times of the server's ISO text as numbers, over the whole range that PostgreSQL has (4713 BC to 5874897 AD).

Days and microseconds count from 1970-01-01 (UTC for a timestamptz) in the proleptic Gregorian calendar, as PostgreSQL's and
Arrow's do. The infinities are no numbers: callers ask `INFINITE` first.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from headwater.postgres.types.malformed import malformed

# +1 and -1, for callers to turn into the extreme of their own storage.
INFINITE: Final[Mapping[str, int]] = MappingProxyType({"infinity": 1, "-infinity": -1})

DAY_MICROSECONDS: Final = 86_400_000_000

_DATE = r"([0-9]{4,7})-([0-9]{2})-([0-9]{2})"
_CLOCK = r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?"
_OFFSET = r"([+-])([0-9]{2})(?::([0-9]{2}))?(?::([0-9]{2}))?"

_DATE_TEXT = re.compile(rf"{_DATE}( BC)?")
_TIME_TEXT = re.compile(_CLOCK)
_TIMESTAMP_TEXT = re.compile(rf"{_DATE} {_CLOCK}( BC)?")
_TIMESTAMPTZ_TEXT = re.compile(rf"{_DATE} {_CLOCK}{_OFFSET}( BC)?")

_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def days_of_date(text: str) -> int:
    """Days of a finite date."""
    found = _DATE_TEXT.fullmatch(text)
    if found is None:
        raise malformed("date", text)
    year, month, day, era = found.groups()
    return _days(year, month, day, era, text)


def microseconds_of_time(text: str) -> int:
    """Microseconds since midnight; 24:00:00 is a time of its own."""
    found = _TIME_TEXT.fullmatch(text)
    if found is None:
        raise malformed("time", text)
    return _clock(*found.groups(), text=text)


def microseconds_of_timestamp(text: str) -> int:
    """Microseconds of a finite timestamp without time zone; they may be more than 64 bits hold."""
    found = _TIMESTAMP_TEXT.fullmatch(text)
    if found is None:
        raise malformed("timestamp", text)
    year, month, day, *clock, era = found.groups()
    return _days(year, month, day, era, text) * DAY_MICROSECONDS + _clock(*clock, text=text)


def microseconds_of_timestamptz(text: str) -> int:
    """Microseconds of a finite timestamp with time zone, whatever the offset it is written in."""
    found = _TIMESTAMPTZ_TEXT.fullmatch(text)
    if found is None:
        raise malformed("timestamptz", text)
    year, month, day, hour, minute, second, fraction, sign, hours, minutes, seconds, era = found.groups()
    ahead = (int(hours) * 3600 + int(minutes or 0) * 60 + int(seconds or 0)) * 1_000_000
    local = _days(year, month, day, era, text) * DAY_MICROSECONDS + _clock(hour, minute, second, fraction, text=text)
    return local + ahead if sign == "-" else local - ahead


def _days(year_text: str, month_text: str, day_text: str, era: str | None, text: str) -> int:
    # There is no year 0: 1 BC comes before 1 AD.
    year = 1 - int(year_text) if era else int(year_text)
    month, day = int(month_text), int(day_text)
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if int(year_text) == 0 or not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1] + (is_leap and month == 2):
        raise malformed("date", text)
    # Years that begin in March put the leap day last, so that the days before a month need no table.
    shifted = year - (month <= 2)
    leap_days = shifted // 4 - shifted // 100 + shifted // 400
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return shifted * 365 + leap_days + day_of_year - 719_468


def _clock(hour: str, minute: str, second: str, fraction: str | None, *, text: str) -> int:
    whole = (int(hour) * 60 + int(minute)) * 60 + int(second)
    microseconds = whole * 1_000_000 + int((fraction or "0").ljust(6, "0"))
    if int(minute) > 59 or int(second) > 59 or microseconds > DAY_MICROSECONDS:
        raise malformed("time", text)
    return microseconds
