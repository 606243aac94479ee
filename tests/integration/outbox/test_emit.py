"""Events without a table: they are in the WAL if and only if their transaction commits."""

import json
from contextlib import closing

import psycopg
import pytest

from headwater import outbox
from headwater.errors import OutboxError
from headwater.postgres.replication.slot import create_slot
from headwater.postgres.replication.stream import ReplicationConnection


def emitted(connection):
    options = "'proto_version', '1', 'publication_names', 'none', 'messages', 'true'"
    query = f"select data from pg_logical_slot_get_binary_changes('emitted', null, null, {options})"  # noqa: S608 - ours
    found = [bytes(row[0]) for row in connection.execute(query)]
    return [outbox.decode_emitted(content_of(data)) for data in found if data[:1] == b"M"]


def content_of(data):
    """The content of a logical message: after flags and position stands the prefix, with its end marked."""
    prefix, _, rest = data[10:].partition(b"\0")
    assert prefix.decode() == outbox.PREFIX
    assert data[1] == 1, "it is to be part of its transaction"
    return rest[4:]


@pytest.fixture
def slot(any_database):
    with closing(psycopg.connect(any_database, autocommit=True)) as connection:
        connection.execute("create publication none")
        with closing(ReplicationConnection(any_database)) as replication:
            create_slot(replication, "emitted")
        yield connection
        connection.execute("select pg_drop_replication_slot('emitted')")


def test_what_is_emitted_is_in_the_wal_when_the_transaction_commits_and_only_then(slot, any_database):
    payload = b'{ "a": 1.10 }'
    with closing(psycopg.connect(any_database)) as application:
        outbox.emit_sync(application, "orders", "OrderLost", {})
        application.rollback()
        id_ = outbox.emit_sync(application, "orders", "OrderCreated", payload, key="k", headers={"a": "ø"})
        application.commit()
    (event,) = emitted(slot)
    assert (event.id, event.topic, event.type, event.key) == (str(id_), "orders", "OrderCreated", "k")
    assert (event.payload, event.headers) == (payload, {"a": "ø"})


async def test_the_async_form_does_the_same(slot, any_database):
    async with await psycopg.AsyncConnection.connect(any_database) as application:
        id_ = await outbox.emit(application, "orders", "OrderCreated", [1])
    (event,) = emitted(slot)
    assert (event.id, event.payload) == (str(id_), b"[1]")


def test_what_cannot_be_emitted_leaves_the_transaction_as_it_was(slot, any_database):
    with closing(psycopg.connect(any_database)) as application:
        application.execute("create table purchase (id int)")
        with pytest.raises(OutboxError):
            outbox.emit_sync(application, "orders", "OrderCreated", float("nan"))
        with pytest.raises(OutboxError, match="at most 10 are allowed"):
            outbox.emit_sync(application, "orders", "OrderCreated", "x" * 10, max_bytes=10)
        application.commit()
    assert slot.execute("select count(*) from purchase").fetchone() == (0,)
    assert emitted(slot) == []


def test_a_bare_call_from_sql_is_an_event(slot):
    content = json.dumps({"topic": "orders", "type": "OrderCreated", "payload": {"id": 1}})
    slot.execute("select pg_logical_emit_message(true, 'headwater.outbox', %s::text)", [content])
    (event,) = emitted(slot)
    assert (event.id, event.payload) == (None, b'{"id": 1}')
