"""Events that an application writes in its own transaction, and that are relayed from there.

`publish` writes to Headwater's table, `emit` to no table; tables of others are outboxes by their `OutboxColumns`. `inbox` is
for the other end: what a consumer remembers. `OutboxRelay` delivers Headwater's table from inside of an application.
"""

from headwater.outbox import inbox
from headwater.outbox.columns import OUTBOX_TABLE, OutboxColumns
from headwater.outbox.emit import PREFIX, Emitted, decode_emitted, emit, emit_sync
from headwater.outbox.event import MAX_PAYLOAD_BYTES, Event
from headwater.outbox.mapping import MappedTable, Recovery, check_mapping
from headwater.outbox.partitions import Ensured, Kept, Purged, drop_partitions, ensure_partitions
from headwater.outbox.publish import publish, publish_many, publish_many_sync, publish_sync
from headwater.outbox.relay import (
    LeasedEvent,
    Leftover,
    OutboxRelay,
    RelaySettings,
    RelayTransaction,
    RelayTransactionSync,
)
from headwater.outbox.statements import DeadMessage, Partition, RelayState

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
