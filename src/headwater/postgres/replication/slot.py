"""Replication slots: listed, made, dropped, and judged fit for use.

A slot keeps WAL until its reader confirms it. The publication has to be there before the slot: decoding looks at the catalog
as it was when a change was written, so a change that is older than its publication breaks the stream or is left out of it.
"""

import logging
import re
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from headwater.errors import SettingsError, SlotActive, SlotInvalidated, SlotMissing, SourceError
from headwater.model import Lsn
from headwater.postgres.connect import Connection
from headwater.postgres.replication.stream import ReplicationConnection
from headwater.postgres.statements import fetch_sync, load

_log = logging.getLogger(__name__)

SQL: Final = load("headwater.postgres", "sql/slot.sql")
PLUGIN: Final = "pgoutput"
# The first version whose slots can follow a failover to a standby.
FAILOVER_VERSION: Final = 170000

_NAME = re.compile(r"[a-z0-9_]{1,63}")
# The SQLSTATEs with which a server refuses a new slot, and what to do about each.
_REMEDIES: Final = {
    "42710": "use it as it is, or drop it with `headwater slots drop {name}`",
    "53400": "drop one that nobody reads (`headwater slots`), or raise max_replication_slots",
    "55000": "set wal_level = logical and restart the server",
    "42501": "run `alter role ... replication` for this user as a superuser",
}


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot as the server shows it; a physical one has neither plugin nor database.

    `retained_bytes` is the WAL that the server keeps for it, `lag_bytes` what its reader has not confirmed, and
    `safe_wal_size` how much more may be written before the server gives it up (None: without limit).
    """

    name: str
    plugin: str | None
    database: str | None
    temporary: bool
    active: bool
    active_pid: int | None
    restart_lsn: Lsn | None
    confirmed_flush_lsn: Lsn | None
    wal_status: str | None
    safe_wal_size: int | None
    retained_bytes: int | None
    lag_bytes: int | None
    two_phase: bool
    failover: bool
    synced: bool
    invalidation_reason: str | None


def list_slots(connection: Connection) -> list[Slot]:
    """All slots of the server, of every database, by name."""
    return fetch_sync(connection, SQL["list_slots"].bind(Slot))


def find_slot(connection: Connection, name: str) -> Slot | None:
    return next((slot for slot in list_slots(connection) if slot.name == name), None)


def check_slot_name(name: str) -> str:
    """The name, if a slot can bear it; raises SettingsError otherwise."""
    if not _NAME.fullmatch(name):
        raise SettingsError(f"{name!r} cannot be a slot's name; use 1 to 63 lower-case letters, digits and underscores")
    return name


def create_slot(replication: ReplicationConnection, name: str, *, temporary: bool = False, failover: bool = False) -> Lsn:
    """Make a slot and return its consistent point: every transaction that commits after it will be streamed.

    It is durable on return unless temporary, which lasts as long as the connection. `failover` (PostgreSQL 17 and later)
    lets standbys keep a copy, so that the slot survives a promotion.
    """
    check_slot_name(name)
    if failover and replication.server_version < FAILOVER_VERSION:
        raise SettingsError(f"slot {name!r} cannot follow a failover on this server; that needs PostgreSQL 17 or later")
    if failover and temporary:
        raise SettingsError(f"slot {name!r} cannot be both temporary and follow a failover; choose one")
    try:
        row = replication.command(_creation(name, temporary=temporary, failover=failover))[0]
    except SourceError as exc:
        remedy = _REMEDIES.get(exc.sqlstate)
        if remedy is None:
            raise
        # What the connection advises in general gives way to what helps here.
        reason = str(exc).partition("; ")[0]
        raise SourceError(
            f"cannot create slot {name!r}: {reason}; {remedy.format(name=name)}", sqlstate=exc.sqlstate
        ) from exc
    point = Lsn.parse(row[1] or "")
    _log.debug("slot created", extra={"slot": name, "consistent_point": str(point), "temporary": temporary})
    return point


def drop_slot(connection: Connection, name: str) -> None:
    """Drop a slot, and with it the WAL that only it keeps; raises SlotActive while somebody reads it."""
    try:
        fetch_sync(connection, SQL["drop_slot"].bind(bool, name=name))
        _log.debug("slot dropped", extra={"slot": name})
    except psycopg.errors.UndefinedObject as exc:
        raise SlotMissing(name) from exc
    except psycopg.errors.ObjectInUse as exc:
        raise SlotActive(name, exc.diag.message_primary or "somebody reads it") from exc
    except psycopg.errors.InsufficientPrivilege as exc:
        user = connection.info.user
        raise SourceError(f"role {user} may not drop slot {name!r}; run `alter role {user} replication` first") from exc


def require_usable(slot: Slot | None, name: str, database: str) -> Slot:
    """The slot, if we can stream `database` from it; whether it is active is left to the attempt."""
    if slot is None:
        raise SlotMissing(name)
    if slot.plugin is None:
        raise SourceError(
            f"slot {name!r} is a physical one, which streams no row changes; name a logical slot, or a new one"
        )
    if slot.plugin != PLUGIN:
        raise SourceError(
            f"slot {name!r} speaks {slot.plugin}, and Headwater reads {PLUGIN}; name another slot, or a new one"
        )
    if slot.database != database:
        raise SourceError(
            f"slot {name!r} belongs to database {slot.database!r}, and this connection is to {database!r}; "
            f"connect to {slot.database!r}, or name another slot"
        )
    if slot.invalidation_reason is not None:
        raise SlotInvalidated(name, slot.invalidation_reason)
    if slot.two_phase:
        raise SourceError(
            f"slot {name!r} decodes prepared transactions before they commit (two_phase), which would deliver what may be "
            f"rolled back; name another slot, or a new one"
        )
    if slot.confirmed_flush_lsn is None:
        raise SlotActive(
            name,
            f"session {slot.active_pid} is making it, until all transactions that are running have ended",
            f"end these, or that session with `select pg_terminate_backend({slot.active_pid})`",
        )
    return slot


def _creation(name: str, *, temporary: bool, failover: bool) -> sql.Composed:
    """The command; no snapshot is exported, since reading a table under one would need this connection to stay idle."""
    kind = sql.SQL("TEMPORARY LOGICAL" if temporary else "LOGICAL")
    options = sql.SQL("SNAPSHOT 'nothing', FAILOVER" if failover else "SNAPSHOT 'nothing'")
    return sql.SQL("CREATE_REPLICATION_SLOT {} {} {} ({})").format(sql.Identifier(name), kind, sql.SQL(PLUGIN), options)
