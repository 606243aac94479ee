import pytest

from headwater.brokers.kafka.access import KafkaAccess
from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.rabbitmq.access import RabbitmqAccess
from headwater.brokers.registry import NatsMessages, broker_from_url
from headwater.brokers.servicebus.access import ServiceBusAccess
from headwater.errors import SettingsError

CONNECTION_STRING = "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=send;SharedAccessKey=c2VjcmV0"


@pytest.mark.parametrize(
    ("text", "access"),
    [
        ("amqp://shop:hidden@host/orders", RabbitmqAccess(url="amqp://shop:hidden@host/orders")),
        ("amqps://host", RabbitmqAccess(url="amqps://host")),
        ("AMQP://host", RabbitmqAccess(url="AMQP://host")),
        ("nats://a:4222,nats://b:4222", NatsMessages(access=NatsAccess(url="nats://a:4222,nats://b:4222"))),
        ("tls://a", NatsMessages(access=NatsAccess(url="tls://a"))),
        ("kafka://a:9092,b:9092", KafkaAccess(bootstrap_servers="a:9092,b:9092")),
        ("kafka://a:9092/", KafkaAccess(bootstrap_servers="a:9092")),
        (f" {CONNECTION_STRING}\n", ServiceBusAccess(connection_string=f" {CONNECTION_STRING}\n")),
    ],
)
def test_a_url_or_connection_string_names_its_broker(text, access):
    assert broker_from_url(text) == access
    assert access.timeout.total_seconds() == 30
    assert access.describe()


@pytest.mark.parametrize("text", ["", "host:5672", "http://hidden@host", "sb://hidden", "redis://hidden"])
def test_what_names_no_broker_is_refused_without_repeating_it(text):
    with pytest.raises(SettingsError, match="no url that is known; write amqp://") as refusal:
        broker_from_url(text)
    assert "hidden" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("amqp://", "must look like amqp://"),
        ("kafka://", "name no server"),
        ("kafka://host:9092/orders", "as a url kafka://host:9092"),
        ("kafka://host:9092?sslmode=require", "give security.protocol and the like in the settings"),
        ("amqp://host/shop?sslmode=require", "has no parameters; write amqps:// for TLS"),
        ("nats://host:4222?sslmode=require", "has no parameters; write tls:// for TLS"),
        ("nats://host:4222/shop", "ends with the port"),
        ("kafka://user:hidden@host:9092", "hold no credentials"),
        ("Endpoint=sb://host/", "neither SharedAccessKeyName"),
        ("nats://", "NATS"),
    ],
)
def test_a_url_that_its_broker_cannot_use_is_refused_with_the_reason(text, reason):
    with pytest.raises(SettingsError, match=reason) as refusal:
        broker_from_url(text)
    assert "hidden" not in str(refusal.value)
