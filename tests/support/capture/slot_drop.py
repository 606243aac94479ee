"""Dropping a slot whose reader has hung up: the server holds it for a moment longer."""

from typing import Any

import psycopg

from tests.support.waiting import eventually

_IS_FREE = "select not active from pg_replication_slots where slot_name = %s"


def drop_free_slot(connection: psycopg.Connection[Any], name: str) -> None:
    """Wait until nobody reads the slot, and drop it."""
    eventually(lambda: connection.execute(_IS_FREE, [name]).fetchone() == (True,))
    connection.execute("select pg_drop_replication_slot(%s)", [name])
