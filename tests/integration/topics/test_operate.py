"""What operators do from programs, with connections of both kinds."""

import inspect

import pytest

from headwater import topics
from headwater.errors import TopicError
from headwater.topics import Message
from headwater.topics.message import partition_of
from tests.support.topics.subscribers import numbers, reading

BY_NAME = ("find_group", "drop_group", "pause", "resume", "list_dead", "replay_dead")
# What others take.
MORE = {"seek": ("orders", "billing", "earliest"), "add_partitions": ("orders", 3), "number": ("orders",)}


@pytest.fixture
async def billing(topics_url, connection, orders):
    """A group that has read the two messages of each partition, and given up the first; returns their numbers."""
    first, second = ([n for n in range(100) if partition_of(str(n).encode(), 2) == partition][:2] for partition in (0, 1))
    topics.append_sync(connection, orders, [Message(n, key=str(n)) for n in (*first, *second)])
    async with reading(topics_url, "orders", "billing") as member:
        batch = await member.next()
        await batch.dead(batch.messages[0], "not now")
        await batch.commit()
    return first, second


async def test_an_async_connection_does_all_that_one_that_is_not_does(
    topics_url, connection, async_connection, orders, billing
):
    first, second = billing
    assert await topics.list_topics(async_connection) == topics.list_topics_sync(connection) == [orders]
    (group,) = await topics.list_groups(async_connection, "orders")
    assert [group] == await topics.list_groups(async_connection) == topics.list_groups_sync(connection, "orders")
    assert await topics.find_group(async_connection, "orders", "billing") == group
    lags = await topics.read_lag(async_connection, "orders", "billing")
    assert [(lag.partition, lag.next_offset, lag.lag) for lag in lags] == [(0, 2, 0), (1, 2, 0)]

    await topics.pause(async_connection, "orders", "billing")
    assert topics.find_group_sync(connection, "orders", "billing").is_paused
    await topics.resume(async_connection, "orders", "billing")
    assert not topics.find_group_sync(connection, "orders", "billing").is_paused

    assert await topics.seek(async_connection, "orders", "billing", 1) == {0: 1, 1: 1}
    assert await topics.seek(async_connection, "orders", "billing", "earliest", partition=1) == {1: 0}
    (letter,) = await topics.list_dead(async_connection, "orders", "billing")
    assert [letter] == topics.list_dead_sync(connection, "orders", "billing")
    assert await topics.replay_dead(async_connection, "orders", "billing") == 1
    assert await topics.list_dead(async_connection, "orders", "billing") == []
    async with reading(topics_url, "orders", "billing") as member:
        found = await member.collect(4)
    assert sorted(numbers(found)) == sorted([first[1], *second, first[0]])
    assert [one.headers for one in found if one.headers] == [{"headwater-replay": "billing/0/0"}]

    await topics.drop_group(async_connection, "orders", "billing")
    assert topics.list_groups_sync(connection) == []


async def test_what_is_replayed_in_a_transaction_that_rolls_back_stays_where_it_is(
    topics_url, async_connection, orders, billing
):
    before = await topics.list_dead(async_connection, "orders", "billing")
    async with async_connection.transaction(force_rollback=True):
        assert await topics.replay_dead(async_connection, "orders", "billing") == 1
    assert await topics.list_dead(async_connection, "orders", "billing") == before != []


async def test_who_seeks_in_a_transaction_moves_a_group_with_the_commit(connection, async_connection, billing):
    async with async_connection.transaction(force_rollback=True):
        assert await topics.seek(async_connection, "orders", "billing", "earliest") == {0: 0, 1: 0}
    assert [lag.next_offset for lag in topics.read_lag_sync(connection, "orders", "billing")] == [2, 2]
    async with async_connection.transaction():
        await topics.seek(async_connection, "orders", "billing", "earliest")
        assert [lag.next_offset for lag in topics.read_lag_sync(connection, "orders", "billing")] == [2, 2]
    assert [lag.next_offset for lag in topics.read_lag_sync(connection, "orders", "billing")] == [0, 0]


@pytest.mark.parametrize("name", [*BY_NAME, "seek", "add_partitions", "number"])
async def test_a_connection_of_the_other_kind_is_refused_by_each_with_its_partner(connection, async_connection, name):
    with pytest.raises(TopicError, match=rf"^{name} needs a psycopg.AsyncConnection.*; use {name}_sync with it"):
        await getattr(topics, name)(connection, *MORE.get(name, ("orders", "billing")))
    with pytest.raises(TopicError, match=rf"^{name}_sync needs a psycopg.Connection.*; use {name} with it"):
        getattr(topics, f"{name}_sync")(async_connection, *MORE.get(name, ("orders", "billing")))


@pytest.mark.parametrize("name", ["list_topics", "list_groups", "read_lag"])
async def test_so_it_is_by_those_that_list(connection, async_connection, name):
    with pytest.raises(TopicError, match=rf"; use {name}_sync with it"):
        await getattr(topics, name)(connection)
    with pytest.raises(TopicError, match=rf"; use {name} with it"):
        getattr(topics, f"{name}_sync")(async_connection)


def test_each_function_that_is_async_has_a_partner_that_takes_the_same():
    names = [name for name in topics.__all__ if inspect.iscoroutinefunction(getattr(topics, name))]
    assert {"append", "create", "seek", *BY_NAME} <= set(names)
    for name in names:
        ours, theirs = (inspect.signature(getattr(topics, one)).parameters for one in (name, f"{name}_sync"))
        assert [(one.name, one.kind, one.default) for one in ours.values()] == [
            (one.name, one.kind, one.default) for one in theirs.values()
        ]
