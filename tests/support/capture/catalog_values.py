"""Catalog values to test with: ordinary ones, of which a test changes what it is about."""

from dataclasses import replace
from typing import Any

from headwater.model import Lsn
from headwater.postgres.catalog import Column, Rights, Server, Table
from headwater.postgres.replication.publication import Found
from headwater.postgres.replication.slot import Slot

TABLE = Table(
    oid=1,
    schema="public",
    name="orders",
    kind="r",
    persistence="p",
    replica_identity="d",
    visible=True,
    ancestors=[],
    key=["id"],
    identity=["id"],
)
COLUMN = Column(
    table_oid=1,
    attnum=1,
    name="id",
    type_oid=20,
    typmod=-1,
    type_name="bigint",
    not_null=True,
    generated="",
    identity="",
    key_position=1,
)
RIGHTS = Rights(oid=1, can_use_schema=True, can_select=True, is_owner=True, rows_hidden=False)
SERVER = Server(
    version_number=180004,
    version="18.4",
    database="shop",
    in_recovery=False,
    system_identifier="7",
    wal_level="logical",
    max_replication_slots=10,
    used_replication_slots=2,
    max_wal_senders=10,
    used_wal_senders=2,
    max_slot_wal_keep_bytes=1 << 30,
    wal_sender_timeout_ms=60000,
    idle_replication_slot_timeout_seconds=None,
    user="capture",
    is_superuser=False,
    can_replicate=True,
    can_create=True,
)
SLOT = Slot(
    name="shop",
    plugin="pgoutput",
    database="shop",
    temporary=False,
    active=False,
    active_pid=None,
    restart_lsn=Lsn(1),
    confirmed_flush_lsn=Lsn(1),
    wal_status="reserved",
    safe_wal_size=None,
    retained_bytes=0,
    lag_bytes=0,
    two_phase=False,
    failover=False,
    synced=False,
    invalidation_reason=None,
)
FOUND = Found(
    name="shop",
    owner="dba",
    is_owner=True,
    all_tables=False,
    inserts=True,
    updates=True,
    deletes=True,
    truncates=True,
    via_root=False,
    generated_columns=False,
    schemas=[],
    tables=[],
    narrowed=[],
)


def table(oid: int, name: str, **facts: Any) -> Table:
    return replace(TABLE, oid=oid, name=name, **({"visible": facts.get("schema", "public") == "public"} | facts))


def published(*tables: Table, **facts: Any) -> Found:
    return replace(FOUND, tables=[each.oid for each in tables], **facts)
