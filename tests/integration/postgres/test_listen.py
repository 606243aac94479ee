"""Listening to a real server, through the loss of the connection."""

import asyncio
import logging
import os
import shutil
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import mkdtemp
from urllib.parse import urlsplit

import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.errors import SourceError
from headwater.postgres.backoff import Backoff
from headwater.postgres.connect import connect
from headwater.postgres.listen import Heard, Listening, ListenSettings, Notification, listen
from tests.support.servers.embedded import postgres_settings, shared_place
from tests.support.topics.subscribers import until


def settings(url, *channels, **changes):
    quick = {"backoff": Backoff(timedelta(milliseconds=1), timedelta(milliseconds=20))}
    return ListenSettings(url=url, channels=channels or ("jobs",), **(quick | changes))


async def notify(url, channel, payload):
    connection = await connect(url)
    async with connection:
        await connection.execute("select pg_notify(%s, %s)", [channel, payload])
        return connection.info.backend_pid


async def terminate(url, pid):
    connection = await connect(url)
    async with connection:
        await connection.execute("select pg_terminate_backend(%s, 5000)", [pid])


async def listening_pid(stream):
    marker = await anext(stream)
    assert isinstance(marker, Listening)
    return marker.backend_pid


async def test_notifications_follow_a_marker(any_database):
    async with aclosing(listen(settings(any_database, "jobs", 'odd "name" 100%'))) as stream:
        assert isinstance(await anext(stream), Listening)

        pid = await notify(any_database, "jobs", "one")
        assert await anext(stream) == Notification("jobs", "one", pid)
        pid = await notify(any_database, 'odd "name" 100%', "")
        assert await anext(stream) == Notification('odd "name" 100%', "", pid)


async def test_a_marker_comes_after_every_loss_of_the_connection(any_database):
    async with aclosing(listen(settings(any_database))) as stream:
        pids = set()
        for payload in ("a", "b", "c"):
            marker = await anext(stream)
            assert isinstance(marker, Listening)
            pids.add(marker.backend_pid)
            pid = await notify(any_database, "jobs", payload)
            assert await anext(stream) == Notification("jobs", payload, pid)
            await terminate(any_database, marker.backend_pid)

    assert len(pids) == 3


async def test_a_loss_is_logged_without_the_password(database, caplog):
    caplog.set_level(logging.WARNING)
    async with aclosing(listen(settings(database))) as stream:
        await terminate(database, await listening_pid(stream))
        assert isinstance(await anext(stream), Listening)

    assert "listening stopped, again in" in caplog.text
    assert urlsplit(database).password not in caplog.text


async def test_the_listener_is_named_in_the_server_s_list_of_sessions(database):
    async with aclosing(listen(settings(database, application_name="my relay"))) as stream:
        pid = await listening_pid(stream)
        connection = await connect(database)
        async with connection:
            found = await connection.execute("select application_name from pg_stat_activity where pid = %s", [pid])
            assert await found.fetchone() == ("my relay",)


async def test_notifications_that_come_with_a_probe_are_not_lost(database):
    async with aclosing(listen(settings(database, probe=timedelta(milliseconds=1)))) as stream:
        await anext(stream)
        sent = [str(number) for number in range(200)]

        async def send():
            connection = await connect(database)
            async with connection:
                for payload in sent:
                    await connection.execute("select pg_notify('jobs', %s)", [payload])

        sending = asyncio.create_task(send())
        heard = [getattr(await anext(stream), "payload", None) for _ in sent]
        await sending

    assert heard == sent


async def test_a_task_that_listens_can_be_cancelled_and_leaves_no_session(database):
    listening: asyncio.Queue[Heard] = asyncio.Queue()

    async def work():
        async with aclosing(listen(settings(database))) as stream:
            async for heard in stream:
                await listening.put(heard)

    task = asyncio.create_task(work())
    marker = await listening.get()
    assert isinstance(marker, Listening)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    connection = await connect(database)
    async with connection:
        # Returns false at once if the process is gone, and otherwise waits for it to go.
        await connection.execute("select pg_terminate_backend(%s, 5000)", [marker.backend_pid])
        left = await connection.execute("select count(*) from pg_stat_activity where pid = %s", [marker.backend_pid])
        assert await left.fetchone() == (0,)


async def test_a_password_that_is_wrong_from_the_start_is_an_error(database):
    url = urlsplit(database)
    wrong = url._replace(netloc=f"postgres:wrong@127.0.0.1:{url.port}").geturl()

    with pytest.raises(SourceError, match="password authentication failed"):
        await anext(listen(settings(wrong)))


@pytest.fixture
def standby():
    """A server in recovery: a cluster that was stopped in order, and told to wait for a primary that it has not got."""
    directory = Path(mkdtemp(prefix="headwater-standby-", dir=shared_place()))
    directory.chmod(0o711)
    server = EmbeddedPostgres(replace(postgres_settings(18), directory=directory / "cluster"))
    try:
        server.start()
        server.stop()
        owner = (directory / "cluster" / "data").stat()
        signal_file = directory / "cluster" / "data" / "standby.signal"
        signal_file.touch()
        os.chown(signal_file, owner.st_uid, owner.st_gid)
        with server:
            yield server.url
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def test_a_standby_which_nobody_can_listen_to_is_an_error_at_once(standby):
    with pytest.raises(SourceError, match=r"does not let us listen: .* recovery; connect to the primary") as caught:
        async with asyncio.timeout(10):
            await anext(listen(settings(standby)))

    assert not caught.value.retryable


async def test_a_server_that_is_not_there_yet_is_waited_for(database, unused_tcp_port, caplog):
    caplog.set_level(logging.WARNING)
    url = urlsplit(database)
    absent = url._replace(netloc=f"{url.username}:{url.password}@127.0.0.1:{unused_tcp_port}").geturl()

    async def hear() -> None:
        await anext(listen(settings(absent)))

    hearing = asyncio.create_task(hear())
    await until(lambda: caplog.text.count("listening stopped") > 1)
    assert not hearing.done()
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)
