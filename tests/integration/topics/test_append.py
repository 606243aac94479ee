"""Appends in a transaction of the application: there if it commits, in the order of commits, and nobody waits for others."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from threading import Event

import psycopg
import pytest

from headwater import topics
from headwater.errors import TopicError
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync
from headwater.topics import Message, statements
from headwater.topics.message import partition_of
from tests.support.topics.topic_log import payload_of, place_of, read_from, read_log

# Whoever waited for a lock at all would fail.
IMPATIENT = "-c lock_timeout=1"


def key_of(partition, partitions=2):
    return next(str(key) for key in range(1000) if partition_of(str(key).encode(), partitions) == partition)


def payloads(messages):
    return [message.payload for message in messages]


def test_messages_come_back_as_they_were_appended(any_topics_connection):
    topic = topics.create_sync(any_topics_connection, "any", partitions=4)
    sent = [
        Message(b"\x00\xff", "käse", {"trace": "1", "ünï": "ö"}),
        Message({"total": 12.5, "items": ["ä", None]}, "käse"),
        Message("text", ""),
        Message(b"", None, {}),
    ]
    topics.append_sync(any_topics_connection, "any", sent)
    got = {(message.payload, message.key): message for message in read_log(any_topics_connection, topic)}
    assert set(got) == {
        (b"\x00\xff", "käse"),
        ('{"total":12.5,"items":["ä",null]}'.encode(), "käse"),
        (b'"text"', ""),
        (b"", None),
    }
    assert got[b"\x00\xff", "käse"].headers == {"trace": "1", "ünï": "ö"}
    assert got[b"", None].headers == {}
    keyed = [message for message in got.values() if message.key == "käse"]
    assert {message.partition for message in keyed} == {partition_of("käse".encode(), 4)}
    assert [message.offset for message in keyed] == [0, 1]


async def test_an_async_connection_appends_in_its_transaction_too(async_connection, connection, orders):
    async with async_connection.transaction():
        await topics.append(async_connection, "orders", [Message(b"one", "k")])
        await topics.append(async_connection, orders, [Message(b"two", "k")])
        assert read_log(connection, orders) == []
    assert await topics.number(async_connection, orders) == 2
    assert payloads(read_log(connection, orders)) == [b"one", b"two"]


def test_a_frame_of_a_compressing_topic_reads_the_same(connection):
    topic = topics.create_sync(connection, "packed", compression="zstd")
    sent = [Message(b"again and again " * 100, str(number)) for number in range(100)]
    topics.append_sync(connection, "packed", sent)
    assert payloads(read_log(connection, topic)) == payloads(sent)
    assert sum(len(row.frame) for row in fetch_sync(connection, statements.read_frames(topic.id, [0], [0], 100))) < 16_000


def test_a_transaction_that_rolls_back_leaves_no_gap(connection, application, orders):
    for number, commits in enumerate([True, False, True]):
        topics.append_sync(application, "orders", [Message(str(number).encode(), "k")])
        application.commit() if commits else application.rollback()
    read = read_log(connection, orders)
    assert (payloads(read), [one.offset for one in read]) == ([b"0", b"2"], [0, 1])


def test_a_savepoint_that_is_rolled_back_leaves_no_gap(connection, application, orders):
    topics.append_sync(application, "orders", [Message(b"before", "k")])
    with pytest.raises(ZeroDivisionError), application.transaction():
        topics.append_sync(application, "orders", [Message(b"undone", "k")])
        raise ZeroDivisionError
    topics.append_sync(application, "orders", [Message(b"after", "k")])
    application.commit()
    read = read_log(connection, orders)
    assert (payloads(read), [one.offset for one in read]) == ([b"before", b"after"], [0, 1])


def test_two_who_append_to_the_same_partitions_in_opposite_order_do_not_wait(topics_url, connection, orders):
    first, second = (psycopg.connect(topics_url, options=IMPATIENT) for _ in range(2))
    with closing(first), closing(second):
        topics.append_sync(first, "orders", [Message(b"first", key_of(0))])
        topics.append_sync(second, "orders", [Message(b"second", key_of(1))])
        topics.append_sync(first, "orders", [Message(b"first", key_of(1))])
        topics.append_sync(second, "orders", [Message(b"second", key_of(0))])
        second.commit()
        # The first is open, and what the second appended is read all the same.
        assert payloads(read_log(connection, orders)) == [b"second", b"second"]
        first.commit()
    assert [(one.partition, one.offset, one.payload) for one in read_log(connection, orders)] == [
        (0, 0, b"second"),
        (0, 1, b"first"),
        (1, 0, b"second"),
        (1, 1, b"first"),
    ]


def test_the_order_of_two_who_meet_at_a_row_is_that_of_their_commits(topics_url, connection, orders):
    connection.execute("create table account (id int primary key, total int)")
    connection.execute("insert into account values (1, 0)")
    waiter_pid, waits = [], Event()

    def wait_for_the_row():
        with closing(psycopg.connect(topics_url)) as late:
            # Staged before the other one.
            topics.append_sync(late, "orders", [Message(b"late", "k")])
            waiter_pid.append(late.info.backend_pid)
            waits.set()
            late.execute("update account set total = total + 1")
            late.commit()

    with closing(psycopg.connect(topics_url)) as early, ThreadPoolExecutor(1) as pool:
        early.execute("update account set total = total + 1")
        waiting = pool.submit(wait_for_the_row)
        assert waits.wait(10)
        topics.append_sync(early, "orders", [Message(b"early", "k")])
        blocked = "select %s = any(pg_blocking_pids(%s))"
        while not connection.execute(blocked, [early.info.backend_pid, waiter_pid[0]]).fetchone()[0]:
            pass
        early.commit()
        waiting.result(10)
    assert payloads(read_log(connection, orders)) == [b"early", b"late"]


@dataclass
class Committed:
    """When a commit began and when it had ended, by one clock."""

    began: float
    ended: float


def write_some(url, writer, commits, transactions=30):
    """Transactions that overlap: one is open while another one begins and ends; some roll back, wholly or in part."""
    chance = random.Random(writer)
    with closing(psycopg.connect(url)) as late, closing(psycopg.connect(url)) as quick:
        for number in range(transactions):
            append(late, f"{writer}-{number}-late", chance)
            for turn in range(chance.randrange(3)):
                end(quick, append(quick, f"{writer}-{number}-{turn}", chance), chance, commits)
            end(late, f"{writer}-{number}-late", chance, commits)


def append(connection, name, chance):
    # Begins a transaction, of which the blocks below are parts.
    connection.execute("select 1")
    with connection.transaction():
        topics.append_sync(connection, "orders", [Message(name.encode(), str(chance.randrange(8)))])
    with connection.transaction(force_rollback=True):
        topics.append_sync(connection, "orders", [Message(b"undone", str(chance.randrange(8)))])
    return name


def end(connection, name, chance, commits):
    if chance.random() < 0.3:
        connection.rollback()
        return
    began = time.monotonic()
    connection.commit()
    commits[name] = Committed(began, time.monotonic())


def follow(url, topic, writers_are_done):
    """What one sees who reads the log all the time and goes on where it stopped; fails if something came in before that."""
    seen, offsets = [], [0] * topic.partitions
    with closing(connect_sync(url)) as connection:
        while True:
            is_last = writers_are_done.is_set()
            topics.number_sync(connection, topic)
            for message in read_from(connection, topic, offsets):
                partition, offset = place_of(message)
                assert offset == offsets[partition]
                offsets[partition] += 1
                seen.append(message)
            if is_last:
                return seen


def test_a_reader_misses_nothing_of_writers_that_commit_late_and_roll_back(topics_url, connection, orders):
    commits: dict[str, Committed] = {}
    done = Event()
    with ThreadPoolExecutor(8) as pool:
        followers = [pool.submit(follow, topics_url, orders, done) for _ in range(2)]
        writers = [pool.submit(write_some, topics_url, writer, commits) for writer in range(6)]
        for writer in writers:
            writer.result()
        # Nobody else is at it any more, so nothing is left for later.
        topics.number_sync(connection, orders)
        done.set()
        seen = [follower.result() for follower in followers]
    log = read_log(connection, orders)
    for one in seen:
        assert sorted(one, key=place_of) == log
    assert {payload_of(one).decode() for one in log} == set(commits)
    assert len(log) == len(commits)
    for partition in range(orders.partitions):
        latest = 0.0
        for message in (one for one in log if one.partition == partition):
            commit = commits[payload_of(message).decode()]
            assert commit.ended >= latest, "a commit that had ended before another one began stands behind it"
            latest = max(latest, commit.began)


def test_several_who_number_at_once_number_everything_once(topics_url, connection, orders):
    for number in range(60):
        topics.append_sync(connection, "orders", [Message(str(number).encode(), str(number))])

    def number_all():
        with closing(connect_sync(topics_url)) as own:
            return topics.number_sync(own, orders)

    with ThreadPoolExecutor(4) as pool:
        counts = [pool.submit(number_all) for _ in range(4)]
        assert sum(one.result() for one in counts) == 60
    log = read_log(connection, orders)
    assert sorted(int(payload_of(one)) for one in log) == list(range(60))
    for partition in range(2):
        offsets = [one.offset for one in log if one.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_numbering_is_refused_where_it_could_not_see_what_others_have_numbered(connection, application, orders):
    topics.append_sync(connection, "orders", [Message(b"one", "k")])
    application.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with pytest.raises(psycopg.Error, match="use read committed") as raised:
        topics.number_sync(application, orders)
    assert raised.value.sqlstate == "HW003"


def test_those_who_listen_are_woken_once_for_each_transaction(topics_url, connection, application, orders):
    connection.execute(f"listen headwater_topic_{orders.id}")
    for _ in range(3):
        topics.append_sync(application, "orders", [Message(b"one")])
    application.commit()
    topics.append_sync(application, "orders", [Message(b"quiet")], rings=False)
    application.commit()
    application.execute(f"notify headwater_topic_{orders.id}, 'last'")
    application.commit()
    assert [one.payload for one in connection.notifies(timeout=10, stop_after=2)] == ["", "last"]


def test_an_unknown_topic_and_a_bad_message_leave_the_transaction_as_it_was(application, connection, orders):
    topics.append_sync(application, "orders", [Message(b"good", "k")])
    with pytest.raises(TopicError, match="there is no topic 'ordres'; make it"):
        topics.append_sync(application, "ordres", [Message(b"x")])
    with pytest.raises(TopicError, match="at most 1048576"):
        topics.append_sync(application, "orders", [Message(b"x" * 1_048_577)])
    application.commit()
    assert payloads(read_log(connection, orders)) == [b"good"]


def test_a_topic_that_is_there_is_not_made_again(connection, application, orders):
    with pytest.raises(TopicError, match="'orders' is there already; use it"):
        topics.create_sync(application, "orders", partitions=2)
    with pytest.raises(
        TopicError,
        match="with 2 partitions and not 3; use it as it is, or give it more with `headwater topics add-partitions",
    ):
        topics.create_sync(application, "orders", partitions=3)
    # The transaction is as it was.
    assert application.execute("select 1").fetchone() == (1,)


def test_of_two_who_make_a_topic_at_once_one_is_told(topics_url, connection):
    with closing(psycopg.connect(topics_url)) as slower, closing(psycopg.connect(topics_url)) as quicker:
        slower.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        slower.execute("select 1")
        topics.create_sync(quicker, "new")
        quicker.commit()
        with pytest.raises(TopicError, match="'new' is there already, since a moment ago"):
            topics.create_sync(slower, "new")


async def test_a_topic_grows_on_request_and_its_groups_read_the_new_partitions(connection, async_connection, orders):
    connection.execute(
        "insert into headwater.topic_group (topic_id, name, mode) values (%s, 'billing', 'partition')", [orders.id]
    )
    assert (await topics.add_partitions(async_connection, "orders", 4)).partitions == 4
    grown = topics.add_partitions_sync(connection, "orders", 4)
    topics.append_sync(connection, grown, [Message(str(number).encode(), str(number)) for number in range(50)])
    assert {one.partition for one in read_log(connection, grown)} == {0, 1, 2, 3}
    cursors = connection.execute("select partition, next_offset from headwater.topic_cursor order by 1").fetchall()
    assert cursors == [(2, 0), (3, 0)]
    for wrong in (3, 1025):
        with pytest.raises(TopicError, match=f"has 4 partitions and cannot have {wrong}"):
            topics.add_partitions_sync(connection, "orders", wrong)
