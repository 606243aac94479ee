from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.brokers.columns import FEW
from headwater.brokers.nats.envelope import forbidden, header_lines, subject_problem
from tests.conformance.broker_contract import CREATED_AT_TEXT, message, messages

texts = st.text(max_size=40) | st.sampled_from(["a\r\nb: c\r\n\r\n", " x ", "%", "100%25", "\x00", "é", '"'])


def lines(row) -> list[tuple[str, str]]:
    """Those of one message; they are the same whether it is alone, or one of many."""
    (text,) = header_lines(messages(row), "urn:a b").to_pylist()
    assert header_lines(messages(*[row] * (FEW + 1)), "urn:a b").to_pylist() == [text] * (FEW + 1)
    assert text.endswith(b"\r\n")
    parts = text.decode("ascii").split("\r\n")[:-1]
    return [(name, value) for name, _, value in (part.partition(": ") for part in parts)]


@given(texts, texts, st.dictionaries(st.sampled_from(["a", "b", "traceparent"]), texts))
def test_whatever_values_hold_each_is_one_line_that_decodes_to_it(type_, key, headers):
    found = lines(message("t", id="1", type=type_, key=key, headers=headers))
    assert {name: unquote(value) for name, value in found} == {
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-source": "urn:a b",
        "ce-type": type_,
        "ce-time": CREATED_AT_TEXT,
        "ce-partitionkey": key,
        "ce-datacontenttype": "application/json",
        **headers,
    }
    # Blanks at the ends of a value are the reader's to drop.
    assert all(value == value.strip(" ") for _, value in found)


def test_ordinary_text_is_not_encoded():
    headers = {"note": 'as it "is", (with) marks: a/b; c=d', "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7-01"}
    assert dict(lines(message("t", headers=headers))).items() >= headers.items()


def test_a_message_without_key_has_no_line_for_it():
    assert "ce-partitionkey" not in dict(lines(message("t")))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"id": ""}, "Nats-Msg-Id"),
        ({"id": "a b"}, "Nats-Msg-Id"),
        ({"id": "a\r\nNats-Rollup: all"}, "Nats-Msg-Id"),
        ({"headers": {"a": "b", "": "c"}}, "cannot carry"),
        ({"headers": {"a:b": "c"}}, "cannot carry"),
        ({"headers": {"a\r\nb": "c"}}, "cannot carry"),
        ({"headers": {"größe": "c"}}, "cannot carry"),
        ({"headers": {"nats-expected-last-sequence": "1"}}, "order to the NATS server"),
        ({"headers": {"CE-Id": "1"}}, "attribute of the event"),
    ],
)
@pytest.mark.parametrize("others", [1, FEW])
def test_what_nats_cannot_carry_is_refused_by_its_place(values, reason, others):
    rows = [message("t", headers={"x": "y"}), message("t") | values, *[message("t", headers={"x": "y"})] * others]
    refused = forbidden(messages(*rows))
    assert list(refused) == [1]
    assert reason in refused[1]


@pytest.mark.parametrize(
    "subject", ["", "a b", "a\r\nPUB x 0", ".a", "a.", "a..b", "a.*", "a.>", "$JS.API.STREAM.DELETE.S", "a" * 3001, "a\0"]
)
def test_what_is_no_subject_to_publish_to_has_a_problem(subject):
    assert subject_problem(subject)


@pytest.mark.parametrize("subject", ["a", "orders.placed", "größe.ok", "a-b_c/d", "a*b", "a$"])
def test_a_subject_has_none(subject):
    assert subject_problem(subject) is None
