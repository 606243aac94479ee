"""What tests of the queue share: a database with its tables, and connections to it."""

from contextlib import closing

import psycopg
import pytest

from headwater import queue
from headwater.postgres.connect import connect, connect_sync


@pytest.fixture
def queue_url(database):
    """A database with the queue's tables."""
    with closing(connect_sync(database)) as connection:
        queue.prepare_queue(connection)
    return database


@pytest.fixture
def connection(queue_url):
    """In autocommit mode, as Headwater's own are."""
    with closing(connect_sync(queue_url)) as connection:
        yield connection


@pytest.fixture
async def async_connection(queue_url):
    connection = await connect(queue_url)
    yield connection
    await connection.close()


@pytest.fixture
def application(queue_url):
    """A connection of an application: psycopg's own defaults, in a transaction from the first statement on."""
    with closing(psycopg.connect(queue_url)) as connection:
        yield connection


@pytest.fixture
def any_queue_url(any_database):
    """On each version of the server in turn."""
    with closing(connect_sync(any_database)) as connection:
        queue.prepare_queue(connection)
    return any_database
