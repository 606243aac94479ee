"""Segments: begun now and again, dropped as a whole, and neither at the cost of those who append and read."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from headwater import topics
from headwater.errors import SettingsError, TopicError
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync
from headwater.topics import Message, Topic, retention, statements
from headwater.topics.message import partition_of
from headwater.topics.retention import maintain, trim
from tests.support.topics.topic_log import read_from, read_log


@pytest.fixture
def kept(connection):
    """A topic that keeps messages for an hour."""
    return topics.create_sync(connection, "kept", partitions=2, retention="1 h")


def append(connection, topic, *bodies):
    """Each to both partitions, and numbered."""
    for partition in range(topic.partitions):
        key = next(str(key) for key in range(100) if partition_of(str(key).encode(), topic.partitions) == partition)
        topics.append_sync(connection, topic, [Message(body.encode(), key) for body in bodies])
    topics.number_sync(connection, topic)


def age(connection, topic: Topic, by: str = "2 hours"):
    """Let time pass for the log: what is in it now is so much older."""
    connection.execute(
        f"update headwater.topic_log_{topic.id} set created_at = created_at - %s::interval",  # noqa: S608
        [by],
    )
    connection.execute(
        "update headwater.topic set segment_began_at = segment_began_at - %s::interval where id = %s", [by, topic.id]
    )


def read_up(connection, topic, group="billing", *, to):
    """A group that has dealt with what is before an offset of each partition."""
    connection.execute(
        """with reader as (
               insert into headwater.topic_group (topic_id, name, mode) values (%(topic)s, %(group)s, 'shared')
                   on conflict (topic_id, name) do update set name = excluded.name
               returning id
           )
           insert into headwater.topic_cursor (group_id, partition, next_offset)
           select reader.id, partition, %(to)s from reader, generate_series(0, %(partitions)s - 1) as partition
               on conflict (group_id, partition) do update set next_offset = excluded.next_offset""",
        {"topic": topic.id, "group": group, "to": to, "partitions": topic.partitions},
    )


def bounds(connection, topic):
    return [(one.first_offset, one.next_offset) for one in fetch_sync(connection, statements.read_bounds(topic.id))]


def segments(connection, topic):
    query = "select array_agg(segment order by segment) from headwater.topic_segments_1(%s)"
    return connection.execute(query, [topic.id]).fetchone()[0]


def test_old_segments_are_dropped_and_offsets_go_on(any_topics_connection):
    connection = any_topics_connection
    topic = topics.create_sync(connection, "any", partitions=2, retention="1 h")
    append(connection, topic, "old", "older")
    age(connection, topic)
    done = maintain(connection, topic)
    assert (done.has_rotated, [one.segment for one in done.dropped], done.hindrances) == (True, [0], ())
    assert bounds(connection, topic) == [(2, 2), (2, 2)]
    append(connection, topic, "new")
    assert bounds(connection, topic) == [(2, 3), (2, 3)]
    assert [(one.offset, one.payload) for one in read_from(connection, topic, [0, 0])] == [(2, b"new")] * 2


def test_the_order_of_offsets_holds_over_segments(connection, kept):
    for number in range(3):
        append(connection, kept, str(number))
        age(connection, kept, "10 minutes")
        assert maintain(connection, kept).has_rotated
    # A partition that got nothing of late goes on where it was.
    append(connection, kept, "last")
    assert segments(connection, kept) == [0, 1, 2, 3]
    log = [(one.partition, one.offset, one.payload) for one in read_log(connection, kept)]
    assert log == [(p, o, body) for p in range(2) for o, body in enumerate([b"0", b"1", b"2", b"last"])]


def test_only_what_all_groups_have_dealt_with_is_dropped(connection, kept):
    append(connection, kept, "0", "1")
    age(connection, kept)
    read_up(connection, kept, "quick", to=2)
    read_up(connection, kept, "slow", to=1)
    assert maintain(connection, kept).dropped == ()
    read_up(connection, kept, "slow", to=2)
    assert len(maintain(connection, kept).dropped) == 1


def test_a_group_without_a_cursor_has_dealt_with_nothing(connection, kept):
    append(connection, kept, "0")
    age(connection, kept)
    connection.execute(
        "insert into headwater.topic_group (topic_id, name, mode) values (%s, 'fresh', 'partition')", [kept.id]
    )
    assert maintain(connection, kept).dropped == ()


def test_what_was_claimed_and_not_committed_is_kept(connection, kept):
    append(connection, kept, "0", "1")
    age(connection, kept)
    read_up(connection, kept, to=2)
    connection.execute(
        """insert into headwater.topic_claim (group_id, partition, first_offset, last_offset, epoch, member, attempts)
           select id, 0, 1, 1, 1, gen_random_uuid(), 1 from headwater.topic_group"""
    )
    assert maintain(connection, kept).dropped == ()
    connection.execute("delete from headwater.topic_claim")
    assert len(maintain(connection, kept).dropped) == 1


def test_what_is_beyond_the_size_is_dropped_read_or_not(connection):
    topic = topics.create_sync(connection, "small", retention_bytes=2_000_000)
    read_up(connection, topic, to=0)
    for number in range(12):
        topics.append_sync(connection, topic, [Message(bytes(400_000), str(number))])
        topics.number_sync(connection, topic)
        maintain(connection, topic)
    ((first, following),) = bounds(connection, topic)
    assert following == 12
    assert 7 <= first <= 9


def test_a_topic_without_limits_keeps_everything(connection, orders):
    append(connection, orders, "old")
    age(connection, orders, "10 years")
    done = maintain(connection, orders)
    assert (done.has_rotated, done.dropped) == (False, ())


def test_maintenance_of_an_idle_topic_changes_nothing(connection, kept):
    age(connection, kept)
    # A transaction that writes has a number.
    next_number = "select pg_snapshot_xmax(pg_current_snapshot())"
    before = connection.execute(next_number).fetchone()
    assert not maintain(connection, kept).has_rotated
    assert connection.execute(next_number).fetchone() == before


def test_several_who_maintain_at_once_do_it_once(topics_url, connection, kept):
    append(connection, kept, "old")
    age(connection, kept)

    def maintained(_):
        with closing(connect_sync(topics_url)) as own:
            return maintain(own, kept)

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(maintained, range(4)))
    # Those who came too late for the first of it may have waited for no longer than they are allowed to.
    maintain(connection, kept)
    assert sum(one.has_rotated for one in done) == 1
    assert sum(len(one.dropped) for one in done) <= 1
    assert segments(connection, kept) == [1]


def test_a_reader_that_takes_its_time_is_not_waited_for(connection, application, kept):
    append(connection, kept, "old")
    age(connection, kept)
    read_from(application, kept, [0, 0])
    done = maintain(connection, kept)
    assert (done.has_rotated, done.dropped) == (True, ())
    assert done.hindrances == ("transactions that use the topic did not end in time; it is tried again the next time",)
    application.commit()
    assert len(maintain(connection, kept).dropped) == 1


def test_one_who_appends_and_takes_his_time_is_not_waited_for(connection, application, kept):
    append(connection, kept, "old")
    age(connection, kept)
    topics.append_sync(application, kept, [Message(b"open")])
    assert len(maintain(connection, kept).dropped) == 1
    application.commit()
    append(connection, kept, "old")
    age(connection, kept)
    application.execute("select pg_advisory_xact_lock(headwater.topic_lock_key(%s, 1))", [kept.id])
    done = maintain(connection, kept)
    assert (done.has_rotated, len(done.hindrances)) == (False, 1)


def test_a_segment_that_is_being_written_to_is_not_closed_under_the_writer(topics_url, connection, kept):
    with closing(psycopg.connect(topics_url)) as writer, closing(connect_sync(topics_url)) as other:
        append(connection, kept, "first")
        topics.append_sync(connection, kept, [Message(b"open", "0")])
        topics.number_sync(writer, kept)
        # Who has numbered holds the partition until the commit.
        assert trim(other, kept).hindrances
        writer.commit()
        assert len(trim(other, kept).dropped) == 1


def test_a_client_that_stalls_while_it_drops_a_segment_does_not_hold_up_those_who_read(
    topics_url, connection, kept, monkeypatch
):
    """As one that is stopped, or whose network is cut: the server ends its session, and its locks with it."""
    append(connection, kept, "old")
    age(connection, kept)
    connection.execute("set lock_timeout = '10s'")
    drop = retention._drop_chosen
    read = []

    def drop_and_stall(*arguments):
        dropped = drop(*arguments)
        read.extend(read_from(connection, kept, [0, 0]))
        return dropped

    monkeypatch.setattr(retention, "_drop_chosen", drop_and_stall)
    monkeypatch.setattr("headwater.postgres.latest.IDLE_TIMEOUT", timedelta(seconds=1))
    with closing(connect_sync(topics_url)) as client, pytest.raises(psycopg.Error):
        maintain(client, kept)
    assert len(read) == 2
    assert segments(connection, kept) == [0, 1]


def test_trim_drops_whole_segments_before_a_time(connection, kept):
    append(connection, kept, "old")
    age(connection, kept, "1 day")
    maintain(connection, kept)
    read_up(connection, kept, to=0)
    append(connection, kept, "new")
    yesterday = datetime.now(UTC) - timedelta(hours=1)
    assert [one.segment for one in trim(connection, kept, yesterday, dry_run=True).dropped] == []
    append(connection, kept, "newer")
    assert bounds(connection, kept)[0] == (1, 3)
    soon = datetime.now(UTC) + timedelta(hours=1)
    assert [one.segment for one in trim(connection, kept, soon, dry_run=True).dropped] == [1]
    assert bounds(connection, kept)[0] == (1, 3)
    assert [one.segment for one in trim(connection, kept, soon).dropped] == [1]
    assert bounds(connection, kept) == [(3, 3), (3, 3)]


def test_trim_drops_whole_segments_before_an_offset_or_all(connection, kept):
    append(connection, kept, "0", "1", "2")
    assert trim(connection, kept, 2).dropped == ()
    assert len(trim(connection, kept, 3).dropped) == 1
    append(connection, kept, "3")
    assert len(trim(connection, kept).dropped) == 1
    assert bounds(connection, kept) == [(4, 4), (4, 4)]
    assert trim(connection, kept).dropped == ()


def test_what_is_appended_while_a_topic_is_trimmed_stays(connection, kept, monkeypatch):
    append(connection, kept, "old")
    limit = datetime.now(UTC) + timedelta(hours=1)

    def rotate_late(own, topic, current):
        append(connection, kept, "new")
        connection.execute(
            f"update headwater.topic_log_{kept.id} set created_at = %s where last_offset = 1",  # noqa: S608
            [limit + timedelta(hours=1)],
        )
        return rotate(own, topic, current)

    rotate = retention._rotate
    monkeypatch.setattr(retention, "_rotate", rotate_late)
    assert trim(connection, kept, limit).dropped == ()
    assert [one.payload for one in read_log(connection, kept)] == [b"old", b"new"] * 2


def test_producers_that_are_long_gone_are_forgotten(connection, kept):
    connection.execute(
        """insert into headwater.topic_producer (topic_id, producer, sequence, first_offsets, appended_at)
           select %s, gen_random_uuid(), days, '{0}', now() - make_interval(days => days)
             from generate_series(0, 2) as days""",
        [kept.id],
    )
    maintain(connection, kept)
    assert connection.execute("select array_agg(sequence) from headwater.topic_producer").fetchone() == ([0],)


def test_what_cannot_be_done_in_a_transaction_is_refused_there(application, kept):
    application.execute("select 1")
    for refused in (maintain, trim):
        with pytest.raises(SettingsError, match="not in a transaction"):
            refused(application, kept)


def test_a_time_without_a_zone_is_refused(connection, kept):
    with pytest.raises(TopicError, match="has no time zone; give it one"):
        trim(connection, kept, datetime(2026, 1, 1))
