"""What a stream is read through: its publication and its slot, made in this order if they are missing.

Decoding looks at the catalog as it was when a change was written. A publication that is younger than its slot would leave
out what waits in the slot, or break the stream, so none is ever made for a slot that is there already.
"""

import logging
from contextlib import closing
from threading import Event

import psycopg

from headwater.errors import SourceError
from headwater.postgres.connect import Connection, connect_sync, translated
from headwater.postgres.replication.publication import (
    ALL_OPERATIONS,
    AddTables,
    Create,
    Operation,
    Publication,
    plan_publication,
    reconcile,
)
from headwater.postgres.replication.slot import FAILOVER_VERSION, create_slot, find_slot, require_usable
from headwater.postgres.replication.stream import ReplicationConnection

_log = logging.getLogger(__name__)


def provision(  # noqa: PLR0913 - where, and what is wanted there
    url: str,
    slot: str,
    publication: str,
    tables: tuple[str, ...],
    *,
    operations: frozenset[Operation] = ALL_OPERATIONS,
    reads_tables: bool = False,
    stopping: Event | None = None,
) -> bool:
    """See to it that the tables are published and the slot is there; nothing that exists is changed.

    Returns whether the slot was made, and so holds nothing of the past. Until all transactions that are running have ended
    it cannot be; `stopping` ends that wait with ConnectionLost.

    A publication may hold more than is wanted, or all tables. One that lacks a wanted table is refused, since what the slot
    holds of that table already would be missing; unless the reader `reads_tables` as a whole, and so publishes what is
    missing before it does.
    """
    # Under the name of the root, since that is the table that was asked for, and that sinks and masks know.
    wanted = Publication(name=publication, tables=tables, operations=operations, via_root=True)
    with translated(url), closing(connect_sync(url)) as connection:
        found = find_slot(connection, slot)
        if found is not None:
            require_usable(found, slot, connection.info.dbname)
        missing = [step for step in plan_publication(connection, wanted) if isinstance(step, Create | AddTables)]
        if reads_tables:
            missing = [step for step in missing if isinstance(step, Create)]
        if missing and found is not None:
            raise SourceError(
                f"publication {publication!r} does not hold all that is wanted ({missing[0]}), and slot {slot!r} is there "
                "already, so changes that wait in it would be missing; publish them yourself if that is well, or drop the "
                f"slot with `headwater slots drop {slot}`"
            )
        if any(isinstance(step, AddTables) for step in missing):
            raise SourceError(
                f"publication {publication!r} is there and does not hold all that is wanted ({missing[0]}); add that, or "
                "name another publication"
            )
        if missing:
            publish(connection, wanted, f"have their owner create publication {publication!r}")
            _log.info("publication %s: made for %s", publication, ", ".join(tables), extra={"publication": publication})
        if found is None:
            with ReplicationConnection(url, stopping) as replication:
                # Standbys that are set up for it keep a copy of the slot, and a promotion loses nothing.
                create_slot(replication, slot, failover=replication.server_version >= FAILOVER_VERSION)
            _log.info("slot %s: made", slot, extra={"slot": slot})
        return found is None


def publish(connection: Connection, publication: Publication, remedy: str) -> None:
    """Make a publication; raises SourceError with the remedy if the role may not."""
    try:
        reconcile(connection, publication)
    except SourceError as exc:
        if isinstance(exc.__cause__, psycopg.errors.InsufficientPrivilege):
            raise SourceError(
                f"role {connection.info.user} may not publish {', '.join(publication.tables)} "
                f"({exc.__cause__.diag.message_primary}); {remedy}"
            ) from exc
        raise
