"""The slot of a pipeline: a lost one is given up, unless whoever does that is to stop."""

from contextlib import closing
from threading import Event, Timer

import pytest

from headwater.capture.slots import SourceSlot, ensure_slot, renew_slot
from headwater.capture.tables import TableStore, prepare_tables
from headwater.errors import SlotActive
from headwater.model import Lsn
from headwater.postgres.connect import connect_sync
from headwater.postgres.replication.slot import find_slot
from headwater.postgres.replication.stream import ReplicationConnection


@pytest.fixture
def source(database):
    """A pipeline's slot, which is there."""
    with closing(connect_sync(database)) as connection:
        connection.execute("create table item (id int primary key)")
    prepare_tables(database)
    source = SourceSlot(database, "hw", "hw", ("public.item",))
    with closing(TableStore(database, "shop")) as store:
        ensure_slot(source, store)
    return source


def _stream(source):
    """Somebody reads it."""
    options = {"proto_version": "1", "publication_names": source.publication}
    return ReplicationConnection(source.url).start(source.slot, Lsn(0), options)


def test_a_slot_that_somebody_reads_is_not_waited_for_by_one_who_is_to_stop(database, source):
    stopping = Event()
    timer = Timer(0.5, stopping.set)
    with closing(_stream(source)), closing(TableStore(database, "shop")) as store:
        before = store.slot()
        timer.start()
        with pytest.raises(SlotActive, match="'hw' is in use"):
            renew_slot(source, store, "lost", stopping)
        assert store.slot() == before
    with closing(connect_sync(database)) as connection:
        assert find_slot(connection, "hw") is not None


def test_a_slot_is_renewed_when_its_reader_has_gone(database, source):
    stream = _stream(source)
    timer = Timer(0.5, stream.close)
    with closing(TableStore(database, "shop")) as store:
        before = store.slot()
        timer.start()
        after = renew_slot(source, store, "lost", Event())
        assert before is not None and after.generation != before.generation
        assert after.since is not None and store.slot() == after
