import pickle
import subprocess
import sys
from datetime import timedelta

import pytest

from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.errors import SettingsError

_WITHOUT_PIKA = """
import sys
sys.modules["pika"] = None
from headwater.brokers.rabbitmq import RabbitmqAccess, RabbitmqBroker
from headwater.errors import SettingsError
access = RabbitmqAccess(url="amqp://host")
try:
    RabbitmqBroker(access)
except SettingsError as error:
    print(error)
"""
_IMPORTED = "import sys, headwater.brokers.rabbitmq.access; print('pika' in sys.modules)"


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("url", "address", "is_tls", "virtual_host"),
    [
        ("amqp://host", "host:5672", False, "/"),
        ("amqp://host/", "host:5672", False, "/"),
        ("amqps://host/shop", "host:5671", True, "shop"),
        ("amqp://[::1]:5000/%2Fa", "[::1]:5000", False, "/a"),
    ],
)
def test_a_url_is_taken_apart(url, address, is_tls, virtual_host):
    server = RabbitmqAccess(url=url).server
    assert (server.address, server.is_tls, server.virtual_host) == (address, is_tls, virtual_host)
    assert (server.user, server.password) == ("guest", "guest")


def test_user_and_password_are_decoded():
    server = RabbitmqAccess(url="amqp://us%40er:p%2Fw%3A@host").server
    assert (server.user, server.password) == ("us@er", "p/w:")


def test_no_secret_is_shown():
    access = RabbitmqAccess(url="amqp://me:hidden@host")
    assert "hidden" not in repr(access) + access.describe() + repr(access.server)


def test_an_access_travels_to_another_process():
    access = RabbitmqAccess(url="amqp://me:secret@host", timeout=timedelta(seconds=3))
    assert pickle.loads(pickle.dumps(access)) == access


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": "http://me:hidden@host"}, "amqp://user:password@host"),
        ({"url": "amqp://"}, "amqp://user:password@host"),
        ({"url": "amqp://me:hidden@host:port"}, "no number"),
        ({"url": "amqp://me:hidden@host/a/b"}, "%2F"),
        ({"url": "amqp://me:hidden@host/?heartbeat=5"}, "settings of their own"),
        ({"routing_key": "{table}"}, "names {table}"),
        ({"exchange": "x" * 256}, "255 bytes"),
        ({"exchange": "x", "declare": True}, "without a name only"),
        ({"source": ""}, "source of CloudEvents"),
        ({"tls_cert": "c.pem"}, "go together"),
        ({"tls_ca": "ca.pem"}, "amqps://"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"heartbeat": timedelta(milliseconds=10)}, "heartbeat"),
        ({"max_pending": 0}, "max_pending"),
        ({"max_bytes": 0}, "max_bytes"),
    ],
)
def test_settings_that_cannot_be_are_refused_without_secrets(given, message):
    with pytest.raises(SettingsError, match=message) as refusal:
        RabbitmqAccess(**{"url": "amqp://host", **given})
    assert "hidden" not in str(refusal.value)


def test_files_of_tls_that_are_not_there_are_named():
    access = RabbitmqAccess(url="amqps://host", tls_ca="/nowhere/ca.pem")
    with pytest.raises(SettingsError, match=r"/nowhere/ca\.pem"):
        access.tls_context()


def test_settings_are_read_without_pika():
    assert printed(_IMPORTED) == "False\n"


def test_a_broker_without_pika_says_what_to_install():
    assert "run `pip install 'headwater[rabbitmq]'`" in printed(_WITHOUT_PIKA)
