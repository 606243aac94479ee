"""The slot of a pipeline, and the record of it: made, found again, known to be lost, and made anew.

A slot that somebody has moved or made anew looks like any other, and what it was moved past would be missing without a
word. So each confirmation is written down before it is made, and a slot that is further than that is not the one we knew.
"""

import logging
import time
import uuid
from contextlib import closing
from dataclasses import dataclass, replace
from threading import Event

from headwater import failpoints
from headwater.capture.provision import provision
from headwater.capture.tables import SlotRecord, TableStore
from headwater.errors import SlotActive, SlotLost, SlotMissing
from headwater.model import Lsn
from headwater.postgres.catalog import read_server
from headwater.postgres.connect import connect_sync, translated
from headwater.postgres.replication.publication import ALL_OPERATIONS, Operation
from headwater.postgres.replication.slot import Slot, drop_slot, find_slot, require_usable

_log = logging.getLogger(__name__)

# The reader of a lost slot may take a moment to go away.
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class SourceSlot:
    """Where a slot is, or is to be: at a server, with the publication that it is read through, of what to which tables."""

    url: str
    slot: str
    publication: str
    tables: tuple[str, ...]
    operations: frozenset[Operation] = ALL_OPERATIONS


def ensure_slot(
    source: SourceSlot, store: TableStore, delivered: Lsn | None = None, stopping: Event | None = None
) -> SlotRecord:
    """The record of the slot, which is there and is the one we knew; makes it when the pipeline has none yet.

    Making it takes until all transactions that are running have ended, or `stopping` is set, which raises ConnectionLost.

    Raises SlotLost if it is gone or invalidated, if the server is another one, and, where it is told how far everything is
    `delivered`, if somebody has moved it past that, or made it anew.
    """
    record = store.slot()
    found, system = _look(source)
    if record is None:
        return _make(source, store, system, "", stopping)
    if record.slot != source.slot:
        raise SlotLost(
            f"the pipeline was delivered from slot {record.slot!r}, and slot {source.slot!r} knows nothing of that; name "
            "the old slot again, or have the tables read again"
        )
    if record.system_identifier != system:
        raise SlotLost(
            f"the source is another server (system identifier {system}, and it was {record.system_identifier}), whose slot "
            f"{source.slot!r} knows nothing of what was delivered; point the URL back, or have the tables read again"
        )
    if record.since is None:
        # Somebody has died between writing the record and making the slot: whatever is there, nobody has read it.
        return _make(source, store, system, record.generation, stopping)
    if found is None:
        raise SlotMissing(source.slot)
    usable = require_usable(found, source.slot, found.database or "")
    # A standby that was promoted may have a record that is a moment older than its slot.
    ours = max(record.confirmed or Lsn(0), delivered or Lsn(0))
    if delivered is not None and (usable.confirmed_flush_lsn or Lsn(0)) > ours:
        raise SlotLost(
            f"slot {source.slot!r} is at {usable.confirmed_flush_lsn}, and was confirmed up to {ours} alone: "
            "somebody has moved it, or made it anew, and what was written in between is gone from it"
        )
    return record


def renew_slot(source: SourceSlot, store: TableStore, reason: str, stopping: Event | None = None) -> SlotRecord:
    """Give a lost slot up, make another, and have every table of the pipeline read as a whole again.

    In this order, so that whoever dies or is stopped on the way leaves tables that are to be read.
    """
    store.request_all(reason)
    failpoints.hit("slot.renewal_requested")
    record = store.slot()
    found, system = _look(source)
    if record is not None and record.slot != source.slot:
        # What the new name leads to is taken as it is: it was never ours to lose.
        _log.warning("slot %s: left behind; drop it if nobody reads it", record.slot, extra={"slot": record.slot})
    elif found is not None:
        _drop(source, stopping or Event())
    return _make(source, store, system, "", stopping)


def _make(source: SourceSlot, store: TableStore, system: str, generation: str, stopping: Event | None) -> SlotRecord:
    """The slot, made or taken as it is, and a record of it."""
    record = SlotRecord(source.slot, generation or uuid.uuid4().hex[:12], system, None, None)
    store.save_slot(record)
    failpoints.hit("slot.renewal_recorded")
    wanted = source.publication, source.tables
    provision(source.url, source.slot, *wanted, operations=source.operations, reads_tables=True, stopping=stopping)
    failpoints.hit("slot.renewal_created")
    found, _ = _look(source)
    since = (found.confirmed_flush_lsn if found is not None else None) or Lsn(0)
    record = replace(record, since=since, confirmed=since)
    store.save_slot(record)
    return record


def _look(source: SourceSlot) -> tuple[Slot | None, str]:
    with translated(source.url), closing(connect_sync(source.url)) as connection:
        found, server = find_slot(connection, source.slot), read_server(connection)
        if found is not None and found.invalidation_reason is None:
            # One of another plugin or database is not ours to judge, or to drop.
            require_usable(found, source.slot, server.database)
        return found, server.system_identifier


def _drop(source: SourceSlot, stopping: Event) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    with translated(source.url), closing(connect_sync(source.url)) as connection:
        while True:
            try:
                drop_slot(connection, source.slot)
                _log.warning("slot %s: dropped, since it was lost", source.slot, extra={"slot": source.slot})
                return
            except SlotMissing:
                return
            except SlotActive:
                if time.monotonic() > deadline or stopping.wait(_LOOK_SECONDS):
                    raise
