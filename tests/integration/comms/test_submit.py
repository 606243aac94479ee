"""Handing over messages in a transaction of one's own, and what is refused before anything is written."""

import psycopg
import pytest

from headwater import comms
from headwater.errors import JobError, SchemaError
from headwater.postgres.connect import connect_sync
from tests.support.queue.email_consumers import states
from tests.support.queue.emails import email

ATTACHED = [{"name": "a", "content": "aGVsbG8="}]


@pytest.mark.parametrize("emails", [email(), None, 7, [{"to": ["zoe@example.com"]}], ["x"], "x"])
def test_what_is_no_list_of_messages_is_refused(connection, emails):
    with pytest.raises(JobError, match=r"messages are given as a list of headwater\.comms\.Email"):
        comms.enqueue_sync(connection, emails)
    assert states(connection) == {}


async def test_a_connection_of_the_other_kind_is_refused_before_anything_is_written(connection, async_connection):
    attached = [email(attachments=ATTACHED)]
    with pytest.raises(JobError, match="use enqueue_sync with it"):
        await comms.enqueue(connection, attached)
    with pytest.raises(JobError, match="use enqueue with it"):
        comms.enqueue_sync(async_connection, attached)
    assert connection.execute("select count(*) from headwater.email_content").fetchone() == (0,)


@pytest.mark.parametrize("key", ["", 7, b"x"])
def test_a_key_that_is_none_is_refused(connection, key):
    with pytest.raises(JobError, match="an idempotency key is a text"):
        comms.enqueue_sync(connection, [email()], idempotency_key=key)


def test_the_same_key_gives_the_same_ids(connection):
    emails = [email(attachments=ATTACHED), email("kim@example.com")]
    first = comms.enqueue_sync(connection, emails, idempotency_key="order-17")
    assert comms.enqueue_sync(connection, emails, idempotency_key="order-17") == first
    assert list(states(connection)) == first
    assert comms.enqueue_sync(connection, []) == []


def test_messages_may_be_in_another_queue(connection):
    comms.enqueue_sync(connection, [email()], queue_name="letters")
    assert connection.execute("select queue, kind from headwater.job").fetchall() == [("letters", "email")]


def test_an_attachment_that_is_used_again_is_kept_for_longer(connection):
    age = "select now() - used_at < interval '1 hour' from headwater.email_content"
    comms.enqueue_sync(connection, [email(attachments=ATTACHED)])
    connection.execute("update headwater.email_content set used_at = now() - interval '2 days'")
    assert connection.execute(age).fetchall() == [(False,)]
    comms.enqueue_sync(connection, [email(attachments=ATTACHED)])
    assert connection.execute(age).fetchall() == [(True,)]


def test_a_database_without_the_tables_is_said(database):
    with connect_sync(database) as connection:
        with pytest.raises(SchemaError, match="init` first"):
            comms.require_comms(connection)
        with pytest.raises(psycopg.errors.UndefinedTable):
            comms.enqueue_sync(connection, [email()])


def test_the_tables_are_made_on_every_version_of_the_server(any_database):
    with connect_sync(any_database) as connection:
        comms.prepare_comms(connection)
        comms.prepare_comms(connection)
        comms.require_comms(connection)
        assert len(comms.enqueue_sync(connection, [email(attachments=ATTACHED)], idempotency_key="17")) == 1
