"""The Creek wire: subjects, packets, Avro schemas and their fingerprints, requests, and the client."""

from headwater.creek.client import Client, SnapshotInfo, SnapshotReader, WalStream, connect
from headwater.creek.decode import Source, WalMessage
from headwater.creek.messages import SchemaMessage, SnapshotHeader
from headwater.creek.names import Generation

__all__ = [
    "Client",
    "Generation",
    "SchemaMessage",
    "SnapshotHeader",
    "SnapshotInfo",
    "SnapshotReader",
    "Source",
    "WalMessage",
    "WalStream",
    "connect",
]
