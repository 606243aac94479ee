"""Events in the application's own transaction: written with it, forgotten with it, and never a harm to it."""

from contextlib import closing
from uuid import UUID

import psycopg
import pytest
from psycopg import sql

from headwater import outbox
from headwater.errors import OutboxError, SchemaError
from headwater.outbox import Event
from headwater.outbox.checkpoint import prepare_outbox
from headwater.outbox.statements import grant_writing
from headwater.postgres.statements import execute_sync
from tests.support.servers.embedded import fresh_database

ROWS = """select id, topic, type, key, payload::text, headers::text from headwater.outbox_message order by created_at, id"""


def rows(url):
    with closing(psycopg.connect(url)) as connection:
        return connection.execute(ROWS).fetchall()


@pytest.fixture
def business(connection):
    connection.execute("create table purchase (id int primary key)")
    return connection


def test_an_event_is_there_when_its_transaction_commits_and_not_when_it_does_not(outbox_url, application):
    outbox.publish_sync(application, "orders", "OrderCreated", {"id": 1})
    assert rows(outbox_url) == []
    application.rollback()
    assert rows(outbox_url) == []

    id_ = outbox.publish_sync(application, "orders", "OrderCreated", {"id": 2}, key="2", headers={"a": "ø"})
    application.commit()
    assert rows(outbox_url) == [(id_, "orders", "OrderCreated", "2", '{"id":2}', '{"a":"ø"}')]
    assert id_.version == 7


async def test_the_async_form_writes_the_same(outbox_url):
    async with await psycopg.AsyncConnection.connect(outbox_url, autocommit=True) as connection:
        async with connection.transaction():
            first = await outbox.publish(connection, "orders", "OrderCreated", None, key="k", headers={"a": "b"})
            others = await outbox.publish_many(connection, [Event("t", "y", n) for n in range(3)])
    assert rows(outbox_url) == [
        (first, "orders", "OrderCreated", "k", "null", '{"a":"b"}'),
        *((id_, "t", "y", None, str(n), "{}") for n, id_ in enumerate(others)),
    ]


@pytest.mark.parametrize("text", ['{ "b": 1,\n"a": 1.10, "a": 2 }', '"\\u00f8\\/"', "1e400", " [ ] "])
def test_what_is_written_arrives_byte_for_byte(outbox_url, application, text):
    outbox.publish_sync(application, "orders", "OrderCreated", text.encode())
    outbox.publish_many_sync(application, [Event("orders", "OrderCreated", text.encode())])
    application.commit()
    assert [row[4] for row in rows(outbox_url)] == [text, text]


def test_an_id_of_the_caller_s_own_is_kept(outbox_url, application):
    mine = UUID("00000000-0000-4000-8000-000000000001")
    assert outbox.publish_sync(application, "t", "y", 1, id=mine) == mine
    assert outbox.publish_many_sync(application, [Event("t", "y", 1, id=mine), Event("t", "y", 2)])[0] == mine
    application.commit()
    assert [row[0] for row in rows(outbox_url)][:2] == [mine, mine]


def test_outside_of_a_transaction_nothing_is_written(outbox_url, connection):
    for call in (
        lambda: outbox.publish_sync(connection, "t", "y", 1),
        lambda: outbox.publish_many_sync(connection, [Event("t", "y", 1)]),
        lambda: outbox.emit_sync(connection, "t", "y", 1),
    ):
        with pytest.raises(OutboxError, match="publishing has to be part of a transaction"):
            call()
    assert rows(outbox_url) == []


async def test_outside_of_a_transaction_nothing_is_written_by_the_async_form(outbox_url):
    async with await psycopg.AsyncConnection.connect(outbox_url, autocommit=True) as connection:
        with pytest.raises(OutboxError, match="part of a transaction"):
            await outbox.publish(connection, "t", "y", 1)
        with pytest.raises(OutboxError, match="part of a transaction"):
            await outbox.publish_many(connection, [Event("t", "y", 1)])
        with pytest.raises(OutboxError, match="part of a transaction"):
            await outbox.emit(connection, "t", "y", 1)
    assert rows(outbox_url) == []


def test_a_transaction_that_was_begun_in_sql_is_one(outbox_url, connection):
    connection.execute("begin")
    outbox.publish_sync(connection, "t", "y", 1)
    connection.execute("commit")
    assert len(rows(outbox_url)) == 1


def test_in_a_pipeline_events_are_committed_with_the_transaction(outbox_url, connection):
    with pytest.raises(ZeroDivisionError):
        with connection.pipeline(), connection.transaction():
            outbox.publish_sync(connection, "t", "y", 1)
            raise ZeroDivisionError
    with connection.pipeline(), connection.transaction():
        for n in range(3):
            outbox.publish_sync(connection, "t", "y", n)
    assert [row[4] for row in rows(outbox_url)] == ["0", "1", "2"]


@pytest.mark.parametrize(
    "bad",
    [
        {"payload": float("nan")},
        {"payload": b"{"},
        {"payload": "\ud800"},
        {"payload": "\0"},
        {"payload": b"[" * 50_000 + b"]" * 50_000},
        {"payload": "x" * outbox.MAX_PAYLOAD_BYTES},
        {"topic": ""},
        {"topic": "a\0b"},
        {"type": "y" * 256},
        {"key": "\ud800"},
        {"headers": {"a": "\0"}},
    ],
    ids=lambda bad: next(iter(bad)),
)
def test_a_refused_event_leaves_the_transaction_as_it_was(outbox_url, business, bad):
    event = {"topic": "t", "type": "y", "payload": 1, **bad}
    with business.transaction():
        business.execute("insert into purchase values (1)")
        with pytest.raises(OutboxError):
            outbox.publish_sync(business, **event)
        with pytest.raises(OutboxError):
            outbox.publish_many_sync(business, [Event("t", "y", 1), Event(**event)])
    assert business.execute("select count(*) from purchase").fetchone() == (1,)
    assert rows(outbox_url) == []


def test_a_database_in_another_encoding_takes_what_it_surely_has(postgres18):
    with closing(psycopg.connect(postgres18.url, autocommit=True)) as admin:
        admin.execute("create database latin encoding latin1 locale 'C' template template0")
    try:
        with fresh_database(postgres18.url, "latin") as url:
            prepare_outbox(url)
            with closing(psycopg.connect(url)) as connection:
                outbox.publish_sync(connection, "t", "y", "plain")
                with pytest.raises(OutboxError, match="encoded in LATIN1"):
                    outbox.publish_sync(connection, "t", "y", "…")
                connection.commit()
            assert len(rows(url)) == 1
    finally:
        with closing(psycopg.connect(postgres18.url, autocommit=True)) as admin:
            admin.execute("drop database latin")


def test_many_events_keep_their_order_over_statements_and_in_recovery_order(any_outbox_url):
    events = [Event("t", "y", n, key=None if n % 2 else str(n), headers={"n": str(n)}) for n in range(2500)]
    with closing(psycopg.connect(any_outbox_url)) as connection:
        ids = outbox.publish_many_sync(connection, events)
        connection.commit()
    found = rows(any_outbox_url)
    assert [(row[0], row[4]) for row in found] == [(id_, str(n)) for n, id_ in enumerate(ids)]
    assert [row[3] for row in found[:3]] == ["0", None, "2"]


def test_ties_of_time_are_put_in_order_by_the_ids(outbox_url, application):
    ids = outbox.publish_many_sync(application, [Event("t", "y", n) for n in range(1000)])
    application.commit()
    application.execute("update headwater.outbox_message set created_at = date_trunc('hour', created_at)")
    application.commit()
    assert [row[0] for row in rows(outbox_url)] == ids


def test_no_events_are_written_without_a_statement(application):
    assert outbox.publish_many_sync(application, []) == []
    assert application.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_large_events_are_cut_into_statements_that_the_server_takes(outbox_url, application):
    body = "x" * 1_000_000
    outbox.publish_many_sync(application, [Event("t", "y", body) for _ in range(20)])
    application.commit()
    sizes = application.execute("select length(payload::text) from headwater.outbox_message").fetchall()
    assert sizes == [(1_000_002,)] * 20


def test_a_bare_insert_gets_its_id_time_and_transaction_from_the_server(any_connection):
    with any_connection.transaction():
        (xid,) = any_connection.execute("select pg_current_xact_id()").fetchone()
        with any_connection.transaction():
            any_connection.execute(
                "insert into headwater.outbox_message (topic, type, payload) values ('t', 'y', '1'), ('t', 'y', '2')"
            )
        (now,) = any_connection.execute("select clock_timestamp()").fetchone()
    found = any_connection.execute(
        "select id, xid, created_at, status, attempts, headers::text from headwater.outbox_message order by id"
    ).fetchall()
    assert [row[1] for row in found] == [xid, xid]
    assert [row[3:] for row in found] == [("pending", 0, "{}")] * 2
    for id_, _, created_at, *_ in found:
        assert id_.version == 7
        assert 0 <= (now - created_at).total_seconds() < 10
        assert abs((id_.int >> 80) / 1000 - created_at.timestamp()) < 1


def test_ids_of_the_server_rise_with_time(any_connection):
    query = "select headwater.uuid_v7() from generate_series(1, 2000)"
    ids = [id_ for (id_,) in any_connection.execute(query)]
    assert len(set(ids)) == 2000
    times = [id_.int >> 64 for id_ in ids]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("column", "value", "constraint"),
    [
        ("topic", "", "outbox_message_topic"),
        ("topic", "a\nb", "outbox_message_topic"),
        ("topic", "ø" * 128, "outbox_message_topic"),
        ("type", "", "outbox_message_type"),
        ("type", "\x85", "outbox_message_type"),
        ("headers", "[]", "outbox_message_headers"),
        ("headers", '"a"', "outbox_message_headers"),
        ("headers", '{"a": 1}', "outbox_message_headers"),
        ("headers", '{"a": "1", "b": {"c": "d"}}', "outbox_message_headers"),
        ("headers", '{"a": null}', "outbox_message_headers"),
        ("created_at", "infinity", "outbox_message_created_at"),
        ("created_at", "-infinity", "outbox_message_created_at"),
    ],
)
def test_a_bare_insert_of_what_could_not_be_relayed_is_refused(any_connection, column, value, constraint):
    given = {"topic": "t", "type": "y", "payload": "1", column: value}
    statement = sql.SQL("insert into headwater.outbox_message ({}) values ({})").format(
        sql.SQL(", ").join(map(sql.Identifier, given)), sql.SQL(", ").join(sql.Placeholder() * len(given))
    )
    with pytest.raises(psycopg.errors.CheckViolation) as caught:
        any_connection.execute(statement, list(given.values()))
    assert caught.value.diag.constraint_name == constraint


def test_an_application_may_write_and_remember_and_nothing_else(any_connection, any_outbox_url):
    role = "writer_" + any_connection.info.dbname
    any_connection.execute(sql.SQL("create role {}").format(sql.Identifier(role)))
    try:
        execute_sync(any_connection, grant_writing(role))
        any_connection.execute(sql.SQL("set role {}").format(sql.Identifier(role)))
        with any_connection.transaction():
            outbox.publish_sync(any_connection, "t", "y", 1, key="k", headers={"a": "b"})
            outbox.publish_many_sync(any_connection, [Event("t", "y", 2)])
            assert outbox.inbox.once_sync(any_connection, "1", "mail")
            assert not outbox.inbox.once_sync(any_connection, "1", "mail")
        any_connection.execute("insert into headwater.outbox_message (topic, type, payload) values ('t', 'y', '3')")
        for forbidden in (
            "insert into headwater.outbox_message (topic, type, payload, xid) values ('t', 'y', '1', '3')",
            "insert into headwater.outbox_message (topic, type, payload, created_at) values ('t', 'y', '1', now())",
            "insert into headwater.outbox_message (topic, type, payload, status) values ('t', 'y', '1', 'published')",
            "insert into headwater.outbox_message_default (topic, type, payload) values ('t', 'y', '1')",
            "select from headwater.outbox_message",
            "update headwater.outbox_message set status = 'published'",
            "delete from headwater.inbox_message",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                any_connection.execute(forbidden)
    finally:
        any_connection.execute("reset role")
        any_connection.execute(sql.SQL("drop owned by {}").format(sql.Identifier(role)))
        any_connection.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))
    assert len(rows(any_outbox_url)) == 3


PUBLISH = [
    lambda c: outbox.publish(c, "t", "T", 1),
    lambda c: outbox.publish_many(c, [Event("t", "T", 1)]),
]
PUBLISH_SYNC = [
    lambda c: outbox.publish_sync(c, "t", "T", 1),
    lambda c: outbox.publish_many_sync(c, [Event("t", "T", 1)]),
]


async def test_a_role_that_may_not_write_is_told_what_it_lacks(outbox_url, connection):
    connection.execute("create role stranger login password 'secret'")
    url = psycopg.conninfo.make_conninfo(outbox_url, user="stranger", password="secret")
    said = r"^role stranger may not write events \(permission denied .*\); .*`headwater outbox init --grant stranger`$"
    try:
        for call in PUBLISH:
            async with await psycopg.AsyncConnection.connect(url) as client:
                with pytest.raises(OutboxError, match=said):
                    await call(client)
        for call_sync in PUBLISH_SYNC:
            with psycopg.connect(url) as client_sync, pytest.raises(OutboxError, match=said):
                call_sync(client_sync)
    finally:
        connection.execute("drop role stranger")


async def test_a_database_without_an_outbox_is_told_what_to_run(database):
    said = "^this database has no outbox, .*; run `headwater outbox init` first$"
    for call in PUBLISH:
        async with await psycopg.AsyncConnection.connect(database) as client:
            with pytest.raises(SchemaError, match=said):
                await call(client)
    for call_sync in PUBLISH_SYNC:
        with psycopg.connect(database) as client_sync, pytest.raises(SchemaError, match=said):
            call_sync(client_sync)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda c: outbox.publish(c, "t", "T", 1), "publish needs a psycopg.AsyncConnection"),
        (lambda c: outbox.publish_many(c, []), "publish_many needs a psycopg.AsyncConnection"),
        (lambda c: outbox.emit(c, "t", "T", 1), "emit needs a psycopg.AsyncConnection"),
        (lambda c: outbox.inbox.once(c, "id", "consumer"), "once needs a psycopg.AsyncConnection"),
    ],
)
async def test_a_connection_of_the_other_kind_is_refused_with_the_function_to_use(application, call, said):
    with pytest.raises(OutboxError, match=rf"{said}, and got a psycopg\.Connection; use \w+_sync with it"):
        await call(application)
    # It was not harmed.
    outbox.publish_sync(application, "t", "T", 1)


async def test_what_is_no_connection_of_psycopg_is_named(outbox_url):
    with pytest.raises(OutboxError, match=r"publish_sync needs a psycopg\.Connection, and got a builtins\.str"):
        outbox.publish_sync(outbox_url, "t", "T", 1)
    async with await psycopg.AsyncConnection.connect(outbox_url) as connection:
        with pytest.raises(OutboxError, match="use publish with it"):
            outbox.publish_sync(connection, "t", "T", 1)  # type: ignore[arg-type]  # the other kind, which is refused
