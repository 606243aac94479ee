"""What tests of e-mails share: a database with their tables, connections to it, and a mail server."""

import gc
from contextlib import closing

import pytest

from headwater.comms import prepare_comms
from headwater.postgres.connect import connect, connect_sync
from tests.support.servers.embedded import prepared_database
from tests.support.servers.smtp import MailServer


def create_comms(url):
    with closing(connect_sync(url)) as connection:
        prepare_comms(connection)


@pytest.fixture
def comms_url(postgres18):
    """A database with the tables of e-mails and of the queue."""
    with prepared_database(postgres18.url, create_comms) as url:
        yield url
        # psycopg leaves a connection whose making was cancelled to the collector, and PostgreSQL waits for it for a minute.
        gc.collect()


@pytest.fixture
def connection(comms_url):
    """In autocommit mode, as Headwater's own are."""
    with closing(connect_sync(comms_url)) as connection:
        yield connection


@pytest.fixture
async def async_connection(comms_url):
    connection = await connect(comms_url)
    yield connection
    await connection.close()


@pytest.fixture
def mail_server():
    with MailServer() as server:
        yield server
