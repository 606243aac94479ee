"""The lease of a pipeline on a real server: one holder at a time, and one that lost it knows."""

from contextlib import closing
from threading import Event, Thread

import pytest

from headwater.errors import ConnectionLost, HeadwaterError, SettingsError
from headwater.model import Lsn, Position
from headwater.postgres.connect import connect_sync
from headwater.postgres.migrate import Component, migrate
from headwater.spark.lease import Lease
from headwater.spark.state import Phase, Report, claim_slot, fetch_report, pause, resume, save_report
from tests.support.servers.tcp_proxy import Proxy
from tests.support.waiting import eventually


@pytest.fixture
def connection(database):
    with closing(connect_sync(database)) as opened:
        migrate(opened, Component.of("headwater.spark"))
        save_report(opened, "shop", "shop", Report(phase=Phase.STOPPED))
        yield opened


@pytest.fixture
def leases(database):
    """Makes leases of a pipeline, and releases them at the end."""
    made = []

    def make(pipeline="shop", url=database):
        made.append(Lease(url, pipeline))
        return made[-1]

    yield make
    for lease in made:
        lease.release()


def test_one_run_at_a_time_holds_a_pipeline(connection, leases):
    first, second = leases(), leases()

    assert first.take()
    assert first.is_held
    assert not second.take()
    assert not second.is_held
    assert leases("another").take()


def test_a_lease_that_is_released_can_be_taken_at_once(connection, leases):
    for _ in range(50):
        lease = leases()
        assert lease.take()
        lease.release()


def test_whoever_stands_by_can_tell_who_runs(connection, leases):
    first, second = leases(), leases()
    first.take()
    second.take()

    holder = second.holder()

    pids = connection.execute("select pid from pg_locks where locktype = 'advisory' and granted").fetchall()
    assert holder is not None
    assert [(holder.pid,)] == pids


def test_a_lease_that_is_released_goes_to_the_one_that_waits(connection, leases):
    first, second = leases(), leases()
    first.take()
    waiting = Thread(target=second.wait, args=[Event()])
    waiting.start()
    assert not second.is_held

    first.release()

    waiting.join()
    assert second.is_held
    assert not first.is_held


def test_waiting_ends_when_asked_to_stop(connection, leases):
    first, second, stopping = leases(), leases(), Event()
    first.take()
    stopping.set()

    assert not second.wait(stopping)


def test_a_holder_whose_session_was_ended_knows_it_within_the_time_that_the_next_one_waits(connection, leases):
    first, second = leases(), leases()
    first.take()
    connection.execute("select pg_terminate_backend(pid, 5000) from pg_locks where locktype = 'advisory'")
    assert second.take()
    save_report(connection, "shop", "shop", Report(phase=Phase.RUNNING))

    second.let_go_before(Event())

    assert not first.is_held
    assert second.is_held


def test_a_run_that_has_said_its_end_is_not_waited_for(connection, leases, monkeypatch):
    lease = leases()
    lease.take()
    waited = []
    monkeypatch.setattr(Event, "wait", lambda _self, seconds=None: waited.append(seconds))

    lease.let_go_before(Event())

    assert 2.0 not in waited


def test_a_holder_that_is_cut_off_in_silence_gives_up_before_the_server_does(connection, leases, database):
    with Proxy(database) as proxy:
        lease = leases(url=proxy.url)
        lease.take()
        proxy.freeze()
        eventually(lambda: not lease.is_held, seconds=15)
        held = connection.execute("select 1 from pg_locks where locktype = 'advisory' and granted").fetchall()
        assert held != []


def test_waiting_outlasts_a_server_that_is_away_and_a_single_try_does_not(connection, leases, database):
    with Proxy(database) as proxy:
        proxy.refuse = True
        lease = leases(url=proxy.url)
        with pytest.raises(ConnectionLost):
            lease.take()
        waiting = Thread(target=lease.wait, args=[Event()])
        waiting.start()
        proxy.refuse = False
        waiting.join()
        assert lease.is_held


def test_a_holder_learns_that_its_pipeline_is_paused_and_that_it_goes_on(connection, leases):
    lease = leases()
    lease.take()
    assert not lease.is_paused

    since = pause(connection, "shop")
    eventually(lambda: lease.is_paused, seconds=5)
    assert pause(connection, "shop") == since

    assert resume(connection, "shop") == since
    eventually(lambda: not lease.is_paused, seconds=5)
    assert resume(connection, "shop") is None


def test_a_report_does_not_end_a_pause(connection):
    pause(connection, "shop")

    save_report(connection, "shop", "shop", Report(phase=Phase.STARTING))

    saved = fetch_report(connection, "shop")
    assert saved is not None
    assert saved.paused_at is not None


def test_a_pipeline_that_never_ran_cannot_be_paused(connection, database):
    with pytest.raises(HeadwaterError, match="has never run"):
        pause(connection, "another")


def claim(connection, pipeline, slot, system="1", owns=False):
    claim_slot(connection, pipeline, slot, system_identifier=system, publication="shop", owns_publication=owns)


def test_a_slot_that_another_pipeline_reads_is_refused_by_its_name(connection):
    claim(connection, "shop", "one")

    with pytest.raises(SettingsError, match=r"slot 'one' is read by pipeline 'shop'.*name another slot for 'copy'"):
        claim(connection, "copy", "one")
    claim(connection, "copy", "one", system="2")
    claim(connection, "shop", "two")
    claim(connection, "third", "one")


def test_the_position_of_a_pipeline_goes_with_its_slot(connection):
    claim(connection, "shop", "one")
    save_report(connection, "shop", "one", Report(phase=Phase.STOPPED, position=Position(Lsn(7), 1)))

    claim(connection, "shop", "one")
    saved = fetch_report(connection, "shop")
    assert saved is not None
    assert saved.report.position == Position(Lsn(7), 1)

    claim(connection, "shop", "two")
    saved = fetch_report(connection, "shop")
    assert saved is not None
    assert saved.report.position is None


def test_a_publication_that_was_made_once_stays_ours_until_another_is_read(connection):
    claim(connection, "shop", "one", owns=True)
    claim(connection, "shop", "one", owns=False)
    saved = fetch_report(connection, "shop")
    assert saved is not None
    assert saved.owns_publication

    claim_slot(connection, "shop", "one", system_identifier="1", publication="other", owns_publication=False)
    saved = fetch_report(connection, "shop")
    assert saved is not None
    assert not saved.owns_publication
