"""Databases to measure on: a durable server, one more database of it, psql's way to it, and a table of accounts."""

import os
from typing import Final
from urllib.parse import urlsplit

from benchmarks import statements
from headwater.embedded import EmbeddedPostgres
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import execute_sync

# Durable, with checkpoints and vacuums kept out of the way, so that they do not fall into one arm and not the other.
DURABLE: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "max_wal_size": "32GB",
    "checkpoint_timeout": "1h",
    "shared_buffers": "512MB",
    "autovacuum": "off",
}


def url_of(server: EmbeddedPostgres, database: str) -> str:
    return urlsplit(server.url)._replace(path=f"/{database}").geturl()


def psql_environment(url: str) -> dict[str, str]:
    """Where psql connects to: by the environment, since everybody on the machine can read a command line."""
    place = urlsplit(url)
    return {
        **os.environ,
        "PGHOST": place.hostname or "",
        "PGPORT": str(place.port),
        "PGUSER": place.username or "",
        "PGPASSWORD": place.password or "",
        "PGDATABASE": place.path[1:],
    }


def make_accounts(url: str, rows: int) -> None:
    """The table `account` with so many rows, as it is after a while in use."""
    with connect_sync(url) as connection:
        execute_sync(connection, statements.create_accounts())
        execute_sync(connection, statements.fill_accounts(rows))
        execute_sync(connection, statements.vacuum_accounts())
