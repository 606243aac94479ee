"""Messages in the form that mail servers take."""

from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.policy import default

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from headwater.comms.mime import Letter, stable_id
from tests.support.queue.emails import AT, email, letter


def parsed(sent: Letter):
    return message_from_bytes(sent.encode(), policy=default)


def test_the_id_of_a_message_is_the_same_at_every_attempt_and_another_for_every_other_job():
    first = stable_id(7, AT, "example.com")
    assert first == stable_id(7, AT.astimezone(UTC), "example.com")
    others = [stable_id(8, AT, "example.com"), stable_id(7, AT + timedelta(microseconds=1), "example.com")]
    assert len({first, *others}) == 3
    assert first.startswith("7.") and first.endswith("@example.com")


def test_a_message_has_the_time_at_which_it_was_accepted():
    assert parsed(letter())["Date"].datetime == datetime(2026, 11, 17, 2, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("changes", "types"),
    [
        ({}, ["text/plain"]),
        ({"text": None}, ["text/plain"]),
        ({"text": None, "html": "<p>x</p>"}, ["text/html"]),
        ({"html": "<p>x</p>"}, ["multipart/alternative", "text/plain", "text/html"]),
        (
            {"html": "<p>x</p>", "attachments": [{"name": "a.bin", "content": ""}]},
            ["multipart/mixed", "multipart/alternative", "text/plain", "text/html", "application/octet-stream"],
        ),
    ],
)
def test_there_are_as_many_parts_as_are_needed(changes, types):
    assert [part.get_content_type() for part in parsed(letter(**changes)).walk()] == types


def test_who_has_it_already_is_still_named():
    whole = letter("zoe@example.com", "kim@example.com")
    rest = Letter(whole.id, whole.email, whole.sender, whole.recipients[1:], whole.created_at)
    assert parsed(rest)["To"] == "zoe@example.com, kim@example.com"


def test_long_words_in_headers_stay_as_they_are_and_no_line_is_too_long():
    link = f"<https://example.com/{'x' * 500}>"
    sent = letter(
        *(f"Somebody {n} <a{n}@example.com>" for n in range(90)), text="x" * 5000, headers={"List-Unsubscribe": link}
    )
    encoded = sent.encode()
    assert link.encode() in encoded
    assert max(map(len, encoded.split(b"\r\n"))) <= 998
    assert b"\n" not in encoded.replace(b"\r\n", b"")


def test_everything_is_ascii_on_the_way():
    sent = letter(
        "Zoë <zoe@example.com>", subject="Grüße", text="Grüße", html="Grüße", headers={"X-Ü".replace("Ü", "U"): "ü"}
    )
    assert sent.encode().isascii()
    assert (parsed(sent)["Subject"], parsed(sent)["X-U"]) == ("Grüße", "ü")


_ODD = st.text(alphabet=st.sampled_from('aB :;,=?"<>@()[]\\_é\u00a0\u3000\r\n\t\x0b\x85\u2028-'), max_size=40)


@given(subject=_ODD, value=_ODD, name=_ODD)
def test_nothing_that_is_accepted_becomes_a_header_of_its_own(subject, value, name):
    try:
        sent = letter(f'"{name}" <zoe@example.com>', subject=subject, headers={"X-A": value})
    except ValidationError:
        return
    head = sent.encode().partition(b"\r\n\r\n")[0].decode()
    names = [line.partition(":")[0] for line in head.split("\r\n") if line[0] not in " \t"]
    expected = ["Message-ID", "Date", "From", "To", "Subject", "X-A"]
    assert names[: len(expected)] == expected
    assert set(names[len(expected) :]) <= {"Content-Type", "Content-Transfer-Encoding", "MIME-Version"}


def test_a_header_that_would_become_another_one_is_not_written():
    # As if a message had come another way than through the checks.
    made = email().model_copy(update={"subject": "=?utf-8?q?a=0D=0ABcc:_x@example.com?="})
    whole = letter()
    sent = Letter(whole.id, made, whole.sender, whole.recipients, whole.created_at)
    try:
        encoded = sent.encode()
    except ValueError:
        return
    # Later releases of Python encode it again.
    assert b"\r\nBcc:" not in encoded
