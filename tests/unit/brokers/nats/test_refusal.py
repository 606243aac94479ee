import pytest

from headwater.brokers.nats import NatsAccess
from headwater.brokers.nats.refusal import translated

WHERE = "host:4222"


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({}, "give user and password"),
        ({"user": "me", "password": "hidden"}, "check user and password"),
        ({"token": "hidden"}, "check the token"),
        ({"nkey_file": "/keys/me.nk"}, "public key of the seed in /keys/me.nk"),
        ({"creds_file": "/keys/me.creds"}, "credentials in /keys/me.creds"),
    ],
)
def test_refused_credentials_say_what_to_check_and_not_what_was_sent(given, advice):
    error = translated(b"'Authorization Violation'", NatsAccess(url="nats://host", **given), WHERE)
    assert advice in str(error)
    assert "Authorization Violation" in str(error)
    assert "hidden" not in str(error)
    assert not error.retryable


def test_credentials_of_the_url_are_told_apart_too():
    assert "check the token" in str(translated(b"'Authorization Violation'", NatsAccess(url="nats://hidden@host"), WHERE))
    assert "check user" in str(translated(b"'Authorization Violation'", NatsAccess(url="nats://a:hidden@host"), WHERE))


@pytest.mark.parametrize(("words", "kind"), [("Publish", "publish to 'a.b'"), ("Subscription", "subscribe to 'a.b'")])
def test_a_permission_that_is_missing_names_the_subject(words, kind):
    error = translated(f"'Permissions Violation for {words} to \"a.b\"'".encode(), NatsAccess(url="nats://host"), WHERE)
    assert kind in str(error)
    assert not error.retryable


@pytest.mark.parametrize("words", ["Stale Connection", "maximum connections exceeded", "Slow Consumer"])
def test_what_passes_is_worth_another_try(words):
    assert translated(f"'{words}'".encode(), NatsAccess(url="nats://host"), WHERE).retryable


def test_other_words_are_passed_on():
    error = translated(b"'Unknown Protocol Operation'", NatsAccess(url="nats://host"), WHERE)
    assert "Unknown Protocol Operation" in str(error)
    assert not error.retryable
