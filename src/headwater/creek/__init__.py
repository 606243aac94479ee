"""The Creek wire: subjects, packets, Avro schemas and their fingerprints, requests, and the client."""

from importlib import import_module
from typing import TYPE_CHECKING

from headwater.creek.decode import Source, WalMessage
from headwater.creek.messages import SchemaMessage, SnapshotHeader
from headwater.creek.names import Generation

if TYPE_CHECKING:
    from headwater.creek.client import Client, SnapshotInfo, SnapshotReader, WalStream, connect

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


def __getattr__(name: str) -> object:
    """The client is loaded when it is asked for: it needs nats-py, an extra, and pipelines without NATS do not."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("headwater.creek.client"), name)
