"""Dates and times as numbers, over more years than Python's own types have."""

from datetime import UTC, date, datetime, time, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import DecodeError
from headwater.postgres.types.instants import (
    DAY_MICROSECONDS,
    days_of_date,
    microseconds_of_time,
    microseconds_of_timestamp,
    microseconds_of_timestamptz,
)

EPOCH = datetime(1970, 1, 1)
# The Gregorian calendar repeats itself after so many days.
DAYS_OF_400_YEARS = 146_097


@given(st.dates())
def test_date_is_the_days_since_1970(value):
    assert days_of_date(value.isoformat()) == (value - EPOCH.date()).days


@given(st.dates(), st.integers(1, 14_000))
def test_dates_beyond_pythons_are_whole_cycles_away(value, cycles):
    text = f"{value.year + 400 * cycles:04}{value.isoformat()[4:]}"
    assert days_of_date(text) == days_of_date(value.isoformat()) + cycles * DAYS_OF_400_YEARS


@given(st.dates(max_value=date(4713, 12, 31)))
def test_years_before_christ_count_backwards_without_a_year_0(value):
    # The year y BC is 1 - y; twelve cycles later it is one that Python has.
    later = 1 - value.year + 12 * 400
    try:
        expected = date(later, value.month, value.day)
    except ValueError:
        with pytest.raises(DecodeError):
            days_of_date(f"{value.isoformat()} BC")
    else:
        assert days_of_date(f"{value.isoformat()} BC") == (expected - EPOCH.date()).days - 12 * DAYS_OF_400_YEARS


@given(st.datetimes())
def test_timestamp_is_the_microseconds_since_1970(value):
    assert microseconds_of_timestamp(value.isoformat(" ")) == (value - EPOCH) // timedelta(microseconds=1)


@given(st.datetimes(), st.timedeltas(timedelta(hours=-15), timedelta(hours=15)))
def test_timestamptz_is_the_same_moment_in_any_offset(value, offset):
    local = value.replace(tzinfo=timezone(timedelta(seconds=int(offset.total_seconds()))))
    expected = (value - EPOCH - local.utcoffset()) // timedelta(microseconds=1)
    assert microseconds_of_timestamptz(local.isoformat(" ")) == expected


@given(st.times())
def test_time_is_the_microseconds_since_midnight(value):
    expected = (datetime.combine(EPOCH, value) - EPOCH) // timedelta(microseconds=1)
    assert microseconds_of_time(value.isoformat()) == expected


def test_the_end_of_the_day_is_not_its_beginning():
    assert (microseconds_of_time("00:00:00"), microseconds_of_time("24:00:00")) == (0, DAY_MICROSECONDS)


def test_fraction_and_offset_may_be_short():
    moment = datetime(2026, 11, 15, 21, 36, 8, 120_000, UTC)
    expected = (moment - EPOCH.replace(tzinfo=UTC)) // timedelta(microseconds=1)
    assert microseconds_of_timestamptz("2026-11-15 21:36:08.12+00") == expected
    assert microseconds_of_timestamptz("2026-11-15 16:06:08.12-05:30") == expected


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((days_of_date, text) for text in ("", "x", "0000-01-01", "2026-13-01", "2026-00-01", "2026-02-29", "1900-02-29")),
        *((days_of_date, text) for text in ("2026-1-1", "2026-01-01BC", "infinity", "-2026-01-01", "٢٠٢٦-01-01")),
        *(
            (microseconds_of_time, text)
            for text in ("", "24:00:00.1", "24:00:01", "12:60:00", "12:00:60", "12:00", "1:00:00")
        ),
        *((microseconds_of_timestamp, text) for text in ("", "2026-01-01", "2026-01-01 00:00:00+00", "2026-01-01T00:00:00")),
        *((microseconds_of_timestamptz, text) for text in ("", "2026-01-01 00:00:00", "2026-01-01 00:00:00+0", "infinity")),
    ],
)
def test_malformed_text_is_a_decode_error(read, text):
    with pytest.raises(DecodeError):
        read(text)


def test_midnight_is_the_first_time():
    assert microseconds_of_time(time.min.isoformat()) == 0
