"""The relay inside of an application: what was committed goes to a broker within milliseconds, and is never lost."""

from headwater.outbox.relay.counts import Counts
from headwater.outbox.relay.entry import LeasedEvent
from headwater.outbox.relay.leftover import Leftover
from headwater.outbox.relay.relay import OutboxRelay
from headwater.outbox.relay.settings import RelaySettings
from headwater.outbox.relay.transaction import RelayTransaction, RelayTransactionSync

__all__ = [
    "Counts",
    "LeasedEvent",
    "Leftover",
    "OutboxRelay",
    "RelaySettings",
    "RelayTransaction",
    "RelayTransactionSync",
]
