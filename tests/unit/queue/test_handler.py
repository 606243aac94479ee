"""Handlers, and jobs that come by the clock."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import JobError
from headwater.queue import FullJitter, NewJob, Worker
from headwater.queue.handler import make_handler, make_periodic

EXPRESSIONS = ["* * * * *", "*/5 * * * *", "30 2 * * *", "0 0 * * 1", "15 14 1 * *", "0 3 29 2 *", "0 1-3 * * *"]
ZONES = ["UTC", "Europe/Oslo", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]
# When clocks are changed in some of them.
CHANGES = [
    datetime(2025, 3, 30, 1, tzinfo=UTC),
    datetime(2025, 10, 26, 1, tzinfo=UTC),
    datetime(2025, 3, 9, 7, tzinfo=UTC),
    datetime(2025, 11, 2, 6, tzinfo=UTC),
    datetime(2025, 4, 5, 15, tzinfo=UTC),
    datetime(2025, 10, 4, 15, 30, tzinfo=UTC),
]
TIMES = st.datetimes(datetime(2024, 1, 1), datetime(2028, 1, 1)).map(lambda time: time.replace(tzinfo=UTC)) | st.builds(
    lambda change, offset: change + offset,
    st.sampled_from(CHANGES),
    st.timedeltas(-timedelta(hours=3), timedelta(hours=3)) | st.integers(-180, 180).map(lambda n: timedelta(minutes=n)),
)


async def function(job):
    pass


def periodic(expression, zone="UTC"):
    return make_periodic(expression, NewJob("send", {"n": 1}), zone, None)


def test_a_handler_has_what_it_was_given():
    policy = FullJitter(most=2)
    handler = make_handler("send", function, "5s", policy)
    assert (handler.kind, handler.timeout, handler.retry) == ("send", timedelta(seconds=5), policy)
    assert make_handler("send", function, "5s", None).retry == FullJitter()


@given(TIMES, st.sampled_from(EXPRESSIONS), st.sampled_from(ZONES))
def test_the_last_time_is_not_after_and_the_next_one_is(now, expression, zone):
    one = periodic(expression, zone)
    last, following = one.last(now), one.next(now)
    assert last <= now < following
    # In between there is none.
    assert one.next(last) == following


@pytest.mark.parametrize("second", [0, 30, 59])
def test_a_time_is_its_own_last_one(second):
    now = datetime(2026, 3, 1, 12, 0, second, tzinfo=UTC)
    assert periodic("* * * * *").last(now) == now.replace(second=0)


def test_times_are_those_of_the_zone():
    now = datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert periodic("0 9 * * *", "Asia/Tokyo").next(now) == datetime(2026, 7, 2, 0, tzinfo=UTC)
    assert periodic("0 9 * * *", "Europe/Oslo").next(now) == datetime(2026, 7, 2, 7, tzinfo=UTC)


def test_a_name_tells_what_when_and_where():
    assert periodic("0 9 * * *", "Asia/Tokyo").name == "default/send/0 9 * * */Asia/Tokyo"
    assert make_periodic("0 9 * * *", NewJob("send"), "UTC", "mine").name == "mine"
    assert periodic("0 9 * * *").payload == '{"n":1}'
    assert periodic("0 9 * * *").zone == ZoneInfo("UTC")


@pytest.mark.parametrize(
    "expression", ["", "* * * *", "99 * * * *", "0 0 31 2 *", "0 0 30 2 *", "@daily", None, 5, "a b c d e"]
)
def test_what_is_no_expression_or_never_comes_is_refused(expression):
    with pytest.raises(JobError, match="is no cron expression"):
        periodic(expression)


@pytest.mark.parametrize("zone", ["Nowhere", "", None, "/etc/passwd", "..", "Europe"])
def test_what_is_no_zone_is_refused(zone):
    with pytest.raises(JobError, match="is no time zone"):
        periodic("* * * * *", zone)


def test_a_handler_without_its_kind_is_refused_where_it_stands():
    async def lost(job):
        pass

    with pytest.raises(JobError, match=r'write @worker.handler\("send-invoice"\) above it'):
        Worker().handler(lost)  # type: ignore[arg-type]  # no kind, which is refused


@pytest.mark.parametrize("retry", [5, "3", FullJitter])
def test_what_is_no_policy_is_refused(retry):
    async def handle(job):
        pass

    with pytest.raises(JobError, match="give a policy, such as FullJitter"):
        Worker().handler("send", retry=retry)(handle)
