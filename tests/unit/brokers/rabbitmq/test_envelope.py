from datetime import UTC, datetime

import pyarrow as pa
import pytest

from headwater.brokers.columns import FEW
from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.brokers.rabbitmq.envelope import envelop, too_large
from headwater.model import Messages
from tests.conformance.broker_contract import message, messages

ACCESS = RabbitmqAccess(url="amqp://host")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"topic": "ü" * 128}, "routing key of 256 bytes"),
        ({"id": "i" * 256}, "id of 256 bytes"),
        ({"type": "t" * 300}, "type of 300 bytes"),
        ({"content_type": "c" * 256}, "content type of 256 bytes"),
        ({"headers": {"a": "b", "n" * 256: ""}}, "name beyond AMQP's 255"),
        ({"headers": {"CC": "other"}}, "'CC' is a list of routing keys"),
        ({"headers": {"BCC": "other"}}, "'BCC' is a list of routing keys"),
        ({"headers": {"cloudEvents:id": "mine"}}, "attribute of the event"),
    ],
)
@pytest.mark.parametrize("others", [1, FEW])
def test_what_amqp_cannot_hold_is_refused_by_its_place(values, reason, others):
    rows = [message("q", headers={"x": "y"}), message("q") | values, *[message("q", headers={"x": "y"})] * others]
    refused = envelop(messages(*rows), ACCESS).refused
    assert list(refused) == [1]
    assert reason in refused[1]


def test_what_just_fits_is_not_refused():
    row = message("q" * 255, id="i" * 255, type="t" * 255, content_type="c" * 255, headers={"n" * 255: "v" * 10_000})
    assert envelop(messages(row), ACCESS).refused == {}


def test_routing_keys_are_made_of_topic_and_type():
    access = RabbitmqAccess(url="amqp://host", exchange="x", routing_key="shop.{topic}.{type}")
    envelopes = envelop(messages(message("orders"), message("users", type="Gone")), access)
    assert envelopes.outgoing.keys.to_pylist() == ["shop.orders.OrderPlaced", "shop.users.Gone"]


def test_payloads_and_headers_beyond_the_limits_are_told_with_their_sizes():
    rows = [message("q", b"x" * 100), message("q", b"x" * 101), message("q", headers={"large": "v" * 5000})]
    found = too_large(envelop(messages(*rows), ACCESS).outgoing, 100, 4096)
    assert list(found) == [2, 1]
    assert found[1] == "a payload of 101 bytes is more than RabbitMQ's limit of 100"
    assert "more than a frame of 4096 bytes" in found[2]


@pytest.mark.parametrize("count", [1, FEW + 1])
def test_a_time_before_1970_is_none_that_amqp_can_hold(count):
    row = message("q", created_at=datetime(1960, 1, 1, tzinfo=UTC))
    properties = envelop(messages(*[row] * count), ACCESS).outgoing.properties.to_pylist()[-1]
    assert b"1960-01-01T00:00:00.000000Z" in properties
    assert properties.endswith(bytes(8) + b"\x0bOrderPlaced")


def test_a_time_beyond_python_s_calendar_is_written_all_the_same():
    far = pa.array([400_000_000_000_000_000], pa.timestamp("us", "UTC"))
    made = messages(message("q")).rows
    rows = Messages(made.set_column(made.schema.get_field_index("created_at"), made.schema.field("created_at"), far))
    (properties,) = envelop(rows, ACCESS).outgoing.properties.to_pylist()
    assert b"14645-06-30T15:06:40.000000Z" in properties
