"""What is called with the wrong thing: TopicError says what is right, and nothing is written."""

import pytest

from headwater import topics
from headwater.errors import TopicError
from headwater.topics import Message


@pytest.mark.parametrize("name", [None, 5, b"orders"])
async def test_a_topic_is_found_by_a_string_and_by_nothing_else(topics_url, connection, async_connection, orders, name):
    said = "a topic is named by a string, not by"
    with pytest.raises(TopicError, match=said):
        await topics.find(async_connection, name)
    with pytest.raises(TopicError, match=said):
        await topics.append(async_connection, name, [Message(1)])
    with pytest.raises(TopicError, match=said):
        topics.append_sync(connection, name, [Message(1)])
    with pytest.raises(TopicError, match=said):
        topics.add_partitions_sync(connection, name, 3)
    with pytest.raises(TopicError, match=said):
        await topics.Producer(topics_url, name).__aenter__()
    with pytest.raises(TopicError, match=said):
        await topics.Subscriber(topics_url, name, group="billing").__aenter__()
    assert connection.execute("select count(*) from headwater.topic_staged").fetchone() == (0,)


@pytest.mark.parametrize(
    "act", [topics.pause_sync, topics.resume_sync, topics.drop_group_sync, topics.list_dead_sync, topics.replay_dead_sync]
)
def test_a_group_is_found_by_a_string_and_by_nothing_else(connection, orders, act):
    connection.execute(
        "insert into headwater.topic_group (topic_id, name, mode) values (%s, 'billing', 'partition')", [orders.id]
    )
    with pytest.raises(TopicError, match="a group is named by a string, not by None"):
        act(connection, "orders", None)
    assert [one.is_paused for one in topics.list_groups_sync(connection)] == [False]


@pytest.mark.parametrize("topic", ["orders", None])
async def test_a_connection_of_the_other_kind_is_refused_with_the_function_for_it(
    connection, async_connection, orders, topic
):
    given = topic or orders
    with pytest.raises(TopicError, match=r"append needs a psycopg.AsyncConnection.*; use append_sync with it"):
        await topics.append(connection, given, [Message(1)])
    with pytest.raises(TopicError, match=r"append_sync needs a psycopg.Connection.*; use append with it"):
        topics.append_sync(async_connection, given, [Message(1)])
    with pytest.raises(TopicError, match="use create_sync with it"):
        await topics.create(connection, "new")
    with pytest.raises(TopicError, match="use find with it"):
        topics.find_sync(async_connection, "orders")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"retention": 5}, "retention is a timedelta, or a text such as '7 days', not 5"),
        ({"partitions": "3"}, "partitions is a whole number, not '3'"),
        ({"partitions": True}, "partitions is a whole number, not True"),
        ({"max_bytes": 1.5}, "max_bytes is a whole number, not 1.5"),
        ({"retention_bytes": "10GiB"}, "retention_bytes is a whole number, not '10GiB'"),
        ({"compression": None}, "compression is none or zstd, not None"),
    ],
)
def test_a_topic_is_not_made_of_values_of_other_types(application, wrong, said):
    with pytest.raises(TopicError, match=said):
        topics.create_sync(application, "new", **wrong)
    assert topics.list_topics_sync(application) == []


@pytest.mark.parametrize("messages", [Message(1), None, 5])
async def test_messages_are_given_as_a_list(topics_url, application, orders, messages):
    said = rf"messages are given as a list, not as a {type(messages).__name__}; write \[Message"
    with pytest.raises(TopicError, match=said):
        topics.append_sync(application, "orders", messages)
    async with topics.Producer(topics_url, "orders") as producer:
        with pytest.raises(TopicError, match=said):
            await producer.send_many(messages)
    assert application.execute("select 1").fetchone() == (1,)


def test_what_was_read_is_appended_elsewhere_as_a_message_of_its_own(connection, orders):
    read = Message(b"1", "k", {"a": "b"}, partition=0, offset=3)
    with pytest.raises(TopicError, match="the message has a place already"):
        topics.append_sync(connection, orders, [read])
    topics.append_sync(connection, orders, [Message(read.payload, read.key, read.headers)])
    assert topics.number_sync(connection, orders) == 1
