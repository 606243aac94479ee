import pickle
import subprocess
import sys
from datetime import timedelta

import pytest

from headwater.brokers.kafka import KafkaAccess, KafkaBroker
from headwater.brokers.kafka.access import RESERVED
from headwater.errors import SettingsError

SECRETS = {"sasl.username": "relay", "sasl.password": "hidden", "ssl.key.pem": "hidden too"}


def test_the_servers_are_described_and_no_secret_is_shown():
    access = KafkaAccess(bootstrap_servers="one:9092,two:9092", settings=SECRETS)
    assert access.describe() == "one:9092,two:9092"
    assert "hidden" not in repr(access) + access.describe()


def test_words_of_the_client_are_passed_on_without_secrets():
    access = KafkaAccess(bootstrap_servers="one:9092", settings=SECRETS)
    assert access.without_secrets("relay with hidden too, or hidden") == "relay with ***, or ***"


@pytest.mark.parametrize("servers", ["one", "one:9092, two:9093", "10.0.0.1:9092", "[::1]:9092"])
def test_servers_are_named_by_host_and_port(servers):
    assert KafkaAccess(bootstrap_servers=servers).describe() == servers


def test_an_access_travels_to_another_process():
    access = KafkaAccess(bootstrap_servers="one:9092", settings=SECRETS, timeout=timedelta(seconds=3))
    assert pickle.loads(pickle.dumps(access)) == access


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bootstrap_servers": ""}, "name no server"),
        ({"bootstrap_servers": "one:9092,,"}, "name no server"),
        ({"bootstrap_servers": "me:hidden@one:9092"}, "hold no credentials"),
        ({"bootstrap_servers": "kafka://one:9092"}, "write host:9092"),
        ({"bootstrap_servers": "one:9092/orders"}, "addresses and nothing else"),
        ({"bootstrap_servers": "one:9092?sslmode=require"}, "security.protocol and the like in the settings"),
        ({"bootstrap_servers": "one:port"}, "addresses and nothing else"),
        ({"topic": "{tenant}"}, "names {tenant}"),
        ({"topic": ""}, "is empty"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"source": ""}, "source"),
        *(({"settings": {name: "hidden"}}, f"the setting {name}") for name in sorted(RESERVED)),
    ],
)
def test_settings_that_cannot_be_are_refused_without_secrets(given, message):
    with pytest.raises(SettingsError, match=message) as refusal:
        KafkaAccess(**{"bootstrap_servers": "one:9092", **given})
    assert "hidden" not in str(refusal.value)


def test_without_the_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(SettingsError, match=r"install headwater\[kafka\]"):
        KafkaBroker(KafkaAccess(bootstrap_servers="one:9092"))


def test_settings_are_read_without_the_client():
    code = "import sys; import headwater.brokers.kafka; assert 'confluent_kafka' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
