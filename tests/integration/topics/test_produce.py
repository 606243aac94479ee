"""A producer: many who send, few commits; nothing twice and nothing lost, whatever becomes of the connection."""

import asyncio
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

from headwater import topics
from headwater.embedded import EmbeddedPostgres
from headwater.errors import ConnectionLost, SourceError, TopicError
from headwater.postgres.connect import connect, connect_sync
from headwater.postgres.statements import fetch, fetch_sync
from headwater.topics import Message, Placed, Producer, ProducerSettings, produce_statements
from headwater.topics.append import encode_messages, frame_messages
from tests.support.servers.embedded import postgres_settings
from tests.support.servers.pooler import pooler
from tests.support.servers.tcp_proxy import Proxy
from tests.support.topics.topic_log import place_of, read_log

QUIET = ProducerSettings(rings=False, maintain_every=None)


def payloads(messages):
    return [message.payload for message in messages]


def count_batches(connection):
    return connection.execute("select max(sequence) from headwater.topic_producer").fetchone()[0]


@pytest.fixture
def single(connection):
    return topics.create_sync(connection, "single")


@asynccontextmanager
async def held(url, topic):
    """Somebody who is appending to the first partition and takes his time."""
    holder = await connect(url)
    async with holder.transaction():
        await holder.execute("select pg_advisory_xact_lock(headwater.topic_lock_key(%s, 0))", [topic.id])
        yield
    await holder.close()


async def wait_for(connection, query, *parameters):
    """Wait until a query has a row; returns that."""
    async with asyncio.timeout(15):
        while True:
            if row := connection.execute(query, parameters).fetchone():
                return row
            await asyncio.sleep(0.01)


def waiting(connection):
    """The backend of a producer that waits for the lock of a partition."""
    return wait_for(
        connection,
        "select pid from pg_stat_activity where application_name = 'headwater producer' and wait_event_type = 'Lock'",
    )


async def test_what_was_sent_is_there_and_stands_where_the_sender_was_told(topics_url, connection, orders):
    async with Producer(topics_url, "orders") as producer:
        one = await producer.send(Message({"total": 1}, "k", {"trace": "1"}))
        many = await producer.send_many([Message(str(number).encode(), str(number % 5)) for number in range(50)])
        assert await producer.send_many([]) == []
    log = {(message.partition, message.offset): message for message in read_log(connection, orders)}
    first = log.pop((one.partition, one.offset))
    assert (first.json(), first.key, first.headers) == ({"total": 1}, "k", {"trace": "1"})
    assert {(place.partition, place.offset) for place in many} == set(log)
    for number, place in enumerate(many):
        assert log[place.partition, place.offset].payload == str(number).encode()


async def test_all_who_send_while_a_batch_is_under_way_share_the_next(topics_url, connection, single):
    async with Producer(topics_url, "single", QUIET) as producer, asyncio.TaskGroup() as tasks:
        async with held(topics_url, single):
            tasks.create_task(producer.send(Message(b"first")))
            await waiting(connection)
            for number in range(100):
                tasks.create_task(producer.send(Message(str(number).encode())))
            await asyncio.sleep(0)
    assert count_batches(connection) == 2
    assert payloads(read_log(connection, single)) == [b"first", *(str(number).encode() for number in range(100))]


async def test_several_producers_of_one_partition_leave_no_gap_and_take_no_offset_twice(topics_url, connection, single):
    async def send_some(name):
        async with Producer(topics_url, "single", QUIET) as producer:
            return [
                (await producer.send_many([Message(f"{name}-{number}".encode())] * 3))[-1].offset for number in range(30)
            ]

    ends = await asyncio.gather(*(send_some(name) for name in "abcd"))
    log = read_log(connection, single)
    assert [message.offset for message in log] == list(range(360))
    for name, offsets in zip("abcd", ends, strict=True):
        assert [log[offset].payload for offset in offsets] == [f"{name}-{number}".encode() for number in range(30)]


async def test_a_batch_is_one_transaction_for_all_partitions(topics_url, connection):
    topic = topics.create_sync(connection, "wide", partitions=8)
    async with Producer(topics_url, "wide", QUIET) as producer:
        await producer.send_many([Message(b"x", str(number)) for number in range(200)])
    transactions = connection.execute(
        f"select count(distinct xmin::text), count(distinct partition) from headwater.topic_log_{topic.id}"  # noqa: S608
    ).fetchone()
    assert transactions == (1, 8)


async def test_what_is_larger_than_a_batch_becomes_several_in_their_order(topics_url, connection, single):
    settings = ProducerSettings(batch_bytes=1000, rings=False, maintain_every=None)
    sent = [Message(str(number).encode() * 100) for number in range(30)]
    async with Producer(topics_url, "single", settings) as producer:
        placed = await producer.send_many(sent)
    assert placed == [Placed(0, number) for number in range(30)]
    assert payloads(read_log(connection, single)) == payloads(sent)
    assert count_batches(connection) > 4


async def test_messages_without_a_key_go_around_from_batch_to_batch(topics_url, orders):
    async with Producer(topics_url, "orders", QUIET) as producer:
        places = [await producer.send(Message(b"x")) for _ in range(4)]
    assert sorted(place.partition for place in places) == [0, 0, 1, 1]


async def test_messages_of_a_key_keep_their_order_while_those_without_use_another_connection(topics_url, connection):
    topic = topics.create_sync(connection, "many", partitions=4)
    sent = [Message(b"%04d" % n + bytes(50_000), key) for n, key in enumerate((None, "a", None, "b", None) * 40)]
    async with Producer(topics_url, "many", ProducerSettings(batch_bytes=1 << 20, rings=False)) as producer:
        # Nobody waits for the one before.
        placed = await asyncio.gather(*map(producer.send, sent))
    (appenders,) = connection.execute("select count(distinct producer) from headwater.topic_producer").fetchone()
    assert appenders == 2
    for key in ("a", "b"):
        places = [place for message, place in zip(sent, placed, strict=True) if message.key == key]
        assert places == sorted(places)
    read = {place_of(message): message.payload for message in read_log(connection, topic)}
    assert read == dict(zip(placed, payloads(sent), strict=True))


async def test_a_bad_message_fails_its_own_send_only(topics_url, connection, single):
    async with Producer(topics_url, "single", QUIET) as producer:
        good, large, odd, alien = await asyncio.gather(
            producer.send(Message(b"good")),
            producer.send(Message(b"x" * 2_000_000)),
            producer.send_many([Message(b"fine"), Message(object())]),
            producer.send(b"bytes"),  # type: ignore[arg-type]  # no message, which is refused
            return_exceptions=True,
        )
    assert good == Placed(0, 0)
    assert isinstance(large, TopicError) and "at most 1048576" in str(large)
    assert isinstance(odd, TopicError) and "JSON" in str(odd)
    assert isinstance(alien, TopicError) and "not a bytes" in str(alien)
    assert payloads(read_log(connection, single)) == [b"good"]


async def test_a_batch_whose_answer_was_lost_is_sent_again_and_not_appended_twice(topics_url, connection, single):
    with Proxy(topics_url) as proxy:
        async with Producer(proxy.url, "single", QUIET) as producer:
            # The batch that is lost is the hundredth, with which the server forgets old producers.
            producer._writers[0][0]._sequence = 97
            # With the second the statement is prepared, of which there is an answer too.
            await producer.send(Message(b"first"))
            await producer.send(Message(b"second"))
            proxy.mute = True
            sending = asyncio.create_task(producer.send(Message(b"lost")))
            await wait_for(connection, "select 1 from headwater.topic_producer where sequence = 100")
            proxy.mute = False
            proxy.cut()
            assert await sending == Placed(0, 2)
            assert await producer.send(Message(b"after")) == Placed(0, 3)
    assert payloads(read_log(connection, single)) == [b"first", b"second", b"lost", b"after"]


async def test_a_network_that_swallows_everything_is_left_for_another_connection(topics_url, connection, single):
    settings = ProducerSettings(answer_within=timedelta(milliseconds=300), rings=False, maintain_every=None)
    with Proxy(topics_url) as proxy:
        async with Producer(proxy.url, "single", settings) as producer:
            await producer.send(Message(b"before"))
            proxy.freeze()
            assert await producer.send(Message(b"after")) == Placed(0, 1)
    assert payloads(read_log(connection, single)) == [b"before", b"after"]


async def test_a_batch_whose_backend_was_killed_is_sent_again(topics_url, connection, single):
    async with Producer(topics_url, "single", QUIET) as producer:
        async with held(topics_url, single):
            sending = asyncio.create_task(producer.send(Message(b"one")))
            (pid,) = await waiting(connection)
            connection.execute("select pg_terminate_backend(%s)", [pid])
        assert await sending == Placed(0, 0)
    assert payloads(read_log(connection, single)) == [b"one"]


async def test_behind_a_pooler_a_producer_does_without_prepared_statements(topics_url, connection, single):
    with pooler(topics_url) as (url, _):
        async with Producer(url, "single", QUIET) as producer:
            places = [await producer.send(Message(str(number).encode())) for number in range(20)]
    assert places == [Placed(0, number) for number in range(20)]
    assert payloads(read_log(connection, single)) == [str(number).encode() for number in range(20)]


async def test_two_attempts_of_one_batch_at_once_append_it_once(topics_url, connection, single):
    producer, frames = uuid4(), frame_messages(single, encode_messages(single, [Message(b"once")]), 0)
    statement = produce_statements.append_batch(single.id, *frames, producer, 1)
    attempts = [await connect(topics_url, application_name="headwater producer") for _ in range(2)]
    async with asyncio.TaskGroup() as tasks:
        async with held(topics_url, single):
            answers = [tasks.create_task(fetch(attempt, statement)) for attempt in attempts]
            both = "select 1 from pg_locks where locktype = 'advisory' and not granted having count(*) = 2"
            await wait_for(connection, both)
    assert [answer.result()[0].first_offsets for answer in answers] == [[0], [0]]
    for attempt in attempts:
        await attempt.close()
    assert payloads(read_log(connection, single)) == [b"once"]


def test_what_is_older_than_what_a_producer_has_appended_is_refused(connection, single):
    producer, frames = uuid4(), frame_messages(single, encode_messages(single, [Message(b"x")]), 0)
    for sequence in (1, 2, 100):
        fetch_sync(connection, produce_statements.append_batch(single.id, *frames, producer, sequence))
    with pytest.raises(psycopg.Error, match="and 2 is older; give each producer an id of its own") as raised:
        fetch_sync(connection, produce_statements.append_batch(single.id, *frames, producer, 2))
    assert raised.value.sqlstate == "HW001"
    # What is not needed any more was forgotten on the way.
    assert connection.execute("select array_agg(sequence) from headwater.topic_producer").fetchone() == ([100],)


@pytest.mark.timeout(60)
async def test_senders_go_on_when_the_server_was_killed():
    # What was only to be written to the WAL, and was not, is gone with the server.
    with EmbeddedPostgres(postgres_settings(18, wal_writer_delay="10s")) as server:
        with closing(connect_sync(server.url)) as connection:
            topics.prepare_topics(connection)
            topic = topics.create_sync(connection, "single")
        async with Producer(server.url, "single", QUIET) as producer:
            stopped = False
            sent: list[tuple[object, Placed]] = []
            progress: asyncio.Queue[None] = asyncio.Queue()

            async def send():
                while not stopped:
                    message = Message(str(len(sent)).encode())
                    sent.append((message.payload, await producer.send(message)))
                    progress.put_nowait(None)

            sending = asyncio.create_task(send())
            for _ in range(2):
                await asyncio.to_thread(server.kill)
                await asyncio.to_thread(server.start)
                for _ in range(progress.qsize() + 10):
                    await progress.get()
            stopped = True
            await sending
        with closing(connect_sync(server.url)) as connection:
            log = read_log(connection, topic)
    assert [(message.payload, place_of(message)) for message in log] == sent


async def test_a_server_that_does_not_come_back_is_given_up(topics_url, single):
    settings = ProducerSettings(give_up_after=timedelta(milliseconds=300), rings=False, maintain_every=None)
    with Proxy(topics_url) as proxy:
        async with Producer(proxy.url, "single", settings) as producer:
            await producer.send(Message(b"before"))
            proxy.refuse = True
            proxy.cut()
            with pytest.raises(ConnectionLost):
                await producer.send(Message(b"lost"))
            proxy.refuse = False
            # The next one is tried as ever.
            assert await producer.send(Message(b"after")) == Placed(0, 1)


async def test_close_appends_what_waits(topics_url, connection, single):
    producer = await Producer(topics_url, "single", QUIET).__aenter__()
    async with held(topics_url, single):
        sending = [asyncio.create_task(producer.send(Message(str(number).encode()))) for number in range(10)]
        await waiting(connection)
        closing_down = asyncio.create_task(producer.close())
        await asyncio.sleep(0)
        with pytest.raises(TopicError, match="the producer is closed; open another one"):
            await producer.send(Message(b"late"))
    await closing_down
    assert sorted(place.offset for place in await asyncio.gather(*sending)) == list(range(10))
    assert len(read_log(connection, single)) == 10


async def test_what_cannot_be_appended_before_the_end_raises_for_its_senders(topics_url, connection, single):
    settings = ProducerSettings(
        close_within=timedelta(milliseconds=200), waiting_messages=1, rings=False, maintain_every=None
    )
    async with held(topics_url, single):
        async with Producer(topics_url, "single", settings) as producer:
            sending = [asyncio.create_task(producer.send(Message(b"under way")))]
            await waiting(connection)
            # One waits for its batch, and one for room.
            sending += [asyncio.create_task(producer.send(Message(b"waits"))) for _ in range(2)]
            await asyncio.sleep(0)
        failed = await asyncio.gather(*sending, return_exceptions=True)
    assert [type(one) for one in failed] == [ConnectionLost] * 3


async def test_a_sender_that_is_cancelled_while_it_waits_sends_nothing(topics_url, connection, single):
    async with Producer(topics_url, "single", QUIET) as producer:
        async with held(topics_url, single):
            first = asyncio.create_task(producer.send(Message(b"first")))
            await waiting(connection)
            cancelled, second = (asyncio.create_task(producer.send(Message(body))) for body in (b"cancelled", b"second"))
            await asyncio.sleep(0)
            cancelled.cancel()
        assert [await first, await second] == [Placed(0, 0), Placed(0, 1)]
    assert payloads(read_log(connection, single)) == [b"first", b"second"]


async def test_those_who_listen_are_woken_after_the_commit_and_not_for_each_batch(topics_url, connection, single):
    connection.execute(f"listen headwater_topic_{single.id}")
    settings = ProducerSettings(ring_every=timedelta(hours=1), maintain_every=None)
    async with Producer(topics_url, "single", settings) as producer:
        for _ in range(5):
            await producer.send(Message(b"x"))
    connection.execute(f"notify headwater_topic_{single.id}, 'last'")
    woken = list(connection.notifies(timeout=10, stop_after=1)) + list(connection.notifies(timeout=0))
    # At once, and what came after it at the end.
    assert [one.payload for one in woken][-1] == "last"
    assert 2 <= len(woken) <= 3


async def test_nobody_is_woken_who_is_not_to_be(topics_url, connection, single):
    connection.execute(f"listen headwater_topic_{single.id}")
    async with Producer(topics_url, "single", QUIET) as producer:
        await producer.send(Message(b"x"))
    connection.execute(f"notify headwater_topic_{single.id}, 'last'")
    assert [one.payload for one in connection.notifies(timeout=10, stop_after=1)] == ["last"]


async def test_keys_lead_to_partitions_that_were_added_meanwhile(topics_url, connection, single):
    async with Producer(topics_url, "single", QUIET) as producer:
        await producer.send(Message(b"x", "k"))
        topics.add_partitions_sync(connection, "single", 8)
        await producer.send(Message(b"x", "k"))
        places = await producer.send_many([Message(b"x", str(number)) for number in range(100)])
    assert {place.partition for place in places} == set(range(8))


async def test_an_unknown_topic_or_server_is_told_when_it_is_opened(topics_url):
    mistaken = Producer(topics_url, "ordres")
    for _ in range(2):
        with pytest.raises(TopicError, match="there is no topic 'ordres'"):
            await mistaken.__aenter__()
    with pytest.raises(SourceError):
        async with Producer(topics_url.replace("/test_", "/none_"), "orders"):
            pass
    with pytest.raises(TopicError, match="not open; use it with `async with`"):
        await Producer(topics_url, "orders").send(Message(b"x"))


async def test_a_producer_is_opened_once_while_it_is_open_and_after(topics_url, single):
    said = "a producer is opened once; make another one"
    both = Producer(topics_url, "single")
    opened = await asyncio.gather(both.__aenter__(), both.__aenter__(), return_exceptions=True)
    await both.close()
    assert opened[0] is both and isinstance(opened[1], TopicError)
    async with Producer(topics_url, "single") as producer:
        with pytest.raises(TopicError, match=said):
            await producer.__aenter__()
        await producer.send(Message(1))
    with pytest.raises(TopicError, match=said):
        await producer.__aenter__()


async def test_what_the_server_refuses_is_the_senders_to_know(topics_url, connection, single):
    async with Producer(topics_url, "single", QUIET) as producer:
        connection.execute(f"alter function headwater.topic_log_{single.id}_append_1 rename to lost")
        with pytest.raises(SourceError, match="check the tables of topics") as raised:
            await producer.send(Message(b"x"))
        assert raised.value.sqlstate == "42883"


async def test_producers_of_a_role_whose_transactions_are_serializable_get_gapless_offsets(topics_url, single):
    strict = f"{topics_url}&options=-c%20default_transaction_isolation%3Dserializable"
    async with Producer(strict, "single", QUIET) as first, Producer(strict, "single", QUIET) as second:
        sends = [(first, second)[n % 2].send(Message(b"x")) for n in range(50)]
        places = await asyncio.gather(*sends)
    assert sorted(place.offset for place in places) == list(range(50))


async def test_a_producer_looks_after_the_segments(topics_url, connection):
    topic = topics.create_sync(connection, "kept", retention_bytes=1 << 20)
    settings = ProducerSettings(rings=False, maintain_every=timedelta(milliseconds=10))
    async with Producer(topics_url, "kept", settings) as producer:
        await producer.send(Message(bytes(900_000)))
        await wait_for(connection, "select 1 from headwater.topic where id = %s and segment > 0", topic.id)
