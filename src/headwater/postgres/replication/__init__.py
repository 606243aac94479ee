"""Logical replication for Python on psycopg 3: slots, publications, the stream, and its messages decoded.

A client by itself: `ReplicationConnection` takes commands and starts a `ReplicationStream`; `decode` reads one message of
pgoutput, `decode_rows` and `decode_columns` a whole `Batch`. `headwater.capture` makes batches, and adds what it takes to
lose nothing: assembly in commit order, spilling, confirmation, reconnection.
"""

from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.columnar import Group, decode_columns
from headwater.postgres.replication.pgoutput import decode
from headwater.postgres.replication.publication import Publication, reconcile
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.replication.slot import Slot, create_slot, drop_slot, find_slot, list_slots
from headwater.postgres.replication.stream import ReplicationConnection, ReplicationStream

__all__ = [
    "Batch",
    "Group",
    "Publication",
    "ReplicationConnection",
    "ReplicationStream",
    "Slot",
    "create_slot",
    "decode",
    "decode_columns",
    "decode_rows",
    "drop_slot",
    "find_slot",
    "list_slots",
    "reconcile",
]
