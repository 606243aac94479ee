"""Domain events of SQLAlchemy sessions, sync and async, by three drivers: rows of a transaction, handed over at its end."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import event as hooks
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship, scoped_session, sessionmaker

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.broker import NatsBrokerSettings
from headwater.brokers.registry import NatsMessages
from headwater.embedded import EmbeddedPostgres
from headwater.errors import OutboxError, SettingsError
from headwater.outbox import Event, LeasedEvent, OutboxRelay, RelaySettings
from headwater.outbox.checkpoint import prepare_outbox
from headwater.outbox.event import EncodedEvent
from headwater.outbox.sqlalchemy import CollectsEvents, HasEvents, install, record_event
from tests.support.brokers.nats_streams import stored
from tests.support.servers.embedded import fresh_database, prepared_database

ROWS = """
select id::text, type, key, payload::text, created_at, locked_by, locked_until between now() and now() + interval '31 s'
  from headwater.outbox_message
 order by created_at, id
"""


class Base(DeclarativeBase):
    pass


class Order(HasEvents, Base):
    """One that records as it goes."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default="new")
    lines: Mapped[list["Line"]] = relationship(cascade="all, delete-orphan")

    def pay(self) -> None:
        self.state = "paid"
        self.record(Event("orders", "OrderPaid", {"id": self.id}, key=str(self.id)))


class Line(HasEvents, Base):
    """Part of an order, and so in the session with it."""

    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(sa.ForeignKey("orders.id"))


class Account(Base):
    """One with events of its own keeping."""

    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int] = mapped_column(default=0)

    def notice(self, type_: str) -> None:
        self.__dict__.setdefault("noticed", []).append(Event("accounts", type_, {"id": self.id}))

    def collect_events(self) -> list[Event]:
        noticed: list[Event] = self.__dict__.pop("noticed", [])
        return noticed


class Relay:
    """What a session needs of a relay; it keeps what it is handed."""

    def __init__(self) -> None:
        self.handed: list[LeasedEvent] = []

    def prepare(self, events: list[EncodedEvent]) -> list[LeasedEvent]:
        return [LeasedEvent(each, "here", 30.0, time.monotonic() + 28) for each in events]

    def serves(self, database: str) -> bool:
        return True

    def hand_over(self, events: list[LeasedEvent]) -> None:
        self.handed += events

    @property
    def types(self) -> list[str]:
        return [each.event.type for each in self.handed]

    @property
    def sent(self) -> list[str]:
        """Without those that a relay would only look for in the table."""
        return [each.event.type for each in self.handed if each.is_leased]


def rows(url: str) -> list[tuple[Any, ...]]:
    with closing(psycopg.connect(url)) as connection:
        return connection.execute(ROWS).fetchall()


def types(url: str) -> list[str]:
    return [row[1] for row in rows(url)]


def address(url: str, driver: str) -> str:
    """For SQLAlchemy; asyncpg has a word of its own for TLS."""
    changed = urlsplit(url)._replace(scheme=f"postgresql+{driver}").geturl()
    return changed.replace("sslmode=", "ssl=") if driver == "asyncpg" else changed


def prepare(url: str) -> None:
    prepare_outbox(url)
    engine = sa.create_engine(address(url, "psycopg"))
    Base.metadata.create_all(engine)
    engine.dispose()


@pytest.fixture
def url(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with prepared_database(postgres18.url, prepare) as url:
        yield url


@pytest.fixture
def relay() -> Any:
    return Relay()


@pytest.fixture(params=["psycopg", "psycopg2"])
def factory(request: pytest.FixtureRequest, url: str, relay: Any) -> Iterator[sessionmaker[Session]]:
    engine = sa.create_engine(address(url, request.param))
    made = sessionmaker(engine)
    install(made, relay)
    yield made
    engine.dispose()


@pytest.fixture(params=["psycopg", "asyncpg"])
async def async_factory(
    request: pytest.FixtureRequest, url: str, relay: Any
) -> AsyncIterator[async_sessionmaker[AsyncSession]]:
    engine = create_async_engine(address(url, request.param))
    made = async_sessionmaker(engine, expire_on_commit=False)
    install(made, relay)
    yield made
    await engine.dispose()


def test_events_of_entities_are_rows_when_the_session_commits_and_are_handed_over_then(factory, relay, url):
    with factory() as session:
        order = Order(id=1, lines=[Line(id=1)])
        order.lines[0].record(Event("orders", "LineAdded", {"price": "1.10", "name": "Ø"}, key="1", headers={"a": "b"}))
        order.pay()
        session.add(order)
        assert relay.handed == []
        session.commit()
        assert order.recorded_events == ()
    # In the order of recording, although the session has met the order first.
    (first, *_), (second, *_) = found = rows(url)
    assert [row[1:4] for row in found] == [
        ("LineAdded", "1", '{"price":"1.10","name":"Ø"}'),
        ("OrderPaid", "1", '{"id":1}'),
    ]
    assert [(str(each.event.id), each.created_at) for each in relay.handed] == [(row[0], row[4]) for row in found]
    assert first < second
    assert [row[5:] for row in found] == [("here", True)] * 2


async def test_the_same_holds_for_async_sessions(async_factory, relay, url):
    async with async_factory() as session:
        order = Order(id=1)
        order.pay()
        session.add(order)
        record_event(session, Event("orders", "Noted", None))
        await session.commit()
        order.pay()
        await session.rollback()
        order.record(Event("orders", "Late", None))
        await session.commit()
    assert types(url) == relay.types == ["OrderPaid", "Noted", "Late"]
    assert [each.created_at for each in relay.handed] == [row[4] for row in rows(url)]


async def test_savepoints_of_async_sessions_leave_nothing_behind(async_factory, relay, url):
    async with async_factory() as session, session.begin():
        order = Order(id=1)
        session.add(order)
        order.record(Event("orders", "Outer", None))
        savepoint = await session.begin_nested()
        order.record(Event("orders", "Undone", None))
        await session.flush()
        await savepoint.rollback()
        async with session.begin_nested():
            order.record(Event("orders", "Inner", None))
    assert types(url) == relay.types == ["Outer", "Inner"]


def test_they_are_written_with_the_flush_in_the_same_transaction(factory, relay, url):
    with factory() as session:
        order = Order(id=1)
        session.add(order)
        order.pay()
        session.flush()
        seen = session.execute(sa.text("select type from headwater.outbox_message")).scalars().all()
        assert (seen, types(url), relay.handed) == (["OrderPaid"], [], [])
        session.commit()
    assert types(url) == relay.types == ["OrderPaid"]


def test_a_session_with_nothing_to_flush_still_publishes(factory, relay, url):
    with factory.begin() as session:
        record_event(session, Event("orders", "Noted", {"n": 1}))
    with factory.begin() as session:
        session.add(Order(id=1))
    with factory.begin() as session:
        # Nobody but the session holds the entity, and that only weakly.
        session.get(Order, 1).record(Event("orders", "Looked", None))
    assert types(url) == relay.types == ["Noted", "Looked"]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_rolled_back_session_publishes_nothing_and_leaves_nothing_on_entities(factory, relay, url, flushed):
    with factory() as session:
        order = Order(id=1)
        order.pay()
        session.add(order)
        record_event(session, Event("orders", "Noted", None))
        if flushed:
            session.flush()
        session.rollback()
        assert order.recorded_events == ()
        session.add(order)
        session.commit()
        order.pay()
        session.rollback()
        session.commit()
    assert types(url) == relay.types == []


def test_a_session_that_is_closed_without_a_commit_publishes_nothing(factory, relay, url):
    with factory() as session:
        order = Order(id=1)
        session.add(order)
        order.pay()
        session.flush()
    assert (order.recorded_events, types(url), relay.types) == ((), [], [])


def test_a_failed_flush_publishes_nothing(factory, relay, url):
    with factory.begin() as session:
        session.add(Order(id=1))
    with factory() as session:
        order = Order(id=1)
        order.pay()
        session.add(order)
        with pytest.raises(sa.exc.IntegrityError):
            session.commit()
        session.rollback()
        record_event(session, Event("orders", "AfterAll", None))
        session.commit()
    assert types(url) == relay.types == ["AfterAll"]


@pytest.mark.parametrize("flushed", [False, True])
def test_an_undone_savepoint_takes_its_events_along_and_no_others(factory, relay, url, flushed):
    with factory.begin() as session:
        order = Order(id=1)
        session.add(order)
        session.flush()
        order.record(Event("orders", "Before", None))
        with session.begin_nested() as savepoint:
            order.record(Event("orders", "Within", None))
            with session.begin_nested():
                order.record(Event("orders", "Deep", None))
            session.add(other := Order(id=2))
            other.pay()
            if flushed:
                session.flush()
            savepoint.rollback()
        assert other.recorded_events == ()
        order.record(Event("orders", "After", None))
    assert types(url) == relay.types == ["Before", "After"]


def test_a_savepoint_that_a_constraint_undid_takes_its_events_along(factory, relay, url):
    with factory.begin() as session:
        session.add(Order(id=1))
        record_event(session, Event("orders", "Before", None))
        with pytest.raises(sa.exc.IntegrityError), session.begin_nested():
            session.connection().execute(sa.text("insert into orders values (1, 'twice')"))
        with pytest.raises(sa.exc.IntegrityError), session.begin_nested():
            record_event(session, Event("orders", "Within", None))
            session.add(Line(id=1, order_id=77))
    assert types(url) == relay.types == ["Before"]


@pytest.mark.parametrize("how", ["core", "statement"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_savepoint_that_the_session_has_not_made_takes_back_its_events_too(factory, relay, url, how, flushed):
    def begin(connection: sa.Connection) -> Any:
        if how == "core":
            return connection.begin_nested().rollback
        connection.execute(sa.text("savepoint mine"))
        return lambda: connection.execute(sa.text("rollback to savepoint mine"))

    with factory() as session:
        session.add(order := Order(id=1))
        session.flush()
        record_event(session, Event("orders", "Before", None))
        rollback = begin(session.connection())
        session.add(other := Order(id=2))
        other.pay()
        record_event(session, Event("orders", "Within", None))
        order.record(Event("orders", "WithinToo", None))
        session.flush()
        with session.begin_nested():
            record_event(session, Event("orders", "Deep", None))
            if flushed:
                session.flush()
        rollback()
        record_event(session, Event("orders", "After", None))
        session.expunge(other)
        session.commit()
    # A savepoint made by a statement may last as long as the transaction: what was recorded before it is written at the end.
    assert types(url) == (["Before", "After"] if how == "core" else ["After", "Before"])
    assert relay.sent == (["Before", "After"] if how == "core" else [])
    with factory.begin() as session:
        record_event(session, Event("orders", "Next", None))
    assert relay.sent[-1] == "Next"


def test_a_released_savepoint_that_the_session_has_not_made_keeps_its_events(factory, relay, url):
    with factory() as session:
        with session.connection().begin_nested():
            record_event(session, Event("orders", "Noted", None))
            session.add(order := Order(id=1))
            order.record(lambda: Event("orders", "OrderCreated", {"id": order.id}))
            session.flush()
        session.commit()
    assert sorted(types(url)) == ["Noted", "OrderCreated"]
    assert relay.sent == [], "nobody has told what became of it, so relays find it in the table"
    assert len(relay.handed) == 2, "and they are told to look"


@pytest.mark.parametrize("end", ["rollback", " ROLLBACK and chain", "abort", "commit", "end"])
def test_a_statement_that_would_end_the_transaction_is_refused_where_there_are_events(factory, relay, url, end):
    with factory() as session:
        session.execute(sa.text(end))
        record_event(session, Event("orders", "Noted", None))
        with pytest.raises(OutboxError, match="use `commit` and `rollback` of the session"):
            session.execute(sa.text(end))
        session.commit()
    assert types(url) == relay.types == ["Noted"]


async def test_savepoints_of_an_async_connection_take_back_their_events_too(async_factory, relay, url):
    async with async_factory() as session:
        savepoint = await (await session.connection()).begin_nested()
        session.add(order := Order(id=1))
        order.pay()
        await session.flush()
        await savepoint.rollback()
        record_event(session, Event("orders", "After", None))
        session.expunge(order)
        await session.commit()
    assert types(url) == relay.sent == ["After"]


def test_a_released_savepoint_goes_with_the_transaction_around_it(factory, relay, url):
    with factory() as session:
        with session.begin_nested():
            record_event(session, Event("orders", "Released", None))
        assert relay.types == []
        session.rollback()
        with session.begin_nested():
            record_event(session, Event("orders", "Kept", None))
        assert relay.types == []
        session.commit()
    assert types(url) == relay.types == ["Kept"]


def test_a_session_is_used_again_and_again(factory, relay, url):
    with factory() as session:
        session.add(order := Order(id=1))
        for number in range(3):
            order.record(Event("orders", f"N{number}", None))
            session.commit()
            assert relay.types == [f"N{each}" for each in range(number + 1)]
        session.reset()
        record_event(session, Event("orders", "AfterReset", None))
        session.commit()
    assert types(url) == relay.types == ["N0", "N1", "N2", "AfterReset"]


def test_events_that_hooks_record_while_the_session_flushes_and_commits_are_written(factory, relay, url):
    def record(type_: str) -> Any:
        return lambda session, *_: record_event(session, Event("orders", type_, None))

    for name in ("before_flush", "after_flush", "after_flush_postexec"):
        hooks.listen(factory, name, record(name))
    hooks.listen(factory, "before_commit", record("before_commit"))
    # Mapper's hooks come while rows are written; this one is asked for every class of the test, and so only once.
    told: list[Order] = []

    def inserted(_mapper: object, _connection: object, order: Order) -> None:
        if not told:
            told.append(order)
            order.record(Event("orders", "after_insert", None))

    hooks.listen(Order, "after_insert", inserted)
    try:
        with factory.begin() as session:
            session.add(Order(id=1))
        with factory.begin() as session:
            # There is nothing to flush now, and so no hook behind that of the commit.
            session.execute(sa.select(1))
    finally:
        hooks.remove(Order, "after_insert", inserted)
    wanted = ["before_commit", "before_flush", "after_insert", "after_flush", "after_flush_postexec", "before_commit"]
    assert sorted(types(url)) == sorted(relay.types) == sorted(wanted)


def test_what_is_recorded_after_the_commit_goes_with_the_next_transaction(factory, relay, url):
    def committed(session: Session) -> None:
        record_event(session, Event("orders", "Committed", None))

    hooks.listen(factory, "after_commit", committed, once=True)
    with factory() as session:
        session.add(order := Order(id=1))
        session.commit()
        assert types(url) == []
        session.commit()
        assert types(url) == ["Committed"]
        order.record(Event("orders", "Next", None))
        assert session.in_transaction()
        session.commit()
    assert types(url) == relay.types == ["Committed", "Next"]


def test_an_event_made_by_a_function_knows_what_the_database_has_given(factory, relay, url):
    with factory.begin() as session:
        order = Order()
        order.record(lambda: Event("orders", "OrderCreated", {"id": order.id, "state": order.state}, key=str(order.id)))
        session.add(order)
    assert [row[2:4] for row in rows(url)] == [("1", '{"id":1,"state":"new"}')]


def test_entities_that_keep_their_own_events_are_asked_for_them(factory, relay, url):
    with factory() as session:
        account = Account(id=1)
        assert isinstance(account, CollectsEvents)
        account.notice("Opened")
        session.add(account)
        session.commit()
        account.notice("Clean")
        session.commit()
        account.notice("RolledBack")
        session.rollback()
        account.notice("Before")
        with session.begin_nested() as savepoint:
            account.notice("Within")
            savepoint.rollback()
        session.commit()
    assert types(url) == relay.types == ["Opened", "Clean", "Before"]


def test_a_bad_event_is_refused_where_it_is_recorded_and_harms_nothing(factory, relay, url):
    with factory.begin() as session:
        session.add(order := Order(id=1))
        with pytest.raises(OutboxError, match="cannot be written as JSON"):
            order.record(Event("orders", "Bad", {"at": object()}))
        with pytest.raises(OutboxError, match="topic is empty"):
            record_event(session, Event("", "Bad", None))
        with pytest.raises(OutboxError, match="an Event, or a function that makes one, is recorded, and not a dict"):
            order.record({"type": "Bad"})  # type: ignore[arg-type]  # no event, which is refused
        order.pay()
    assert types(url) == relay.types == ["OrderPaid"]


def test_a_function_that_makes_no_good_event_fails_the_flush_and_nothing_is_published(factory, relay, url):
    with factory() as session:
        session.add(order := Order(id=1))
        order.pay()
        order.record(lambda: Event("orders", "Bad", float("nan")))
        with pytest.raises(OutboxError, match="cannot be written as JSON"):
            session.commit()
        session.rollback()
        order.record(lambda: None)  # type: ignore[arg-type,return-value]  # makes no event, which is refused
        session.add(order)
        with pytest.raises(OutboxError, match="has to return an Event, and returned a NoneType"):
            session.commit()
    assert types(url) == relay.types == []


def test_an_entity_that_is_expunged_takes_its_events_along(factory, relay, url):
    with factory.begin() as session:
        order = Order(id=1)
        session.add(order)
        order.pay()
        session.expunge(order)
    assert types(url) == []
    assert [each.type for each in order.recorded_events] == ["OrderPaid"]
    with factory.begin() as session:
        session.add(order)
    assert types(url) == relay.types == ["OrderPaid"]


def test_events_of_a_deleted_entity_are_published(factory, relay, url):
    with factory.begin() as session:
        session.add(Order(id=1))
    with factory.begin() as session:
        order = session.get(Order, 1)
        order.record(Event("orders", "OrderDeleted", {"id": 1}))
        session.delete(order)
    assert types(url) == relay.types == ["OrderDeleted"]


def test_many_events_keep_their_order_and_their_own_times(factory, relay, url):
    with factory.begin() as session:
        for number in range(2500):
            record_event(session, Event("orders", "Counted", number))
    found = rows(url)
    assert [json.loads(row[3]) for row in found] == list(range(2500))
    assert [(str(each.event.id), each.created_at) for each in relay.handed] == [(row[0], row[4]) for row in found]


def test_two_phase_commits_hand_over_when_the_second_phase_is_done(url, relay):
    engine = sa.create_engine(address(url, "psycopg2"))
    factory = sessionmaker(engine, twophase=True)
    install(factory, relay)
    with factory() as session:
        session.add(order := Order(id=1))
        order.pay()
        session.prepare()
        assert relay.types == []
        session.commit()
    engine.dispose()
    assert types(url) == relay.types == ["OrderPaid"]


@pytest.mark.parametrize("mode", ["create_savepoint", "rollback_only"])
def test_a_session_that_joined_a_transaction_of_somebody_else_hands_nothing_over(url, relay, mode):
    engine = sa.create_engine(address(url, "psycopg"))
    factory = sessionmaker(join_transaction_mode=mode)
    install(factory, relay)
    for outcome in ("rollback", "commit"):
        with engine.connect() as connection:
            transaction = connection.begin()
            with factory(bind=connection) as session:
                session.add(order := Order(id=1))
                order.pay()
                session.commit()
            getattr(transaction, outcome)()
        assert types(url) == ["OrderPaid"] * (outcome == "commit")
    engine.dispose()
    assert relay.types == []
    # Without a lease: whoever looks into the table may send it at once.
    assert [row[5:] for row in rows(url)] == [(None, None)]


def test_events_go_to_the_database_of_their_entity(url, relay, postgres18):
    with fresh_database(postgres18.url) as other:
        prepare(other)
        engines = [sa.create_engine(address(each, "psycopg")) for each in (url, other)]
        factory = sessionmaker(binds={Order: engines[0], Account: engines[1]})
        install(factory, relay)
        with factory.begin() as session:
            session.add_all([order := Order(id=1), account := Account(id=1)])
            order.pay()
            account.notice("Opened")
            with pytest.raises(OutboxError, match="does not know which database"):
                record_event(session, Event("orders", "Nowhere", None))
                session.flush()
            session.rollback()
        with factory() as session:
            session.add_all([order := Order(id=1), account := Account(id=1)])
            order.pay()
            account.notice("Opened")
            session.commit()
        assert (types(url), types(other)) == (["OrderPaid"], ["Opened"])
        for engine in engines:
            engine.dispose()


async def test_what_is_written_to_another_database_than_the_relays_is_left_to_a_relay_of_that_one(url, nats, postgres18):
    subject = f"T{uuid.uuid4().hex[:12]}"
    broker = NatsMessages(
        access=NatsAccess(url=nats.url), settings=NatsBrokerSettings(stream=subject, subject=f"{subject}.{{topic}}")
    )
    with fresh_database(postgres18.url) as other:
        prepare(other)
        async with OutboxRelay(url, broker, RelaySettings(revive_every=timedelta(hours=1), retention=None)) as relay:
            engines = [sa.create_engine(address(each, "psycopg2")) for each in (url, other)]
            async_engines = [create_async_engine(address(each, "asyncpg")) for each in (url, other)]
            sync = sessionmaker(binds={Order: engines[0], Account: engines[1]})
            install(sync, relay)
            asynchronous = async_sessionmaker(binds={Order: async_engines[0], Account: async_engines[1]})
            install(asynchronous, relay)
            asked = count_questions(*engines, *(each.sync_engine for each in async_engines))

            def record(session: Any, number: int) -> None:
                session.add_all([order := Order(id=number), account := Account(id=number)])
                order.pay()
                account.notice("Opened")

            for number in range(2):
                with sync.begin() as session:
                    record(session, number)
                async with asynchronous.begin() as async_session:
                    record(async_session, 10 + number)
            await relay.stop()
            for engine in engines:
                engine.dispose()
            for async_engine in async_engines:
                await async_engine.dispose()
        arrived = [json.loads(one.body)["id"] for one in stored(NatsAccess(url=nats.url), subject)]
        assert sorted(arrived) == [0, 1, 10, 11], "of the relay's own database"
        assert [row[1::4] for row in rows(other)] == [("Opened", None)] * 4, "without a lease"
        assert len(asked) == 4, "once for each connection"


def count_questions(*engines: sa.Engine) -> list[str]:
    """What connections are asked about their database."""
    asked: list[str] = []

    def look(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "pg_control_system" in statement:
            asked.append(statement)

    for engine in engines:
        hooks.listen(engine, "before_cursor_execute", look)
    return asked


def test_a_database_that_is_not_postgresql_is_refused(relay):
    engine = sa.create_engine("sqlite://")
    factory = sessionmaker(engine)
    install(factory, relay)
    with factory() as session:
        record_event(session, Event("orders", "Noted", None))
        with pytest.raises(OutboxError, match="bound to sqlite; bind it to the database that has the outbox"):
            session.commit()
    engine.dispose()


def test_characters_that_the_database_may_lack_are_refused_before_the_server_does(postgres18, relay):
    with psycopg.connect(postgres18.url, autocommit=True) as connection:
        connection.execute("create database latin encoding 'LATIN1' locale 'C' template template0")
    url = urlsplit(postgres18.url)._replace(path="/latin").geturl()
    try:
        prepare(url)
        for driver in ("psycopg", "psycopg2"):
            engine = sa.create_engine(address(url, driver), client_encoding="utf8")
            factory = sessionmaker(engine)
            install(factory, relay)
            with factory() as session:
                record_event(session, Event("orders", "Noted", "€"))
                with pytest.raises(OutboxError, match="encoded in LATIN1"):
                    session.commit()
                session.rollback()
                record_event(session, Event("orders", "Noted", "e"))
                session.commit()
            engine.dispose()
        assert types(url) == ["Noted", "Noted"]
    finally:
        with psycopg.connect(postgres18.url, autocommit=True) as connection:
            connection.execute("drop database latin with (force)")


def test_sessions_in_threads_of_a_scoped_factory_publish(url, relay):
    engine = sa.create_engine(address(url, "psycopg"))
    scoped = scoped_session(sessionmaker(engine))
    install(scoped, relay)
    record_event(scoped, Event("orders", "Scoped", None))
    scoped.commit()
    scoped.remove()
    engine.dispose()
    assert types(url) == relay.types == ["Scoped"]


async def test_a_scoped_async_factory_and_a_sync_class_of_the_users_own_publish(url, relay):
    class Own(Session):
        pass

    engine = create_async_engine(address(url, "psycopg"))
    scoped = async_scoped_session(async_sessionmaker(engine, sync_session_class=Own), scopefunc=lambda: 1)
    install(scoped, relay)
    record_event(scoped, Event("orders", "Scoped", None))
    assert isinstance(scoped().sync_session, Own)
    await scoped.commit()
    await scoped.remove()
    await engine.dispose()
    assert types(url) == relay.types == ["Scoped"]


def test_an_autobegin_session_of_the_other_kind_wants_a_transaction(url, relay):
    engine = sa.create_engine(address(url, "psycopg"))
    factory = sessionmaker(engine, autobegin=False)
    install(factory, relay)
    with factory() as session:
        with pytest.raises(OutboxError, match=r"record it inside of `with session.begin\(\):`"):
            record_event(session, Event("orders", "Noted", None))
        with session.begin():
            record_event(session, Event("orders", "Noted", None))
    engine.dispose()
    assert types(url) == relay.types == ["Noted"]


async def test_a_relay_that_runs_has_the_events_of_sync_and_async_sessions_out_without_looking_into_the_table(url, nats):
    subject = f"T{uuid.uuid4().hex[:12]}"
    broker = NatsMessages(
        access=NatsAccess(url=nats.url), settings=NatsBrokerSettings(stream=subject, subject=f"{subject}.{{topic}}")
    )
    # Nothing is found in the table in the time of this test: what arrives was handed over.
    async with OutboxRelay(url, broker, RelaySettings(revive_every=timedelta(hours=1), retention=None)) as relay:
        engine, async_engine = sa.create_engine(address(url, "psycopg")), create_async_engine(address(url, "asyncpg"))
        sync, asynchronous = sessionmaker(engine), async_sessionmaker(async_engine)
        install(sync, relay)
        install(asynchronous, relay)

        def work(number: int) -> None:
            with sync.begin() as session:
                order = Order(id=number)
                order.pay()
                session.add(order)

        await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(20)))
        for number in range(20, 40):
            async with asynchronous.begin() as session:
                order = Order(id=number)
                order.pay()
                session.add(order)
        await relay.stop()
        await async_engine.dispose()
        engine.dispose()
    arrived = [json.loads(one.body)["id"] for one in stored(NatsAccess(url=nats.url), subject)]
    assert sorted(arrived) == list(range(40))
    with closing(psycopg.connect(url)) as connection:
        marked = connection.execute("select status, count(*) from headwater.outbox_message group by status").fetchall()
    assert marked == [("published", 40)]
    assert relay.counts.revived == 0


def test_what_has_no_relay_is_said():
    class Plain(HasEvents):
        pass

    plain = Plain()
    plain.record(Event("orders", "Noted", None))
    plain.record(lambda: Event("orders", "Made", None))
    assert [each.type for each in plain.recorded_events] == ["Noted", "Made"]
    with Session() as session, pytest.raises(OutboxError, match="this session has no relay; call `install`"):
        record_event(session, Event("orders", "Noted", None))


def test_a_factory_takes_one_relay(relay):
    factory = sessionmaker(info={"mine": 1})
    before = factory()
    install(factory, relay)
    with pytest.raises(SettingsError, match="has a relay already"):
        install(factory, relay)
    with pytest.raises(SettingsError, match="not of a type"):
        install(Session, relay)  # type: ignore[arg-type]  # a type, which is refused
    # One that was made before goes on as it was.
    assert before.info == {"mine": 1}
    assert factory().info["mine"] == 1
    before.close()
