"""What tests of topics share: a database with their tables, connections to it, and a topic."""

from contextlib import closing

import psycopg
import pytest

from headwater import topics
from headwater.postgres.connect import connect, connect_sync
from tests.support.servers.embedded import prepared_database


def create_topics(url):
    with closing(connect_sync(url)) as connection:
        topics.prepare_topics(connection)


@pytest.fixture
def topics_url(postgres18):
    """A database with the topics' tables."""
    with prepared_database(postgres18.url, create_topics) as url:
        yield url


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
def any_topics_connection(any_postgres):
    """On each version of the server in turn."""
    with prepared_database(any_postgres.url, create_topics) as url, closing(connect_sync(url)) as connection:
        yield connection
