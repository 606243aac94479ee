"""Enqueuing one by one: callers share transactions, each hears of its own job, and of its own mistakes."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

import pytest

from headwater import queue
from headwater.errors import ConnectionLost, HeadwaterError, JobError, SchemaError
from headwater.queue import Enqueuer, EnqueuerSettings
from tests.support.queue.workers import Busy, claim, keyed, quick, running, soon, states, worker_with
from tests.support.servers.tcp_proxy import Proxy
from tests.support.topics.subscribers import until

TRANSACTIONS = "select count(distinct xmin::text) from headwater.job"
LISTENERS = "select pid from pg_stat_activity where application_name = 'headwater queue bell' and query ilike '%listen%'"


async def test_a_job_is_durable_when_its_id_is_known(queue_url, connection):
    run_at = soon(hours=-1)
    async with Enqueuer(queue_url) as enqueuer:
        id = await enqueuer.enqueue("send", {"n": 1}, queue="mail", run_at=run_at, priority=5, key="k")
        (job,) = claim(connection, queue="mail")
    assert (job.id, job.payload, job.run_at, job.priority, job.key) == (id, {"n": 1}, run_at, 5, "k")


async def test_many_callers_share_few_transactions_and_each_gets_the_id_of_its_own_job(queue_url, connection):
    async def call(caller):
        return [(await enqueuer.enqueue("send", [caller, n]), [caller, n]) for n in range(20)]

    async with Enqueuer(queue_url) as enqueuer:
        given = [one for some in await asyncio.gather(*(call(caller) for caller in range(64))) for one in some]
    found = dict(connection.execute("select id, payload from headwater.job").fetchall())
    assert found == dict(given)
    assert len(found) == 64 * 20
    (transactions,) = connection.execute(TRANSACTIONS).fetchone()
    assert transactions <= 64 * 20 / 10


async def test_one_caller_does_not_wait_for_others(queue_url, connection):
    async with Enqueuer(queue_url, EnqueuerSettings(linger=timedelta(0))) as enqueuer:
        for n in range(5):
            await enqueuer.enqueue("send", n)
    assert connection.execute(TRANSACTIONS).fetchone() == (5,)


async def test_workers_are_woken_by_what_is_enqueued_so(queue_url, connection):
    worker = worker_with(Busy(), settings=quick(poll=timedelta(seconds=600)))
    async with running(worker, url=queue_url), Enqueuer(queue_url) as enqueuer:
        await until(lambda: worker.counts.sweeps >= 2 and connection.execute(LISTENERS).fetchone())
        for n in range(3):
            await enqueuer.enqueue("send", n)
            await until(lambda n=n: worker.counts.done == n + 1)


async def test_the_bell_can_be_switched_off(queue_url, connection):
    with connection.cursor():
        connection.execute("listen headwater_queue")
    async with Enqueuer(queue_url, EnqueuerSettings(rings=False)) as enqueuer:
        await enqueuer.enqueue("send")
    connection.execute("notify headwater_queue, 'last'")
    assert [one.payload for one in connection.notifies(timeout=10, stop_after=1)] == ["last"]


@pytest.mark.parametrize(
    "bad",
    [
        {"payload": object()},
        {"payload": float("inf")},
        {"payload": "\0"},
        {"payload": "x" * 2_000_000},
        {"queue": "no spaces"},
        {"queue": None},
        {"kind": ""},
        {"priority": 99},
        {"run_at": datetime(2030, 1, 1)},
        {"run_at": datetime.min.replace(tzinfo=UTC)},
        {"unique": ""},
    ],
)
async def test_a_bad_job_fails_its_own_caller_and_no_other(queue_url, connection, bad):
    async with Enqueuer(queue_url, EnqueuerSettings(linger=timedelta(milliseconds=50))) as enqueuer:
        calls = [enqueuer.enqueue("send", n) for n in range(10)]
        calls.insert(5, enqueuer.enqueue(**{"kind": "send", **bad}))
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results.pop(5), JobError)
    assert sorted(states(connection)) == results


async def test_a_key_that_only_one_may_have_is_looked_after(queue_url, connection):
    async with Enqueuer(queue_url) as enqueuer:
        calls = [enqueuer.enqueue("send", n, unique="u") for n in range(5)]
        calls += [enqueuer.enqueue("send", n, idempotency_key="i") for n in range(5)]
        ids = await asyncio.gather(*calls)
    assert len(set(ids[:5])) == len(set(ids[5:])) == 1
    assert len(states(connection)) == 2


async def test_a_connection_that_is_lost_is_made_again_and_every_job_is_there(queue_url, connection):
    with Proxy(queue_url) as proxy:
        async with Enqueuer(proxy.url) as enqueuer:
            await enqueuer.enqueue("send", -1)
            proxy.refuse = True
            proxy.cut()
            calls = [asyncio.create_task(enqueuer.enqueue("send", n, idempotency_key=str(n))) for n in range(20)]
            await asyncio.wait(calls, timeout=0.2)
            assert not any(call.done() for call in calls)
            proxy.refuse = False
            ids = await asyncio.gather(*calls)
    found = dict(connection.execute("select id, payload from headwater.job").fetchall())
    assert [found[id] for id in ids] == list(range(20))
    assert len(found) == 21


async def test_an_answer_that_is_lost_makes_no_second_job_of_an_idempotency_key(queue_url, connection):
    with Proxy(queue_url) as proxy:
        async with Enqueuer(proxy.url, EnqueuerSettings(answer_within=timedelta(milliseconds=500), rings=False)) as enqueuer:
            # For which it prepares what it says.
            for n in range(3):
                await enqueuer.enqueue("send", n, idempotency_key=str(n))
            proxy.mute = True
            call = asyncio.create_task(enqueuer.enqueue("send", "once", idempotency_key="x"))
            await until(lambda: len(states(connection)) == 4)
            proxy.mute = False
            id = await call
    assert max(states(connection)) == id
    assert len(states(connection)) == 4


async def test_a_server_that_stays_away_is_given_up(queue_url):
    with Proxy(queue_url) as proxy:
        settings = EnqueuerSettings(give_up_after=timedelta(milliseconds=300), close_within=timedelta(seconds=1))
        async with Enqueuer(proxy.url, settings) as enqueuer:
            proxy.refuse = True
            proxy.cut()
            with pytest.raises(ConnectionLost):
                await enqueuer.enqueue("send")
            proxy.refuse = False
            assert await enqueuer.enqueue("send") > 0


async def test_what_waits_when_it_is_closed_is_written_before(queue_url, connection):
    async with Enqueuer(queue_url, EnqueuerSettings(linger=timedelta(hours=1))) as enqueuer:
        calls = [asyncio.create_task(enqueuer.enqueue("send", n)) for n in range(10)]
        await asyncio.sleep(0)
    assert sorted(await asyncio.gather(*calls)) == sorted(states(connection))
    assert len(states(connection)) == 10


async def test_all_who_wait_hear_of_it_when_it_is_closed_and_the_server_is_away(queue_url):
    """Also those for whom there was no room yet."""
    with Proxy(queue_url) as proxy:
        settings = EnqueuerSettings(close_within=timedelta(milliseconds=200), waiting_jobs=3, batch_jobs=2)
        async with Enqueuer(proxy.url, settings) as enqueuer:
            proxy.refuse = True
            proxy.cut()
            calls = [asyncio.create_task(enqueuer.enqueue("send", n)) for n in range(10)]
            await asyncio.wait(calls, timeout=0.1)
        results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 10)
    assert all(isinstance(result, HeadwaterError) for result in results)


async def test_no_more_wait_than_may_and_all_are_enqueued(queue_url, connection):
    settings = EnqueuerSettings(waiting_jobs=4, batch_jobs=2)
    async with Enqueuer(queue_url, settings) as enqueuer:
        calls = [asyncio.create_task(enqueuer.enqueue("send", n)) for n in range(50)]
        await asyncio.sleep(0)
        assert len(enqueuer._waiting) <= 4
        await asyncio.gather(*calls)
    assert len(states(connection)) == 50


async def test_a_caller_that_goes_away_takes_no_other_with_it(queue_url, connection):
    async with Enqueuer(queue_url, EnqueuerSettings(linger=timedelta(milliseconds=50))) as enqueuer:
        calls = [asyncio.create_task(enqueuer.enqueue("send", n)) for n in range(5)]
        await asyncio.sleep(0)
        calls[2].cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(results.pop(2), asyncio.CancelledError)
        assert all(isinstance(id, int) for id in results)
        assert await enqueuer.enqueue("send") > 0


async def test_what_is_written_is_known_although_the_rest_of_the_batch_is_refused(queue_url, connection, monkeypatch):
    monkeypatch.setattr(sys.modules["headwater.queue.enqueue"], "_CHUNK_JOBS", 2)
    connection.execute("alter table headwater.job add constraint small check (payload <> '4')")
    async with Enqueuer(queue_url, EnqueuerSettings(linger=timedelta(milliseconds=50))) as enqueuer:
        results = await asyncio.gather(*(enqueuer.enqueue("send", n) for n in range(6)), return_exceptions=True)
        assert [isinstance(one, int) for one in results] == [True] * 4 + [False] * 2
        assert await enqueuer.enqueue("send") > 0
    assert len(states(connection)) == 5


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_role_with_another_isolation_enqueues_the_same(queue_url, connection, isolation):
    connection.execute("select set_config('search_path', current_database(), false)")
    connection.execute(
        "do $$ begin execute format('alter database %I set default_transaction_isolation = ' || quote_literal('"
        + isolation
        + "'), current_database()); end $$"
    )
    async with Enqueuer(queue_url) as one, Enqueuer(queue_url) as other:
        calls = [each.enqueue("send", n, idempotency_key=str(n % 10)) for n in range(50) for each in (one, other)]
        ids = await asyncio.gather(*calls)
    assert len(set(ids)) == len(states(connection)) == 10


async def test_it_is_used_while_it_is_open(queue_url):
    enqueuer = Enqueuer(queue_url)
    with pytest.raises(JobError, match="not open"):
        await enqueuer.enqueue("send")
    async with enqueuer:
        await enqueuer.enqueue("send")
    with pytest.raises(JobError, match="not open"):
        await enqueuer.enqueue("send")


async def test_a_database_without_a_queue_is_told_of_when_it_is_opened(database):
    with pytest.raises(SchemaError, match="headwater queue init"):
        await Enqueuer(database).__aenter__()


@pytest.mark.parametrize("name", ["unique", "idempotency_key"])
async def test_a_key_that_somebody_holds_holds_up_only_those_who_want_it(queue_url, connection, application, name):
    first = queue.enqueue_sync(application, "send", "first", **keyed(name, "taken"))
    async with Enqueuer(queue_url) as enqueuer:
        held = [asyncio.create_task(enqueuer.enqueue("send", n, **keyed(name, "taken"))) for n in range(2)]
        beside = asyncio.create_task(enqueuer.enqueue("send", "beside", **keyed(name, "free")))
        await asyncio.wait_for(beside, 10)
        for n in range(3):
            await asyncio.wait_for(enqueuer.enqueue("send", n), 10)
            await asyncio.wait_for(enqueuer.enqueue("send", n, **keyed(name, f"free {n}")), 10)
        assert not any(one.done() for one in held)
        application.commit()
        assert await asyncio.gather(*held) == [first, first]
    assert len(states(connection)) == 8


async def test_a_key_that_stays_held_is_given_up(queue_url, connection, application):
    queue.enqueue_sync(application, "send", unique="taken")
    settings = EnqueuerSettings(give_up_after=timedelta(milliseconds=100))
    async with Enqueuer(queue_url, settings) as enqueuer:
        with pytest.raises(ConnectionLost, match="another transaction holds the key"):
            await enqueuer.enqueue("send", unique="taken")
        await enqueuer.enqueue("send", "other", unique="free")
    application.rollback()
    assert len(states(connection)) == 1


async def test_who_waits_for_a_key_takes_up_room_until_he_goes_away(queue_url, connection, application):
    queue.enqueue_sync(application, "send", unique="taken")
    async with Enqueuer(queue_url, EnqueuerSettings(waiting_jobs=1)) as enqueuer:
        held = asyncio.create_task(enqueuer.enqueue("send", "held", unique="taken"))
        await until(lambda: enqueuer._held)
        other = asyncio.create_task(enqueuer.enqueue("send", "other"))
        await asyncio.sleep(0)
        assert not enqueuer._waiting
        held.cancel()
        id = await asyncio.wait_for(other, 10)
    application.rollback()
    assert list(states(connection)) == [id]


async def test_a_key_that_becomes_free_while_it_is_closed_is_enqueued(queue_url, connection, application, monkeypatch):
    queue.enqueue_sync(application, "send", unique="taken")
    tries = []
    async with Enqueuer(queue_url) as enqueuer:
        insist = enqueuer._aside.insist

        async def count_tries(*given):
            tries.append(enqueuer._is_writing)
            return await insist(*given)

        async def set_free():
            # Not in the try that was under way when it was closed.
            await until(lambda: tries.count(False) > 1 or held.done())
            application.rollback()

        monkeypatch.setattr(enqueuer._aside, "insist", count_tries)
        held = asyncio.create_task(enqueuer.enqueue("send", "held", unique="taken"))
        await until(lambda: enqueuer._held)
        setting_free = asyncio.create_task(set_free())
    await setting_free
    assert list(states(connection)) == [await held]


async def test_those_whose_key_is_held_hear_of_it_when_it_is_closed(queue_url, application):
    queue.enqueue_sync(application, "send", unique="taken")
    async with Enqueuer(queue_url, EnqueuerSettings(close_within=timedelta(milliseconds=200))) as enqueuer:
        held = asyncio.create_task(enqueuer.enqueue("send", "held", unique="taken"))
        await until(lambda: enqueuer._held)
    with pytest.raises(HeadwaterError):
        await asyncio.wait_for(held, 10)


async def test_a_key_that_somebody_holds_holds_up_none_of_those_beside_it_that_have_no_key(queue_url, connection):
    connection.execute("begin")
    connection.execute("insert into headwater.job (kind, unique_key) values ('send', 'taken')")
    async with Enqueuer(queue_url, EnqueuerSettings(linger=timedelta(milliseconds=200))) as enqueuer:
        held = asyncio.create_task(enqueuer.enqueue("send", "held", unique="taken"))
        others = [asyncio.create_task(enqueuer.enqueue("send", n)) for n in range(5)]
        assert len(set(await asyncio.gather(*others))) == 5
        assert not held.done()
        connection.execute("rollback")
        assert await held not in {other.result() for other in others}
