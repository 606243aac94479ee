"""The JSON that an HTTP API is sent."""

import pytest

from headwater.comms.mime import Letter
from headwater.comms.template import FIELDS, default_body, fill, form_faults, values_of
from tests.support.queue.emails import letter


def test_every_field_that_may_be_named_has_a_value():
    assert sorted(values_of(letter())) == sorted(FIELDS)


def test_only_those_who_do_not_have_it_yet_are_named():
    whole = letter("zoe@example.com", "kim@example.com", cc=["ann@example.com"])
    rest = Letter(whole.id, whole.email, whole.sender, whole.recipients[1:2], whole.created_at)
    assert default_body(rest)["to"] == ["kim@example.com"]
    assert "cc" not in default_body(rest)


def test_what_is_empty_is_left_out_and_what_was_written_stays():
    values = values_of(letter())
    assert fill({"cc": "{cc}", "html": "{html}", "empty": "", "list": [], "inner": {"bcc": "{bcc}"}}, values) == {
        "empty": "",
        "list": [],
        "inner": {},
    }


def test_places_inside_of_a_text_are_filled_as_text():
    values = values_of(letter("zoe@example.com", "kim@example.com"))
    assert fill("{subject} for {to:email}{html}", values) == "Invoice 7 for zoe@example.com, kim@example.com"


def test_what_a_message_says_is_not_taken_for_a_form():
    values = values_of(letter(subject="{text}", text="{from}"))
    assert fill({"a": "{subject}", "b": "x{subject}"}, values) == {"a": "{text}", "b": "x{text}"}


@pytest.mark.parametrize("form", [{"a": "{too}"}, {"a": [{"b": "x {to:name}"}]}])
def test_a_place_that_no_message_has_is_named(form):
    (fault,) = form_faults(form)
    assert "which no message has; there are id, message_id" in fault
    assert form_faults({"a": "{to}", "b": 1, "c": [True, 1.5, "{ x }"]}) == []
