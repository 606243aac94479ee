"""What tests of topics share: a database with their tables, connections to it, and a topic."""

from contextlib import closing

import psycopg
import pytest

from headwater import topics
from headwater.postgres.connect import connect, connect_sync


@pytest.fixture
def topics_url(database):
    """A database with the topics' tables."""
    with closing(connect_sync(database)) as connection:
        topics.prepare_topics(connection)
    return database


@pytest.fixture
def connection(topics_url):
    """In autocommit mode, as Headwater's own are."""
    with closing(connect_sync(topics_url)) as connection:
        yield connection


@pytest.fixture
async def async_connection(topics_url):
    connection = await connect(topics_url)
    yield connection
    await connection.close()


@pytest.fixture
def application(topics_url):
    """A connection of an application: psycopg's own defaults, in a transaction from the first statement on."""
    with closing(psycopg.connect(topics_url)) as connection:
        yield connection


@pytest.fixture
def orders(connection):
    """A topic with two partitions."""
    return topics.create_sync(connection, "orders", partitions=2)


@pytest.fixture
def any_topics_connection(any_database):
    """On each version of the server in turn."""
    with closing(connect_sync(any_database)) as connection:
        topics.prepare_topics(connection)
        yield connection
