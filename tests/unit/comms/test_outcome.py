"""What is said of an attempt: in one line, within bounds, and without secrets."""

from datetime import UTC, datetime, timedelta

import pytest

from headwater.comms.http_api import retry_after
from headwater.comms.outcome import Refused, Verdict, cut, judge

NOW = datetime(2026, 11, 17, 2, 0, tzinfo=UTC)


def test_a_long_answer_is_cut_to_a_line():
    said = cut("first\r\nsecond\0" + "x" * 2000)
    assert said.startswith("first secondxxx") and said.endswith("...") and len(said) == 1000


def test_secrets_are_covered():
    assert cut("535 shop/hidden refused", ("hidden", "")) == "535 shop/*** refused"


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [([], Verdict.SENT), ([450], Verdict.TRANSIENT), ([550], Verdict.PERMANENT), ([550, 450], Verdict.TRANSIENT)],
)
def test_it_is_for_good_when_nobody_is_left_who_may_get_it(codes, verdict):
    refused = tuple(Refused(f"a{code}@example.com", code, "no") for code in codes)
    assert judge(("zoe@example.com",), refused, 250, "OK").verdict is verdict


@pytest.mark.parametrize(
    ("header", "wait"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("0", timedelta(0)),
        (" 17 ", timedelta(seconds=17)),
        ("9" * 50, timedelta(days=1)),
        ("Tue, 17 Nov 2026 02:01:00 GMT", timedelta(minutes=1)),
        ("Tue, 17 Nov 2026 01:00:00 GMT", timedelta(0)),
        ("Tue, 17 Nov 2099 01:00:00 GMT", timedelta(days=1)),
    ],
)
def test_the_time_to_wait_is_read_in_both_forms(header, wait):
    assert retry_after(header, NOW) == wait
