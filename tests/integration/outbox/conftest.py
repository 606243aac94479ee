"""What tests of the outbox share: a database with its tables, on each version of the server or on the newest."""

from contextlib import closing

import psycopg
import pytest

from headwater.outbox.checkpoint import prepare_outbox
from headwater.postgres.connect import connect_sync
from tests.support.servers.embedded import prepared_database


@pytest.fixture
def outbox_url(postgres18):
    with prepared_database(postgres18.url, prepare_outbox) as url:
        yield url


@pytest.fixture
def any_outbox_url(any_postgres):
    with prepared_database(any_postgres.url, prepare_outbox) as url:
        yield url


@pytest.fixture
def connection(outbox_url):
    """In autocommit mode, as Headwater's own are."""
    with closing(connect_sync(outbox_url)) as connection:
        yield connection


@pytest.fixture
def any_connection(any_outbox_url):
    with closing(connect_sync(any_outbox_url)) as connection:
        yield connection


@pytest.fixture
def application(outbox_url):
    """A connection of an application: psycopg's own defaults, in a transaction from the first statement on."""
    with closing(psycopg.connect(outbox_url)) as connection:
        yield connection
