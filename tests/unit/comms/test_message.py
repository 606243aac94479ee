"""What a message may be: each fault in a sentence that names its place, and no way to smuggle in a header."""

import pytest
from pydantic import ValidationError

from headwater.comms.faults import faults_of, sentence
from headwater.comms.message import MAX_BYTES, MAX_TEXT, Attachment, Email
from headwater.comms.pack import contents_of, pack, unpack, wanted_of
from tests.support.queue.emails import email

WHOLE = {"from": "shop@example.com", "to": ["zoe@example.com"], "text": "x"}


def fault(**changes):
    """What is wrong, which is one thing."""
    with pytest.raises(ValidationError) as caught:
        Email.model_validate({**WHOLE, **changes})
    (found,) = faults_of(caught.value, 3)
    assert found.message == 3
    return f"{found.field}: {found.fault}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"to": []}, "to: is empty, and so are cc and bcc; name at least one recipient"),
        ({"to": "zoe@example.com"}, "to: must be a list"),
        ({"to": None}, "to: must be a list"),
        ({"to": [7]}, "to[0]: must be a string"),
        ({"to": ["zoe@example.com", "zoe"]}, "to[1]: is no e-mail address; write one as"),
        ({"cc": ["zoe@example.com\nBcc: x@example.com"]}, "cc[0]: has a line break"),
        ({"bcc": ["a@example.com"] * 100}, "to: there are 101 recipients with cc and bcc, and at most 100 are sent"),
        ({"from": "nobody"}, "from: is no e-mail address"),
        ({"text": None}, "subject: is empty, and there is no text, html or attachment either"),
        ({"text": "  \n"}, "subject: is empty, and there is no text, html or attachment either"),
        ({"text": 7}, "text: must be a string"),
        ({"text": "a\0b"}, "text: has a character that no text has"),
        ({"subject": "a\nb"}, "subject: has a line break"),
        ({"subject": "a\r\nBcc: x@example.com"}, "subject: has a line break"),
        ({"subject": "=?utf-8?q?a=0D=0ABcc:_x@example.com?="}, "subject: has an encoded word"),
        ({"subject": "x" * 2000}, "subject: has more than 1996 characters"),
        ({"headers": {"X-A": "a\nb"}}, "headers.X-A: has a line break"),
        ({"headers": {"X-A": "=?utf-8?b?DQpFdmlsOiAx?="}}, "headers.X-A: has an encoded word"),
        ({"headers": {"X-A": 1}}, "headers.X-A: must be a string"),
        ({"headers": {"X-A\nEvil": "1"}}, "headers: has a name that is none"),
        ({"headers": {"X A": "1"}}, "headers: has a name that is none"),
        ({"headers": {"X:A": "1"}}, "headers: has a name that is none"),
        ({"headers": {"": "1"}}, "headers: has a name that is none"),
        ({"headers": {"Bcc": "x@example.com"}}, "headers.Bcc: is made when the message is sent; use the key `bcc`"),
        ({"headers": {"Message-ID": "<x>"}}, "headers.Message-ID: is made when the message is sent; leave it out"),
        ({"headers": {"Content-Type": "x"}}, "headers.Content-Type: is made when the message is sent"),
        ({"headers": {"X-A": "1", "x-a": "2"}}, "headers.x-a: is there twice"),
        ({"headers": {f"X-{n}": "1" for n in range(51)}}, "headers: there are 51, and at most 50"),
        ({"headers": ["X"]}, "headers: must be an object of strings"),
        ({"attachments": [{"name": "a"}]}, "attachments[0].content: is missing"),
        ({"attachments": [{"name": "", "content": ""}]}, "attachments[0].name: is empty; name the file"),
        ({"attachments": [{"name": "a\nb", "content": ""}]}, "attachments[0].name: has a line break"),
        ({"attachments": [{"name": "a", "content": "%"}]}, "attachments[0].content: is not base64"),
        (
            {"attachments": [{"name": "a", "content": "", "content_type": "pdf"}]},
            "attachments[0].content_type: is no content",
        ),
        (
            {"attachments": [{"name": "a", "content": "", "content_type": "a/b\nEvil: 1"}]},
            "attachments[0].content_type: is no content type",
        ),
        (
            {"attachments": [{"name": "a", "content": "", "content_type": "message/rfc822"}]},
            "attachments[0].content_type: cannot be message/...",
        ),
        (
            {"attachments": [{"name": "a", "content": "", "mime": "x"}]},
            "attachments[0].mime: there is no such key; there are",
        ),
        ({"attachments": [{"name": "a", "content": ""}] * 51}, "attachments: there are 51, and at most 50"),
        ({"subjct": "x"}, "subjct: there is no such key; did you mean `subject`?"),
        ({"form": "x@example.com"}, "form: there is no such key; did you mean `from`?"),
        ({"priority": 1}, "priority: there is no such key; there are from, to, cc"),
        ({"sender_": 1}, "sender_: there is no such key"),
        ({"_request": "x"}, "_request: there is no such key"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(changes, said):
    assert fault(**changes).startswith(said)


def test_what_is_no_message_at_all_is_said():
    with pytest.raises(ValidationError) as caught:
        Email.model_validate("hello")
    assert sentence(caught.value) == "must be an object"


def test_too_much_is_said_with_the_limit():
    assert f"at most {MAX_TEXT:,} are sent" in fault(text="x" * (MAX_TEXT + 1))
    large = Attachment.of("a", bytes(MAX_BYTES // 2 + 1))
    assert f"at most {MAX_BYTES:,} are sent" in fault(attachments=[large, large])
    assert Email.model_validate({**WHOLE, "text": "x" * MAX_TEXT}).text_bytes == MAX_TEXT


def test_no_value_is_repeated_in_an_error():
    with pytest.raises(ValidationError) as caught:
        Email.model_validate({**WHOLE, "to": ["hidden"], "text": ["hidden"], "attachments": [{"name": "hidden\n"}]})
    assert "hidden" not in sentence(caught.value) + str(caught.value)


def test_somebody_who_is_named_twice_gets_it_once():
    made = email(
        "Zoe <zoe@example.com>", "zoe@EXAMPLE.com", cc=["zoe@example.com", "Zoe@example.com"], bcc=["kim@example.com"]
    )
    assert [one.address for one in made.recipients] == ["zoe@example.com", "Zoe@example.com", "kim@example.com"]


def test_a_message_in_python_is_the_same_as_one_of_json():
    made = Email(sender="shop@example.com", to=("zoe@example.com",), subject="Invoice 7", text="Pay, please.")
    assert made == email()
    assert Email.model_validate(made.plain()) == made


def test_a_message_and_what_is_attached_to_it_come_out_as_they_were_put_in():
    attached = [Attachment.of("a", b"hello", "text/plain"), Attachment.of("b", b"hello"), Attachment.of("c", b"other")]
    made = email(attachments=[one.model_dump() for one in attached])
    packed = pack(made)
    assert "content" not in str(packed.payload["attachments"]).replace("content_type", "")
    assert sorted(contents_of([packed, packed]).values()) == [b"hello", b"other"]
    assert sorted(set(wanted_of(packed.payload))) == sorted(packed.contents)
    assert unpack({**packed.payload, "_request": "x"}, packed.contents) == made


def test_what_is_attached_and_gone_is_named():
    packed = pack(email(attachments=[{"name": "a.pdf", "content": "aGVsbG8="}]))
    with pytest.raises(ValueError, match=r"attachment 'a.pdf' is not kept any more"):
        unpack(packed.payload, {})


@pytest.mark.parametrize("payload", [None, 7, "x", [], {"attachments": 7}, {"attachments": [7, {"sha256": 7}]}])
def test_a_payload_that_is_no_message_has_nothing_attached_and_is_refused(payload):
    assert wanted_of(payload) == []
    with pytest.raises(ValidationError):
        unpack(payload, {})
