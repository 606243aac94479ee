"""NATS and JetStream: a blocking client for bulk work in Spark's tasks, and nats-py for everything that is async."""

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.broker import NatsBroker, NatsBrokerSettings
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.publisher import Outgoing, Published, Publisher, Refused
from headwater.brokers.nats.reader import Received, StreamReader
from headwater.brokers.nats.streams import StreamInfo, StreamLimits, ensure_stream, stream_info

__all__ = [
    "Link",
    "NatsAccess",
    "NatsBroker",
    "NatsBrokerSettings",
    "Outgoing",
    "Published",
    "Publisher",
    "Received",
    "Refused",
    "StreamInfo",
    "StreamLimits",
    "StreamReader",
    "ensure_stream",
    "stream_info",
]
