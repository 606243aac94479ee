"""What a consumer remembers commits with what it did, also when two get the same message at once."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest

from headwater.errors import OutboxError
from headwater.outbox import inbox
from tests.support.waiting import eventually

ID = UUID("01890000-0000-7000-8000-000000000001")


@pytest.fixture
def other(outbox_url):
    with closing(psycopg.connect(outbox_url)) as connection:
        yield connection


def is_waiting(connection, other):
    query = "select wait_event_type from pg_stat_activity where pid = %s"
    return connection.execute(query, [other.info.backend_pid]).fetchone() == ("Lock",)


def remembered(connection):
    return connection.execute("select consumer, message_id from headwater.inbox_message order by 1, 2").fetchall()


def test_a_message_is_new_once_for_each_consumer(connection, application):
    assert inbox.once_sync(application, ID, "mail")
    assert not inbox.once_sync(application, ID, "mail")
    assert inbox.once_sync(application, ID, "stock")
    assert not inbox.once_sync(application, str(ID), "mail")
    application.commit()
    assert not inbox.once_sync(application, ID, "mail")
    assert remembered(connection) == [("mail", str(ID)), ("stock", str(ID))]


async def test_the_async_form_does_the_same(outbox_url):
    async with await psycopg.AsyncConnection.connect(outbox_url, autocommit=True) as connection:
        async with connection.transaction():
            assert await inbox.once(connection, ID, "mail")
        async with connection.transaction():
            assert not await inbox.once(connection, ID, "mail")
        with pytest.raises(OutboxError, match="remembering a message has to be part of a transaction"):
            await inbox.once(connection, "2", "mail")
        assert await inbox.forget(connection, timedelta(0)) == 1


def test_in_a_pipeline_the_answer_is_the_same(connection):
    with connection.pipeline(), connection.transaction():
        assert inbox.once_sync(connection, ID, "mail")
        assert not inbox.once_sync(connection, ID, "mail")


def test_what_was_rolled_back_is_new_again(application):
    assert inbox.once_sync(application, ID, "mail")
    application.rollback()
    assert inbox.once_sync(application, ID, "mail")


@pytest.mark.parametrize(("ending", "is_new"), [("commit", False), ("rollback", True)])
def test_of_two_at_once_the_second_waits_for_how_the_first_ends(connection, application, other, ending, is_new):
    assert inbox.once_sync(application, ID, "mail")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(inbox.once_sync, other, ID, "mail")
        eventually(lambda: is_waiting(connection, other))
        assert not second.done()
        getattr(application, ending)()
        assert second.result(timeout=10) is is_new
    other.commit()
    assert remembered(connection) == [("mail", str(ID))]


def test_other_messages_and_other_consumers_do_not_wait(application, other):
    assert inbox.once_sync(application, ID, "mail")
    other.execute("set lock_timeout = '2s'")
    assert inbox.once_sync(other, "2", "mail")
    assert inbox.once_sync(other, ID, "stock")


def test_in_repeatable_read_what_another_has_dealt_with_meanwhile_is_a_serialization_failure(application, other):
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    other.execute("select 1 from headwater.inbox_message")
    assert inbox.once_sync(application, ID, "mail")
    application.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        inbox.once_sync(other, ID, "mail")
    other.rollback()
    assert not inbox.once_sync(other, ID, "mail")


def test_outside_of_a_transaction_nothing_is_remembered(connection):
    with pytest.raises(OutboxError, match="has to be part of a transaction"):
        inbox.once_sync(connection, ID, "mail")
    assert remembered(connection) == []


@pytest.mark.parametrize(("message_id", "consumer"), [("", "mail"), ("1", ""), ("a\0", "mail"), ("1", "x" * 256)])
def test_names_that_are_none_are_refused_and_the_transaction_goes_on(application, message_id, consumer):
    with application.transaction():
        assert inbox.once_sync(application, ID, "mail")
        with pytest.raises(OutboxError):
            inbox.once_sync(application, message_id, consumer)
    assert not inbox.once_sync(application, ID, "mail")


def test_the_memory_outlives_the_event(connection, application):
    application.execute("insert into headwater.outbox_message (id, topic, type, payload) values (%s, 't', 'y', '1')", [ID])
    assert inbox.once_sync(application, ID, "mail")
    application.execute("delete from headwater.outbox_message")
    application.commit()
    assert not inbox.once_sync(application, ID, "mail")


def test_what_is_older_is_forgotten_over_all_pages_and_the_rest_stays(any_connection):
    any_connection.execute(
        """insert into headwater.inbox_message (consumer, message_id, received_at)
           select 'mail', n || repeat('x', 200), now() - interval '1 day' * case when n % 3 = 0 then 8 else 6 end
             from generate_series(1, 60000) as n"""
    )
    (pages,) = any_connection.execute("select pg_relation_size('headwater.inbox_message') / 8192").fetchone()
    assert pages > 1024, "the table is to be larger than one piece"
    assert inbox.forget_sync(any_connection, timedelta(days=7)) == 20_000
    assert inbox.forget_sync(any_connection, timedelta(days=7)) == 0
    query = "select count(*), min(received_at) > now() - interval '7 days' from headwater.inbox_message"
    assert any_connection.execute(query).fetchone() == (40_000, True)


def test_what_lies_ahead_cannot_be_forgotten(connection):
    with pytest.raises(OutboxError, match="not negative"):
        inbox.forget_sync(connection, timedelta(seconds=-1))
