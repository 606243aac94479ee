"""What a tail reads through: its publication and its slot, made in this order.

Decoding looks at the catalog as it was when a change was written. A publication that is younger than its slot would leave
out what waits in the slot, or break the stream, so none is ever made for a slot that is there already.
"""

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from headwater.capture.provision import publish
from headwater.cli import statements
from headwater.errors import SourceError
from headwater.postgres.connect import Connection
from headwater.postgres.replication.publication import Publication, find_publication, plan_publication
from headwater.postgres.replication.slot import check_slot_name, create_slot, find_slot, require_usable
from headwater.postgres.replication.stream import ReplicationConnection
from headwater.postgres.statements import execute_sync, fetch_sync

# Publications and slots that last as long as a tail begin like this.
PREFIX: Final = "headwater_tail_"

_OWNER_PUBLISHES: Final = "have their owner publish them, and name that with --publication"

_log = logging.getLogger(__name__)


@contextmanager
def published(connection: Connection, tables: tuple[str, ...]) -> Iterator[str]:
    """A publication of the tables for the length of the block; those that killed tails have left behind are dropped."""
    for forgotten in fetch_sync(connection, statements.forgotten_publications(PREFIX)):
        execute_sync(connection, statements.drop_publication(forgotten))
        _log.debug("publication dropped", extra={"publication": forgotten})
    name = f"{PREFIX}{secrets.token_hex(8)}"
    fetch_sync(connection, statements.own_publication(name))
    try:
        publish(connection, Publication(name=name, tables=tables), _OWNER_PUBLISHES)
        yield name
    finally:
        execute_sync(connection, statements.drop_publication(name))
        _log.debug("publication dropped", extra={"publication": name})


def ensure_slot(
    connection: Connection, url: str, slot: str, *, tables: tuple[str, ...], publication: str | None, create: bool
) -> str:
    """See to it that the slot is there, and the publication before it; returns the publication's name.

    Without `publication` it is one of just the tables that bears the slot's name.
    """
    check_slot_name(slot)
    found = find_slot(connection, slot)
    if found is None and create:
        _create_slot(connection, url, slot, tables, publication)
        return publication or slot
    require_usable(found, slot, connection.info.dbname)
    if publication is None:
        _require_publication(connection, slot, tables, may_create=False)
    return publication or slot


def _create_slot(connection: Connection, url: str, slot: str, tables: tuple[str, ...], publication: str | None) -> None:
    """Make the slot, and before it the publication, which goes again if there will be no slot."""
    made = False
    if publication is None:
        made = _require_publication(connection, slot, tables, may_create=True)
    elif find_publication(connection, publication) is None:
        raise SourceError(
            f"publication {publication!r} does not exist in database {connection.info.dbname!r}, and has to be there before "
            "its slot; create it, or name another"
        )
    try:
        with ReplicationConnection(url) as replication:
            create_slot(replication, slot)
    except BaseException:
        # Somebody else may have made the slot meanwhile, and reads through the publication.
        if made and find_slot(connection, slot) is None:
            execute_sync(connection, statements.drop_publication(slot))
            _log.info("publication %s: dropped, as there is no slot for it", slot, extra={"publication": slot})
        raise


def _require_publication(connection: Connection, name: str, tables: tuple[str, ...], *, may_create: bool) -> bool:
    """See to it that the publication of a slot is just that of the tables; returns whether it was made.

    One that differs is left as it is: somebody reads through it, or will, and would miss what is taken out of it.
    """
    wanted = Publication(name=name, tables=tables)
    found = find_publication(connection, name)
    if found is None and may_create:
        publish(connection, wanted, _OWNER_PUBLISHES)
        _log.info("publication %s: made for %s", name, ", ".join(tables), extra={"publication": name})
        return True
    if found is None:
        raise SourceError(
            f"slot {name!r} has no publication of its name, and one made now would leave out what waits in the slot; "
            f"name the publication that the slot was made for with --publication, or drop the slot with "
            f"`headwater slots drop {name}` and make both with --create"
        )
    differences = [str(step) for step in plan_publication(connection, wanted)]
    if found.all_tables or found.schemas:
        differences.append("it publishes more than single tables")
    if differences:
        raise SourceError(
            f"publication {name!r} is not one of just {', '.join(tables)} ({'; '.join(differences)}), and is not changed; "
            f"follow what it publishes with --publication {name}, or use another slot for other tables"
        )
    return False
