"""Changes that wait on disk: they come back as they were, in ranges of any bounds."""

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import SourceError
from headwater.model import Lsn, Position
from headwater.postgres.replication.cut import Index
from headwater.spark.sources.held import Held
from tests.support.capture import pgoutput_writer as write
from tests.support.capture.change_streams import changes_of, relation, streams
from tests.support.capture.recordings import batches


@given(streams(), st.integers(0, 400))
def test_ranges_give_what_was_put_in_and_nothing_twice(stream, most):
    pieces = [batch for batch in batches(stream, 60) if batch.changes]
    if not pieces:
        return
    held, limit = Held(None), Index.of(pieces[-1]).end
    for piece in pieces:
        held.add(piece)
    found, start = [], Position(Lsn(0), 0)
    while start < limit:
        end = held.bound(start, limit, most)
        assert end > start
        found += changes_of(held.between(start, end))
        held.forget(end)
        start = end
    held.close()
    assert found == changes_of(pieces)


def test_a_directory_without_room_is_an_error_with_the_remedy():
    stream = [write.begin(1, 0), relation(16401), write.insert(16401, ["1", None]), write.commit(1, 2)]
    (batch,) = (batch for batch in batches(stream) if batch.changes)
    with closing(Held(None)) as held, Path("/dev/full").open("wb", buffering=0) as full:
        held._file.close()
        held._file = full
        with pytest.raises(SourceError, match=r"No space left on device; make room there"):
            held.add(batch)
