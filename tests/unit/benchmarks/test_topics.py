"""The benchmark of topics: what is offered, what counts as keeping up, and a reference that is what it says it is."""

import statistics
from datetime import UTC, datetime
from itertools import islice

import pytest

from benchmarks.topics.__main__ import PARTS
from benchmarks.topics.load import LARGE, SINGLE, SMALL, Load, Reads, Writes
from benchmarks.topics.reference_log import CODED, FIXED
from benchmarks.topics.sustained_load import keeps_up, over_reference
from benchmarks.topics.testbed import Meter, Turn


def test_each_group_of_bars_has_a_part():
    assert [*PARTS] == ["small", "large", "writers", "idle", "horizon", "append", "spark", "steady"]


def test_the_shapes_are_those_of_the_original():
    assert (SMALL.partitions, SMALL.writers, SMALL.groups, SMALL.readers) == (4, 10, 5, 4)
    assert (SMALL.write_batch, SMALL.read_batch, SMALL.payload_bytes) == (100, 200, 1024)
    assert (LARGE.partitions, LARGE.writers, LARGE.groups, LARGE.readers) == (30, 100, 5, 30)
    assert (LARGE.write_batch, LARGE.read_batch) == (200, 200)
    assert (SINGLE.partitions, SINGLE.writers, SINGLE.write_batch) == (1, 64, 1)


def test_all_writers_together_offer_the_rate_and_take_turns():
    load = SMALL.at(5_000, 2.0)
    due = sorted(at for writer in range(load.writers) for at in load.due(writer, 0.0))
    assert len(due) * load.write_batch == pytest.approx(10_000, abs=load.write_batch)
    assert due[:3] == pytest.approx([0.0, 0.02, 0.04])


def test_without_a_rate_the_next_batch_is_due_at_once():
    due = list(islice(SMALL.at(None, 1e12).due(0, 0.0), 3))
    assert len(due) == 3


def test_messages_have_the_size_of_the_original_and_say_when_they_were_due():
    payloads = SMALL.payloads(12.5)
    assert {len(payload) for payload in payloads} == {1024}
    assert len(set(payloads)) == 100
    reads = Reads()
    reads.note(payloads + SMALL.payloads(13.5)[:50], datetime.now(UTC))
    assert reads.due.tolist() == [12.5] * 100 + [13.5] * 50
    assert reads.count == len(reads.age) == len(reads.server_age) == 150
    assert (reads.due + reads.age).tolist() == pytest.approx([reads.ended] * 150)
    assert 0 <= reads.server_age[0] < 60


def test_as_coded_about_half_of_the_sleeps_of_the_reference_are_none_and_with_its_sleep_fixed_no_one_is():
    coded = [CODED._rest() for _ in range(20_000)]
    assert sum(rest == 0 for rest in coded) / len(coded) == pytest.approx(0.474, abs=0.02)
    fixed = [FIXED._rest() for _ in range(20_000)]
    assert 0.0001 <= min(fixed) <= max(fixed) <= 0.002
    assert statistics.mean(fixed) == pytest.approx(0.00105, abs=0.0001)


def turn(*, ages: list[float], written: int = 1_000, received: int | None = None) -> Turn:
    """One of a load of 1,000 messages in 10 seconds, one group of which received each with an age."""
    load = Load(writers=1, write_batch=1, groups=1, rate=100, seconds=10.0)
    reads = Reads(count=len(ages[:received]))
    for number, age in enumerate(ages[:received]):
        reads.runs.extend((number / 100, age, age, 1))
    return Turn(load, Writes(count=written), [reads], Meter(10, 1, 0, 0, 0))


def test_a_load_is_kept_up_with_if_all_of_it_is_received_soon():
    assert keeps_up(turn(ages=[0.01] * 1_000))


def test_a_message_that_a_group_does_not_receive_is_not_keeping_up():
    assert not keeps_up(turn(ages=[0.01] * 1_000, received=999))


def test_writers_that_fall_behind_are_not_keeping_up():
    assert not keeps_up(turn(ages=[0.01] * 900, written=900))


def test_messages_that_come_after_more_than_a_second_are_not_keeping_up():
    assert not keeps_up(turn(ages=[0.01, 0.01, 0.01, 1.5] * 250))


def test_messages_that_get_older_while_it_goes_on_are_not_keeping_up():
    assert not keeps_up(turn(ages=[number / 1_000 * 0.9 for number in range(1_000)]))


def test_ours_is_compared_with_the_better_of_the_two_references():
    assert over_reference({"coded": 1_000, "fixed": 2_000, "ours": 6_000}) == 3
