"""Messages of topics as they are written: made of messages, and looked at one by one."""

from headwater.topics.encoded import Encoded
from headwater.topics.message import Fields, Message, encode_message


def encoded(*messages: Message) -> Encoded:
    return Encoded.of(encode_message(message, 1 << 20) for message in messages)


def rows_of(messages: Encoded) -> list[Fields]:
    """Each message by itself."""
    count = len(messages)
    keys, headers = messages.keys or [None] * count, messages.headers or [b""] * count
    return list(zip(messages.payloads, keys, headers, messages.sizes, strict=True))
