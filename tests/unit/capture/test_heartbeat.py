from hypothesis import given
from hypothesis import strategies as st

from headwater.capture.heartbeat import is_due
from headwater.model import Lsn

positions = st.integers(0, 2**40).map(Lsn)


@given(positions, positions, positions)
def test_no_heartbeat_is_due_unless_the_wal_grew_past_all_that_was_seen(wal_end, arrived, last):
    due = is_due(wal_end, arrived, last, 1000)
    assert due == (wal_end >= arrived + 1000 and wal_end >= last + 1000)


def test_a_heartbeat_does_not_answer_the_one_before_it():
    # What a heartbeat writes, and the records a server adds to it by itself, stay far below the threshold.
    assert is_due(Lsn(2_000_000), Lsn(0), Lsn(0), 1_048_576)
    assert not is_due(Lsn(2_000_500), Lsn(0), Lsn(2_000_000), 1_048_576)
