"""When the checkpoint is saved: not before all that it sees is delivered, and not while nothing is."""

from datetime import timedelta

from headwater.model import Lsn, Snapshot
from headwater.outbox.checkpoint import CheckpointStore
from headwater.spark.sources.outbox.saving import Saver


class Store(CheckpointStore):
    """Stands in for the database: a saver only looks around and saves."""

    def __init__(self) -> None:
        self.looked = 0
        self.saved: list[tuple[str, int, int, int]] = []

    def look_around(self):
        self.looked += 1
        return Snapshot(10 * self.looked, 10 * self.looked, frozenset()), Lsn(1000 * self.looked)

    def save_snapshot(self, generation, snapshot, lsn, timeline):
        self.saved.append((generation, snapshot.xmax, int(lsn), timeline))


def _saver():
    store, now = Store(), [0.0]
    return store, now, Saver(store, timedelta(seconds=10), lambda: now[0])


def test_a_snapshot_is_saved_only_when_everything_before_its_position_is_delivered():
    store, now, saver = _saver()
    saver.look("g", Lsn(100), Lsn(0), lambda _: 3)
    now[0] = 11
    saver.look("g", Lsn(900), Lsn(0), lambda _: 3)
    assert (store.looked, store.saved) == (1, [])
    saver.look("g", Lsn(999), Lsn(999), lambda _: 3)
    assert store.saved == []
    saver.look("g", Lsn(1000), Lsn(0), lambda _: 3)
    assert store.saved == [("g", 10, 1000, 3)]


def test_what_holds_nothing_of_ours_counts_as_delivered():
    store, now, saver = _saver()
    saver.look("g", Lsn(100), Lsn(0), lambda _: 1)
    now[0] = 11
    saver.look("g", Lsn(900), Lsn(0), lambda _: 1)
    saver.look("g", Lsn(900), Lsn(1001), lambda _: 1)
    assert len(store.saved) == 1


def test_nothing_is_looked_at_while_nothing_is_delivered():
    store, now, saver = _saver()
    for now[0] in range(0, 1000, 5):
        saver.look("g", Lsn(100), Lsn(5000), lambda _: 1)
    assert (store.looked, store.saved) == (0, [])


def test_it_is_not_saved_more_often_than_the_interval():
    store, now, saver = _saver()
    for second in range(100):
        now[0] = second
        saver.look("g", Lsn(100 + second), Lsn(10**6), lambda _: 1)
    assert len(store.saved) == 9
