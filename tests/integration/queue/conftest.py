"""What tests of the queue share: a database with its tables, and connections to it."""

from contextlib import closing

import psycopg
import pytest

from headwater import queue
from headwater.postgres.connect import connect, connect_sync
from tests.support.servers.embedded import prepared_database


def create_queue(url):
    with closing(connect_sync(url)) as connection:
        queue.prepare_queue(connection)


@pytest.fixture
def queue_url(postgres18):
    """A database with the queue's tables."""
    with prepared_database(postgres18.url, create_queue) as url:
        yield url


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
def any_queue_url(any_postgres):
    """On each version of the server in turn."""
    with prepared_database(any_postgres.url, create_queue) as url:
        yield url
