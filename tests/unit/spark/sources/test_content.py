"""What a range holds, in figures, is what its changes are."""

from collections import Counter
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from headwater.spark.sources.content import Content, content_of
from tests.support.capture import pgoutput_writer as write
from tests.support.capture.change_streams import changes_of, relation, streams
from tests.support.capture.recordings import batches


@given(streams(), st.sampled_from([1, 200, 1 << 20]))
def test_the_figures_are_those_of_the_changes(stream, size):
    pieces = [batch for batch in batches(stream, size) if batch.changes]
    changes = changes_of(pieces)
    content = content_of(pieces)
    assert content.changes == len(changes)
    assert content.tables == Counter(f"{change.schema}.{change.table}" for change in changes)
    if changes:
        assert content.committed_at == changes[-1].committed_at


def test_a_transaction_without_changes_is_not_the_last_one():
    stream = [write.begin(1, 1_000_000), relation(16401), write.insert(16401, ["1", None]), write.commit(1, 2)]
    stream += [write.begin(3, 9_000_000), write.message(3, "heartbeat", b""), write.commit(3, 4)]
    assert content_of(batches(stream)).committed_at == datetime(2000, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_figures_go_to_json_and_back():
    content = Content(2, datetime(2026, 11, 15, tzinfo=UTC), {"public.a": 2})
    assert Content.from_json(content.to_json()) == content
    assert Content.from_json(Content().to_json()) == Content()
