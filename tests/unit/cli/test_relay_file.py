"""The file of `headwater outbox relay`: what it may say, and what is said of one that is wrong."""

import subprocess
import sys
from dataclasses import fields
from datetime import timedelta

import pytest

from headwater.brokers.kafka.access import KafkaAccess
from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.registry import NatsMessages
from headwater.brokers.servicebus.access import ServiceBusAccess
from headwater.cli.relay_file import RelaySection, load_relay
from headwater.errors import SettingsError
from headwater.outbox import RelaySettings

RABBITMQ = '[broker]\ntype = "rabbitmq"\nurl = "amqp://relay:${SECRET}@broker.example.com/shop"\n'
KAFKA = '[broker]\ntype = "kafka"\nbootstrap_servers = "a:9092"\n'
BUS = "Endpoint=sb://bus.example.com/;SharedAccessKeyName=relay;SharedAccessKey=c2VjcmV0"


def load(tmp_path, text, **environ):
    path = tmp_path / "relay.toml"
    path.write_text(text)
    return load_relay(path, {"SECRET": "hidden", **environ})


def refusal(tmp_path, text):
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text)
    assert "hidden" not in str(caught.value)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_a_file_needs_a_broker_and_nothing_else(tmp_path):
    found = load(tmp_path, RABBITMQ)
    assert isinstance(found.broker, RabbitmqAccess)
    assert (found.url, found.listen, found.settings) == ("", None, RelaySettings())
    assert "hidden" not in repr(found)


def test_without_a_database_in_the_file_it_is_that_of_the_environment(tmp_path):
    url = "postgresql://relay@db.example.com/shop"
    assert load(tmp_path, RABBITMQ, HEADWATER_URL=url).url == url
    named = load(tmp_path, f'url = "postgresql://other.example.com/shop"\n{RABBITMQ}', HEADWATER_URL=url)
    assert named.url == "postgresql://other.example.com/shop"


@pytest.mark.parametrize("value", ['order_by_key = "yes"', "order_by_key = 1", 'window = "500"', "window = true"])
def test_a_value_of_another_kind_is_not_taken_for_one(tmp_path, value):
    assert f"relay.{value.split()[0]}" in refusal(tmp_path, f"{RABBITMQ}[relay]\n{value}\n")


def test_every_setting_of_the_relay_can_be_written(tmp_path):
    assert list(RelaySection.model_fields) == [one.name for one in fields(RelaySettings)]
    text = f"""url = "postgresql://relay@db.example.com/shop"
listen = "127.0.0.1:9464"
{RABBITMQ}exchange = "events"
[relay]
window = 500
lease = "1m"
save_every = "20ms"
order_by_key = true
max_bytes = "256KiB"
retention = "30d"
"""
    found = load(tmp_path, text)
    assert found.settings == RelaySettings(
        window=500,
        lease=timedelta(minutes=1),
        save_every=timedelta(milliseconds=20),
        order_by_key=True,
        max_bytes=256 * 1024,
        retention=timedelta(days=30),
    )
    assert (found.listen, found.broker.exchange) == ("127.0.0.1:9464", "events")
    assert load(tmp_path, f'{RABBITMQ}[relay]\nretention = "never"\n').settings.retention is None


def test_all_four_brokers_are_described_as_the_sinks_of_a_pipeline_are(tmp_path):
    nats = load(tmp_path, '[broker]\ntype = "nats"\nurl = "nats://127.0.0.1"\nstream = "S"\ncreds_file = "a.creds"\n').broker
    assert isinstance(nats, NatsMessages)
    assert (nats.settings.stream, nats.access.creds_file) == ("S", str(tmp_path / "a.creds"))
    bus = load(tmp_path, f'[broker]\ntype = "servicebus"\nconnection_string = "{BUS}"\n').broker
    assert isinstance(bus, ServiceBusAccess)
    kafka = load(tmp_path, f'{KAFKA}settings."client.id" = "shop"\n').broker
    assert isinstance(kafka, KafkaAccess)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "relay.toml: broker: is missing"),
        ("[broker]\n", "relay.toml: broker.type: is missing; write one of nats, rabbitmq, servicebus, kafka"),
        ('[broker]\ntype = "mqtt"\n', "relay.toml: broker.type: must be one of nats, rabbitmq, servicebus, kafka"),
        (f'{RABBITMQ}exchnge = "x"\n', "relay.toml: broker.exchnge: there is no such key; did you mean `exchange`?"),
        (f'{RABBITMQ}namespace = "x"\n', "broker.namespace: there is no such key; there are type, name, url, exchange"),
        (f'{KAFKA}url = "x"\n', "broker.url: there is no such key for this type; there are type, name, bootstrap_servers"),
        (f"{RABBITMQ}window = 5\n", "relay.toml: broker.window: there is no such key here; it belongs to [relay]"),
        (f'{RABBITMQ}[relay]\nlisten = "x"\n', "relay.listen: there is no such key here; it belongs to the top of the file"),
        (f"{RABBITMQ}[relay]\nlease = 30\n", "relay.toml: relay.lease: must be a duration such as 500ms, 2s or 1m"),
        (f'{RABBITMQ}[relay]\nlease = "99999999999d"\n', "relay.toml: relay.lease: must be a shorter duration"),
        (
            f'{RABBITMQ}[relay]\nretention = "soon"\n',
            'relay.toml: relay.retention: must be a duration such as 500ms, 2s or 1m, or "never"',
        ),
        (f'{RABBITMQ}[relay]\nlease = "1s"\n', "relay.toml: relay: the lease of 1 s is too short for a confirm_timeout"),
        (f'{RABBITMQ}[relay]\nwindow = "many"\n', "relay.toml: relay.window: must be a whole number"),
        (f"{RABBITMQ}[relay]\nwindow = 0\n", "relay.toml: relay: window of the relay is 0"),
        (f'{RABBITMQ}[relay]\nrevive_every = "0s"\n', "relay.toml: relay: revive_every of the relay is 0 s"),
        (f'listen = "here"\n{RABBITMQ}', "relay.toml: listen: 'here' is no address to listen on"),
        (f'url = "postgresql://[::1"\n{RABBITMQ}', "relay.toml: url: "),
        ('[broker]\ntype = "rabbitmq"\nurl = "http://x"\n', "relay.toml: broker: "),
        ('[broker]\ntype = "rabbitmq"\nurl = "${NOT_SET}"\n', "broker.url: environment variable NOT_SET is not set"),
        (f'{RABBITMQ}[source]\ntype = "outbox"\n', "relay.toml: source: there is no such key; there are url, listen"),
        ("[broker\n", "relay.toml is not valid TOML"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, said):
    assert said in refusal(tmp_path, text)


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    said = refusal(tmp_path, f'listen = "here"\n{RABBITMQ}routing_key = "{{key}}"\n[relay]\nlanes = 0\n')
    assert said.startswith("relay.toml has 3 errors:\n")


def test_all_that_is_wrong_with_the_settings_of_the_relay_is_said_at_once(tmp_path):
    said = refusal(tmp_path, f'{RABBITMQ}[relay]\nwindow = 0\nclaim_rows = 0\nlease = "1s"\n')
    assert said.splitlines()[:3] == [
        "relay.toml has 3 errors:",
        "  relay: window of the relay is 0; give 1 or more",
        "  relay: claim_rows of the relay is 0; give 1 or more",
    ]
    assert "  relay: the lease of 1 s is too short" in said


def test_a_file_that_is_not_there_is_asked_for(tmp_path):
    with pytest.raises(SettingsError, match=r"does not exist; name the file of the relay"):
        load_relay(tmp_path / "none.toml", {})
    with pytest.raises(SettingsError, match="is a directory; name the file in it"):
        load_relay(tmp_path, {})


def test_nothing_of_spark_is_loaded_for_a_relay():
    program = "import sys, headwater.cli.outbox_relay; print([name for name in sys.modules if 'spark' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
