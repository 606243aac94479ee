"""The messages of a topic as its log has them."""

from collections.abc import Sequence

from headwater.postgres.connect import Connection
from headwater.postgres.statements import fetch_sync
from headwater.topics import Message, Placed, Topic, number_sync, statements
from headwater.topics.frame import Framed, read_messages


def read_from(connection: Connection, topic: Topic, offsets: Sequence[int]) -> list[Message]:
    """The messages from an offset of each partition on, by partition and offset."""
    wanted = statements.read_frames(topic.id, range(topic.partitions), offsets, 1_000_000)
    read: list[Message] = []
    for row in fetch_sync(connection, wanted):
        messages = read_messages(Framed(row.count, row.codec, row.frame), row.partition, row.last_offset, row.created_at)
        # A frame may begin before the offset.
        first = row.last_offset - row.count + 1
        read += messages[max(0, offsets[row.partition] - first) :]
    return read


def read_log(connection: Connection, topic: Topic) -> list[Message]:
    """All of them, after what was appended and committed got its offsets."""
    number_sync(connection, topic)
    return read_from(connection, topic, [0] * topic.partitions)


def place_of(message: Message) -> Placed:
    """Where a message stands that was read."""
    assert message.partition is not None and message.offset is not None
    return Placed(message.partition, message.offset)


def payload_of(message: Message) -> bytes:
    """The payload of a message that was read."""
    assert isinstance(message.payload, bytes)
    return message.payload
