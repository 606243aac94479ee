"""Events that an application writes in its own transaction, and that are relayed from there.

`publish` writes to Headwater's table, `emit` to no table; tables of others are outboxes by their `OutboxColumns`. `inbox` is
for the other end: what a consumer remembers. `OutboxRelay` delivers Headwater's table from inside of an application.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from headwater.outbox import inbox
from headwater.outbox.columns import OUTBOX_TABLE, OutboxColumns
from headwater.outbox.emit import PREFIX, Emitted, decode_emitted, emit, emit_sync
from headwater.outbox.event import MAX_PAYLOAD_BYTES, Event
from headwater.outbox.mapping import MappedTable, Recovery, check_mapping
from headwater.outbox.partitions import Ensured, Kept, Purged, drop_partitions, ensure_partitions
from headwater.outbox.publish import publish, publish_many, publish_many_sync, publish_sync
from headwater.outbox.statements import DeadMessage, Partition, RelayState

if TYPE_CHECKING:
    from headwater.outbox.relay import (
        LeasedEvent,
        Leftover,
        OutboxRelay,
        RelaySettings,
        RelayTransaction,
        RelayTransactionSync,
    )

__all__ = [
    "MAX_PAYLOAD_BYTES",
    "OUTBOX_TABLE",
    "PREFIX",
    "DeadMessage",
    "Emitted",
    "Ensured",
    "Event",
    "Kept",
    "LeasedEvent",
    "Leftover",
    "MappedTable",
    "OutboxColumns",
    "OutboxRelay",
    "Partition",
    "Purged",
    "Recovery",
    "RelaySettings",
    "RelayState",
    "RelayTransaction",
    "RelayTransactionSync",
    "check_mapping",
    "decode_emitted",
    "drop_partitions",
    "emit",
    "emit_sync",
    "ensure_partitions",
    "inbox",
    "publish",
    "publish_many",
    "publish_many_sync",
    "publish_sync",
]


def __getattr__(name: str) -> object:
    """Load the relay when somebody asks for it: who reads an outbox by its slot, in many processes, has no use for it."""
    if name in __all__:
        return getattr(import_module("headwater.outbox.relay"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
