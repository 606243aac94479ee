"""Which of a producer's limits go for which of its streams."""

from datetime import timedelta

from headwater.brokers.nats.streams import StreamLimits
from headwater.creek.names import Kind
from headwater.creek.streams import limits_of

GIVEN = StreamLimits(replicas=3, max_age=timedelta(hours=1), max_bytes=10**9, max_msgs=10**6, retention="interest")


def test_changes_have_all_limits():
    assert limits_of(Kind.WAL, GIVEN) == GIVEN


def test_snapshots_do_not_go_by_being_read():
    kept = limits_of(Kind.SNAPSHOT, GIVEN)
    assert (kept.replicas, kept.max_age, kept.max_bytes, kept.max_msgs) == (3, timedelta(hours=1), 10**9, 10**6)
    assert kept.retention is None


def test_schemas_are_kept_for_as_long_as_there_may_be_messages():
    assert limits_of(Kind.SCHEMA, GIVEN) == StreamLimits(replicas=3)
