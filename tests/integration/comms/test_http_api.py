"""Sending by an HTTP API against a real one: what it is sent, and what its answers mean."""

from datetime import timedelta

import pytest

from headwater.comms.http_api import HttpSender
from headwater.comms.http_settings import HttpSettings
from headwater.comms.outcome import Verdict
from tests.support.queue.emails import letter
from tests.support.servers.mail_api import MailApi


@pytest.fixture
def api():
    with MailApi() as api:
        yield api


@pytest.fixture
async def sender_to():
    """Makes senders, and closes them."""
    made: list[HttpSender] = []

    def make(api, **changes):
        made.append(HttpSender(HttpSettings(**{"url": api.url, "timeout": timedelta(seconds=5), **changes})))
        return made[-1]

    yield make
    for sender in made:
        await sender.close()


async def test_a_message_is_posted_in_our_own_form_under_a_key_that_stays_the_same(api, sender_to):
    sender = sender_to(api, headers={"Authorization": "Bearer hidden-word"})
    sent = letter("Zoë <zoe@example.com>", cc=["kim@example.com"], headers={"X-Order": "17"})
    outcome = await sender.send(sent)
    await sender.send(sent)
    assert (outcome.verdict, outcome.code, outcome.response) == (Verdict.SENT, 200, '{"id": "provider-1"}')
    assert outcome.accepted == ("zoe@example.com", "kim@example.com")
    first, second = api.posted
    assert (first.method, first.path, first.headers["authorization"]) == ("POST", "/v1/mail", "Bearer hidden-word")
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"] == sent.id
    assert first.body == {
        "id": sent.id,
        "from": "shop@example.com",
        "to": ["Zoë <zoe@example.com>"],
        "cc": ["kim@example.com"],
        "subject": "Invoice 7",
        "text": "Pay, please.",
        "headers": {"X-Order": "17"},
    }
    assert api.connections == 1


async def test_a_form_of_ones_own_is_filled_in(api, sender_to):
    form = {
        "personalizations": [{"to": "{to:object}", "cc": "{cc:object}"}],
        "from": "{from:object}",
        "subject": "[shop] {subject}",
        "content": [{"type": "text/plain", "value": "{text}"}],
        "custom": {"key": "{message_id}", "test": True},
    }
    sent = letter("Zoe <zoe@example.com>", "kim@example.com")
    await sender_to(api, body=form, method="PUT").send(sent)
    assert api.posted[0].method == "PUT"
    assert api.posted[0].body == {
        "personalizations": [{"to": [{"email": "zoe@example.com", "name": "Zoe"}, {"email": "kim@example.com"}]}],
        "from": {"email": "shop@example.com"},
        "subject": "[shop] Invoice 7",
        "content": [{"type": "text/plain", "value": "Pay, please."}],
        "custom": {"key": sent.message_id, "test": True},
    }


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.SENT),
        (202, Verdict.SENT),
        (301, Verdict.TRANSIENT),
        (400, Verdict.PERMANENT),
        (401, Verdict.TRANSIENT),
        (403, Verdict.PERMANENT),
        (408, Verdict.TRANSIENT),
        (422, Verdict.PERMANENT),
        (425, Verdict.TRANSIENT),
        (429, Verdict.TRANSIENT),
        (500, Verdict.TRANSIENT),
        (503, Verdict.TRANSIENT),
    ],
)
async def test_what_is_wrong_with_the_message_is_for_good_and_everything_else_passes(api, sender_to, status, verdict):
    api.answers = [(status, {}, "so it is")]
    outcome = await sender_to(api).send(letter())
    assert (outcome.verdict, outcome.code, outcome.response) == (verdict, status, "so it is")
    assert bool(outcome.accepted) is (verdict is Verdict.SENT)
    assert outcome.is_away is (status in (401, 429, 503))


async def test_the_time_that_a_provider_asks_for_is_handed_on(api, sender_to):
    api.answers = [(429, {"Retry-After": "17"}, "slow down")]
    assert (await sender_to(api).send(letter())).retry_after == timedelta(seconds=17)


async def test_a_provider_that_hangs_up_or_gives_no_answer_passes(api, sender_to):
    api.answers = [None]
    assert (await sender_to(api).send(letter())).verdict is Verdict.TRANSIENT
    api.held.clear()
    outcome = await sender_to(api, timeout=timedelta(milliseconds=200)).send(letter())
    assert (outcome.verdict, "ReadTimeout" in outcome.response) == (Verdict.TRANSIENT, True)
    api.held.set()


async def test_no_secret_is_repeated(api, sender_to, caplog):
    api.answers = [(401, {}, "hidden-word is no key of ours"), None]
    sender = sender_to(api, url=f"{api.url}?key=hidden-key", headers={"Authorization": "Bearer hidden-word"})
    outcomes = [await sender.send(letter()), await sender.send(letter())]
    assert outcomes[0].response == "*** is no key of ours"
    assert "hidden" not in repr(outcomes) + caplog.text + sender.name + repr(sender._settings)
