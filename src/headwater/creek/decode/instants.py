"""Days and microseconds since 1970 as PostgreSQL writes dates and times (ISO, UTC), over all that 64 bits hold."""

from datetime import date, datetime, timedelta
from typing import Final

DAY_MICROSECONDS: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
# From 0000-03-01, where years that begin in March have their leap day last.
_EPOCH_FROM_MARCH: Final = 719_468


def date_text(days: int) -> str:
    """A date; one before our era ends in BC."""
    text, era = _date(days)
    return text + era


def time_text(microseconds: int) -> str:
    """A time of the day, without zeros at its end; 24:00:00 is one too."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def timestamp_text(microseconds: int, zone: str = "") -> str:
    """A timestamp; `zone` is what stands behind the time."""
    try:
        usual = (_EPOCH + timedelta(0, 0, microseconds)).isoformat(" ")
        return (usual.rstrip("0") if "." in usual else usual) + zone
    except OverflowError:
        pass
    days, time = divmod(microseconds, DAY_MICROSECONDS)
    text, era = _date(days)
    return f"{text} {time_text(time)}{zone}{era}"


def timestamptz_text(microseconds: int) -> str:
    return timestamp_text(microseconds, "+00")


def _date(days: int) -> tuple[str, str]:
    try:
        return date.fromordinal(days + _EPOCH_ORDINAL).isoformat(), ""
    except (ValueError, OverflowError):
        year, month, day = _civil(days)
    # There is no year 0: 1 BC comes before 1 AD.
    return (f"{year:04d}-{month:02d}-{day:02d}", "") if year > 0 else (f"{1 - year:04d}-{month:02d}-{day:02d}", " BC")


def _civil(days: int) -> tuple[int, int, int]:
    """Year, month and day in the proleptic Gregorian calendar; year 0 is 1 BC."""
    era, day_of_era = divmod(days + _EPOCH_FROM_MARCH, 146_097)
    year_of_era = (day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month, rest = divmod(5 * day_of_year + 2, 153)
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    return era * 400 + year_of_era + (month <= 2), month, rest // 5 + 1
