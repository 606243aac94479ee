"""What the rows of the consumer's tables mean."""

from headwater.creek.consumer.statements import Join, Place, Subscription
from headwater.model import Lsn, Snapshot, SnapshotRead


def subscription(**given: object) -> Subscription:
    known: dict[str, object] = {
        "topic": "shop.public.orders",
        "target": "public.orders",
        "lsn": None,
        "at": None,
        "is_active": True,
        "stream": "CREEK_wal",
        "identity": "then",
        "sequence": 5,
        "begun": None,
        "generation": 1,
        "is_behind": False,
        "snapshot": None,
        "until_lsn": None,
        "skip_lsn": None,
        "error": None,
        "read_to": None,
        "read_begun": None,
    }
    return Subscription(**{**known, **given})  # type: ignore[arg-type]


def test_a_table_that_goes_with_its_stream_is_as_far_as_that_was_read():
    one = subscription(read_to=9, read_begun=7, begun=4)
    assert one.place == Place("CREEK_wal", "then", 9, {"shop.public.orders": 7})


def test_a_table_that_is_behind_is_where_it_is_itself():
    one = subscription(is_behind=True, read_to=9, begun=4)
    assert one.place == Place("CREEK_wal", "then", 5, {"shop.public.orders": 4})


def test_a_table_may_be_ahead_of_what_was_written_down_of_its_stream():
    assert subscription(read_to=3, read_begun=2).place == Place("CREEK_wal", "then", 5)


def test_a_table_that_was_never_begun_has_no_place():
    assert subscription(sequence=None).place is None


def test_a_join_ends_where_the_rows_hold_no_message():
    read = SnapshotRead(Snapshot.parse("10:20:12"), Lsn(500))
    assert Join(read).end == Lsn(500)
    assert Join(skip_lsn=Lsn(500)).end == Lsn(501)
    assert Join(read, Lsn(499)).end == Lsn(500)
    assert Join().end is None


def test_a_subscription_tells_its_join():
    one = subscription(snapshot="10:20:12", until_lsn=Lsn(500), skip_lsn=Lsn(7))
    assert one.join == Join(SnapshotRead(Snapshot.parse("10:20:12"), Lsn(500)), Lsn(7))
