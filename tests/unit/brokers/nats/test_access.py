import pickle
from datetime import timedelta

import pytest

from headwater.brokers.nats import NatsAccess
from headwater.errors import SettingsError


def test_several_urls_are_taken_apart_in_their_order():
    access = NatsAccess(url="nats://one:4223, tls://two,three:1,nats://[::1]:5")
    assert [(server.address, server.is_tls) for server in access.servers] == [
        ("one:4223", False),
        ("two:4222", True),
        ("three:1", False),
        ("[::1]:5", False),
    ]
    assert access.describe() == "one:4223, two:4222, three:1, [::1]:5"


def test_user_and_password_of_a_url_are_decoded():
    (server,) = NatsAccess(url="nats://us%40er:p%2Fw%3A@host").servers
    assert (server.user, server.password, server.token, server.host) == ("us@er", "p/w:", None, "host")


def test_a_name_without_password_in_a_url_is_a_token():
    (server,) = NatsAccess(url="nats://s3cret@host").servers
    assert (server.user, server.password, server.token) == (None, None, "s3cret")


def test_no_secret_is_shown():
    access = NatsAccess(url="nats://me:hidden1@host", user="me", password="hidden2")
    shown = repr(access) + access.describe() + repr(access.servers)
    assert "hidden" not in shown
    assert "hidden" not in repr(NatsAccess(url="nats://host", token="hidden"))


def test_an_access_travels_to_another_process():
    access = NatsAccess(url="nats://me:secret@host", timeout=timedelta(seconds=3))
    assert pickle.loads(pickle.dumps(access)) == access


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": " , "}, "names no server"),
        ({"url": "http://host"}, "nats://host:4222"),
        ({"url": "nats://"}, "nats://host:4222"),
        ({"url": "nats://me:hidden@host:port"}, "no number"),
        ({"url": "nats://hidden?@host"}, "%3F"),
        ({"url": "nats://host", "user": "a", "token": "b"}, "one of user, token"),
        ({"url": "nats://host", "password": "b"}, "needs a user"),
        ({"url": "nats://host", "tls_cert": "c.pem"}, "go together"),
        ({"url": "nats://host", "timeout": timedelta(0)}, "timeout"),
        ({"url": "nats://host", "max_pending": 0}, "max_pending"),
    ],
)
def test_settings_that_cannot_be_are_refused_without_secrets(given, message):
    with pytest.raises(SettingsError, match=message) as refusal:
        NatsAccess(**given)
    assert "hidden" not in str(refusal.value)


def test_tls_files_that_are_missing_are_named():
    with pytest.raises(SettingsError, match=r"cannot use the TLS files for NATS \(/nowhere/ca\.pem\)"):
        NatsAccess(url="nats://host", tls_ca="/nowhere/ca.pem").tls_context()
