import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame
from pika.spec import Basic, BasicProperties

from headwater.brokers.base import cloud_event
from headwater.brokers.columns import FEW
from headwater.brokers.rabbitmq import RabbitmqAccess
from headwater.brokers.rabbitmq.envelope import envelop
from headwater.brokers.rabbitmq.frames import Outgoing, build_frames
from headwater.model import Messages
from tests.conformance.broker_contract import CREATED_AT, CREATED_AT_TEXT, message, messages

SOURCE = "urn:shop"
short = st.text(max_size=60)
rows = st.builds(
    lambda key, payload, headers, names: message(
        names[0], payload, id=names[1], type=names[2], content_type=names[3], key=key, headers=headers
    ),
    st.none() | st.text(max_size=300),
    st.binary(max_size=40) | st.integers(90, 400).map(lambda size: b"x" * size),
    st.none() | st.dictionaries(st.text(max_size=20), st.text(max_size=300), max_size=3),
    st.tuples(short, short, short, short),
)


def as_pika_writes(row, exchange: str, is_mandatory: bool, channel: int, frame_max: int) -> bytes:
    """What pika sends for `basic_publish`."""
    event = cloud_event(row["id"], SOURCE, row["type"], CREATED_AT_TEXT, row["key"])
    properties = BasicProperties(
        content_type=row["content_type"],
        headers={**{f"cloudEvents:{name}": value for name, value in event.items()}, **(row["headers"] or {})},
        delivery_mode=2,
        message_id=row["id"],
        timestamp=int(CREATED_AT.timestamp()),
        type=row["type"],
    )
    body, most = row["payload"], frame_max - 8
    frames = [
        frame.Method(channel, Basic.Publish(exchange=exchange, routing_key=row["topic"], mandatory=is_mandatory)),
        frame.Header(channel, len(body), properties),
        *(frame.Body(channel, body[start : start + most]) for start in range(0, len(body), most)),
    ]
    return b"".join(one.marshal() for one in frames)


# Few are built one by one, and many by columns.
@given(
    st.tuples(st.lists(rows, min_size=1, max_size=5), st.sampled_from([1, FEW + 1])).map(lambda some: some[0] * some[1]),
    st.booleans(),
    st.sampled_from(["", "shop"]),
    st.integers(1, 65535),
)
def test_a_block_is_what_pika_writes_message_by_message(made, is_mandatory, exchange, channel):
    access = RabbitmqAccess(url="amqp://host", exchange=exchange, mandatory=is_mandatory, source=SOURCE)
    outgoing = envelop(messages(*made), access).outgoing
    frames = build_frames(outgoing, channel, 100)
    expected = [as_pika_writes(row, exchange, is_mandatory, channel, 100) for row in made]
    assert [bytes(frames.part(at, at + 1)) for at in range(len(made))] == expected
    assert bytes(frames.part(0, len(made))) == b"".join(expected)


def test_part_of_a_slice_is_built_from_where_it_begins():
    made = [message("q", b"%d" % number, headers={"n": str(number)}, key="k") for number in range(6)]
    sliced = Messages(messages(*made).rows.slice(2))
    outgoing = envelop(sliced, RabbitmqAccess(url="amqp://host", source=SOURCE)).outgoing
    frames = build_frames(outgoing.part(1, 3), 1, 4096)
    assert bytes(frames.part(0, 2)) == b"".join(as_pika_writes(row, "", True, 1, 4096) for row in made[3:5])


@pytest.mark.parametrize("places", [[1, 2], [0, 3], [3]])
def test_some_of_the_messages_are_chosen_in_order(places):
    columns = [pa.array(values) for values in (["a", "b", "c", "d"], [b"1", b"2", b"3", b"4"], [b"w", b"x", b"y", b"z"])]
    chosen = Outgoing("", True, *columns).chosen(np.array(places))
    assert chosen.keys.to_pylist() == [columns[0][place].as_py() for place in places]
    assert chosen.payloads.to_pylist() == [columns[2][place].as_py() for place in places]
