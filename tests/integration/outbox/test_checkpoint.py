"""The checkpoint of an outbox in a real database: it never goes back, belongs to one run, and knows of one slot."""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest

from headwater.errors import HeadwaterError, SettingsError
from headwater.model import Lineage, Lsn, Snapshot, TimelineSwitch
from headwater.outbox.checkpoint import (
    CheckpointStore,
    find_checkpoints,
    forget_checkpoint,
    reset_checkpoint,
    take_checkpoint,
)
from headwater.postgres.connect import connect_sync

LINEAGE = Lineage("7", 1, (), "shop", "hw")
S, S2 = Snapshot(100, 100, frozenset()), Snapshot(200, 210, frozenset({205}))


@pytest.fixture
def url(any_outbox_url):
    return any_outbox_url


@pytest.fixture
def store(url):
    with closing(CheckpointStore(url, "p", take_checkpoint(url, "p", "headwater.outbox_message"))) as store:
        yield store


def _streaming(store, generation="g1"):
    store.begin_recovery(generation, LINEAGE, S, Lsn(1000), keeps=False)
    store.end_recovery(generation, None)


def test_a_recovery_is_begun_goes_on_and_ends_with_its_snapshot_as_the_checkpoint(store):
    assert store.find().phase == "new"
    store.begin_recovery("g1", LINEAGE, S, Lsn(1000), keeps=False)
    store.save_recovered("g1", ("2026-01-01", "a"), 10)
    store.save_recovered("g1", ("2026-01-02", "b"), 5)
    found = store.find()
    assert (found.phase, found.recovered_at, found.recovered_id, found.recovered) == ("recovering", "2026-01-02", "b", 15)
    assert (found.snapshot, found.recovery_snapshot) == (None, str(S))
    store.end_recovery("g1", None)
    assert (store.find().phase, store.find().snapshot, store.find().lsn) == ("streaming", str(S), Lsn(1000))


def test_what_is_told_again_after_a_crash_changes_nothing(store):
    store.begin_recovery("g1", LINEAGE, S, Lsn(1000), keeps=False)
    for _ in range(2):
        store.save_recovered("g1", ("2026-01-01", "a"), 10)
    assert store.find().recovered == 10
    for _ in range(2):
        store.end_recovery("g1", None)
    store.save_recovered("g1", ("2026-01-01", "a"), 10)
    assert (store.find().phase, store.find().recovered) == ("streaming", 10)
    store.save_delivered("g1", [300])
    store.end_recovery("g1", None)
    assert store.delivered() == (300,)


def test_what_is_told_of_a_slot_that_was_lost_changes_nothing(store):
    _streaming(store)
    store.begin_recovery("g2", LINEAGE, S2, Lsn(2000), keeps=True)
    store.save_delivered("g1", [300])
    store.save_recovered("g1", ("2026-01-01", "a"), 10)
    store.save_snapshot("g1", Snapshot(900, 900, frozenset()), Lsn(9000), 1)
    store.end_recovery("g1", None)
    found = store.find()
    assert (found.phase, found.snapshot, found.recovered, store.delivered()) == ("recovering", str(S), 0, ())


def test_delivered_transactions_stay_known_until_a_saved_snapshot_sees_them(store):
    _streaming(store)
    store.save_delivered("g1", [150, 199])
    store.save_delivered("g1", [205])
    store.save_delivered("g1", [198, 500])
    assert store.delivered() == (150, 198, 199, 205, 500)
    store.save_snapshot("g1", S2, Lsn(2000), 1)
    assert store.delivered() == (198, 205, 500)
    assert (store.find().snapshot, store.find().lsn) == (str(S2), Lsn(2000))


def test_a_snapshot_never_goes_back(store):
    _streaming(store)
    store.save_snapshot("g1", S2, Lsn(2000), 1)
    store.save_snapshot("g1", S, Lsn(1500), 1)
    assert (store.find().snapshot, store.find().lsn) == (str(S2), Lsn(2000))
    later = datetime(2026, 1, 2, tzinfo=UTC)
    store.save_newest("g1", later)
    store.save_newest("g1", later - timedelta(hours=1))
    assert store.find().newest_at == later


def test_a_lost_slot_keeps_what_was_delivered_and_a_server_of_another_history_does_not(store):
    _streaming(store)
    store.save_delivered("g1", [300])
    store.begin_recovery("g2", LINEAGE, S2, Lsn(2000), keeps=True)
    assert (store.find().snapshot, store.delivered()) == (str(S), (300,))
    store.begin_recovery("g3", LINEAGE, S2, Lsn(2000), keeps=False)
    assert (store.find().snapshot, store.delivered()) == (None, ())


def test_a_later_run_takes_the_checkpoint_from_an_earlier_one(store, url):
    take_checkpoint(url, "p", "headwater.outbox_message")
    for write in (lambda: store.save_delivered("g1", [1]), store.find, lambda: store.end_recovery("g1", None)):
        with pytest.raises(HeadwaterError, match="not this run's any more"):
            write()


def test_a_reset_forgets_everything_but_that_there_is_a_pipeline(store, url):
    _streaming(store)
    store.save_delivered("g1", [300])
    with closing(connect_sync(url)) as connection:
        reset_checkpoint(connection, "p")
        (found,) = find_checkpoints(connection)
        assert (found.phase, found.generation, found.snapshot, found.delivered) == ("new", "", None, 0)
        with pytest.raises(HeadwaterError, match="not this run's any more"):
            store.find()
        forget_checkpoint(connection, "p")
        assert find_checkpoints(connection) == []


def test_a_checkpoint_holds_for_its_own_server_and_for_the_history_that_it_is_part_of(store):
    _streaming(store)
    found = store.find()
    assert found.holds_for(LINEAGE)
    assert not found.holds_for(Lineage("8", 1, (), "shop", "hw"))
    # Promoted after the position of the checkpoint, or before it.
    assert found.holds_for(Lineage("7", 2, (TimelineSwitch(1, Lsn(1000)),), "shop", "hw"))
    assert not found.holds_for(Lineage("7", 2, (TimelineSwitch(1, Lsn(999)),), "shop", "hw"))


def test_what_has_committed_is_looked_at_before_where_the_wal_ends(store, url):
    with closing(connect_sync(url)) as connection:
        (xid,) = connection.execute("select pg_current_xact_id()::text::bigint").fetchone() or (0,)
        snapshot, end = store.look_around()
        (now,) = connection.execute("select pg_current_wal_insert_lsn()").fetchone() or (Lsn(0),)
    assert snapshot.sees(xid)
    assert end <= now


def test_a_checkpoint_of_another_table_is_not_taken_for_this_one(store, url):
    with pytest.raises(SettingsError, match=r"has delivered from headwater\.outbox_message"):
        take_checkpoint(url, "p", "headwater.emitted")


def test_a_snapshot_that_is_not_saved_forgets_no_transaction(store):
    _streaming(store)
    store.save_delivered("g1", [205])
    store.save_snapshot("g0", Snapshot(900, 900, frozenset()), Lsn(9000), 1)
    assert store.delivered() == (205,)


def test_a_promotion_does_not_make_what_was_delivered_before_unknown_at_the_next_loss(store):
    _streaming(store)
    promoted = Lineage("7", 2, (TimelineSwitch(1, Lsn(1500)),), "shop", "hw")
    store.begin_recovery("g2", promoted, S2, Lsn(2000), keeps=True)
    assert store.find().holds_for(promoted)
    store.end_recovery("g2", None)
    assert (store.find().timeline, store.find().holds_for(promoted)) == (2, True)
