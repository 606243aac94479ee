"""Connections that are given up while they are made, or used."""

import asyncio
import gc

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from headwater.postgres.connect import connect
from headwater.postgres.session import hang_up
from tests.support.topics.subscribers import until


@pytest.fixture
def uncollected():
    """Whatever is left open is not closed by chance."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_one_who_is_cancelled_while_it_connects_leaves_no_connection_behind(uncollected):
    asked, gone = asyncio.Event(), asyncio.Event()

    async def take(reader, writer):
        """A server that takes its time: it goes on when the client has given up."""
        await reader.read(8)
        asked.set()
        await given_up.wait()
        # What is no answer ends the attempt.
        writer.write(b"x")
        while await reader.read(1024):
            pass
        gone.set()
        writer.close()

    given_up = asyncio.Event()
    server = await asyncio.start_server(take, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        task = asyncio.create_task(connect(f"host=127.0.0.1 port={port} user=x dbname=x"))
        await asked.wait()
        task.cancel()
        # As long as somebody has the error, and so where it came from.
        with pytest.raises(asyncio.CancelledError) as raised:
            await task
        given_up.set()
        async with asyncio.timeout(10):
            await gone.wait()
        assert raised


async def test_what_is_given_up_is_over_when_the_event_loop_may_end(database):
    before = asyncio.all_tasks()
    task = asyncio.create_task(connect(database))
    # It has begun then, and no server is that quick.
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks() - before) == 2
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert asyncio.all_tasks() == before


async def test_one_who_is_cancelled_when_its_connection_is_lost_is_cancelled(database):
    """Otherwise those who go on after a lost connection would do so for ever."""
    async with await connect(database) as connection:
        task = asyncio.create_task(connection.execute("select pg_sleep(60)"))
        await until(lambda: connection.info.transaction_status == TransactionStatus.ACTIVE)
        hang_up(connection)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with await connect(database) as connection:
        with pytest.raises(psycopg.OperationalError):
            await connection.execute("select pg_terminate_backend(pg_backend_pid())")
