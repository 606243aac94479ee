"""The checker of stories finds each kind of violation, and none where there is none."""

from dataclasses import replace

import pytest

from tests.support.stories.topic_history import Append, Entry, Group, History, Promise, Range

APPENDS = [*(Append("a", number) for number in range(4)), Append("a", 9, False), Append("b", 0, None)]
LOG = [Entry(0, number, "a", number) for number in range(4)]
FIRST, SECOND = Range("m1", 0, 1, tuple(LOG[:2]), True), Range("m1", 0, 1, tuple(LOG[2:]), True)
GROUP = Group("g", Promise.AT_LEAST_ONCE, [FIRST, SECOND])
ONCE = replace(GROUP, promise=Promise.EXACTLY_ONCE, effects=[(entry.key, entry.number) for entry in LOG])
SHARED = replace(GROUP, is_shared=True)


def kinds(group: Group = GROUP, *, appends: list[Append] = APPENDS, log: list[Entry] = LOG) -> set[str]:
    return {one.kind for one in History(appends, log, [group]).violations()}


def of_log(log: list[Entry]) -> set[str]:
    return {one.kind for one in History(APPENDS, log).violations()}


def of_ranges(*ranges: Range, promise: Promise = Promise.AT_LEAST_ONCE, is_shared: bool = False) -> set[str]:
    return kinds(Group("g", promise, ranges, is_shared))


@pytest.mark.parametrize("group", [GROUP, ONCE, replace(GROUP, promise=Promise.AT_MOST_ONCE), SHARED])
def test_a_run_as_it_should_be_has_none(group: Group):
    assert kinds(group) == set()


def test_a_gap_in_the_log_is_found():
    assert of_log([*LOG[:2], replace(LOG[2], offset=3), replace(LOG[3], offset=4)]) == {"gap"}


def test_an_offset_that_is_there_twice_is_found():
    assert of_log([*LOG, Entry(0, 3, "b", 0)]) == {"gap"}


def test_a_committed_append_that_is_not_in_the_log_is_found():
    assert of_log(LOG[:3]) == {"lost"}


@pytest.mark.parametrize("name", [("a", 9), ("c", 0)])
def test_a_message_that_was_rolled_back_or_never_appended_is_found(name):
    assert of_log([*LOG, Entry(0, 4, *name)]) == {"ghost"}


def test_an_append_in_doubt_may_be_there_once_and_not_twice():
    assert of_log([*LOG, Entry(0, 4, "b", 0)]) == set()
    assert of_log([*LOG, Entry(0, 4, "b", 0), Entry(0, 5, "b", 0)]) == {"repeated append"}


def test_messages_of_a_key_in_another_order_are_found():
    assert of_log([LOG[0], replace(LOG[1], number=2), replace(LOG[2], number=1), LOG[3]]) == {"order"}


def test_a_key_in_two_partitions_is_found():
    assert of_log([*LOG[:3], Entry(1, 0, "a", 3)]) == {"order"}


def test_a_message_that_no_member_got_is_found():
    assert of_ranges(FIRST) == {"lost"}


def test_a_message_that_was_skipped_between_two_batches_is_found():
    assert of_ranges(FIRST, replace(SECOND, entries=tuple(LOG[3:]))) == {"lost", "order"}


def test_a_message_that_was_skipped_inside_of_a_batch_is_found():
    assert of_ranges(FIRST, SECOND, Range("m2", 0, 2, (LOG[1], LOG[3]))) == {"gap"}


def test_an_epoch_that_begins_beyond_what_was_delivered_is_found():
    assert of_ranges(FIRST, replace(SECOND, epoch=2, entries=tuple(LOG[3:]))) == {"lost", "gap"}


def test_a_delivery_that_is_not_in_the_log_is_found():
    assert of_ranges(FIRST, SECOND, Range("m1", 0, 1, (Entry(0, 4, "x", 0),))) == {"ghost"}


def test_two_members_of_one_epoch_are_found():
    assert of_ranges(FIRST, replace(SECOND, member="m2")) == {"two owners"}


def test_members_that_take_turns_in_epochs_of_their_own_are_none():
    assert of_ranges(replace(FIRST, is_committed=None), Range("m2", 0, 2, tuple(LOG), True)) == set()


def test_in_shared_mode_members_have_ranges_of_one_partition_but_never_the_same():
    assert of_ranges(SECOND, replace(FIRST, member="m2"), is_shared=True) == set()
    overlapping = replace(FIRST, member="m2", entries=tuple(LOG[:3]), is_committed=None)
    assert of_ranges(overlapping, SECOND, is_shared=True) == {"two owners"}


def test_an_offset_that_two_members_committed_is_found():
    assert of_ranges(FIRST, SECOND, replace(SECOND, member="m2", epoch=2)) == {"committed twice"}


def test_in_shared_mode_an_offset_is_committed_twice_only_where_an_answer_may_have_been_lost():
    twice = Group("g", Promise.AT_LEAST_ONCE, [FIRST, SECOND, replace(SECOND, member="m2", epoch=2)], is_shared=True)
    assert kinds(twice) == {"committed twice"}
    assert kinds(replace(twice, doubts=1)) == set()
    assert kinds(replace(twice, doubts=1, is_shared=False)) == {"committed twice"}


def test_a_commit_that_a_crash_undid_may_be_done_again_where_it_did_not_wait_for_the_disk():
    ranges = [FIRST, SECOND, replace(SECOND, member="m2", epoch=2)]
    assert kinds(replace(GROUP, ranges=ranges, may_forget=True)) == set()


def test_a_commit_that_was_refused_may_be_done_again():
    assert of_ranges(FIRST, replace(SECOND, is_committed=False), replace(SECOND, member="m2", epoch=2)) == set()


def test_a_repeat_is_found_where_none_is_promised():
    again = replace(SECOND, member="m2", epoch=2, is_committed=None)
    assert of_ranges(FIRST, SECOND, again) == set()
    assert of_ranges(FIRST, SECOND, again, promise=Promise.AT_MOST_ONCE) == {"repeated"}


def test_what_is_lost_is_none_where_that_may_happen():
    assert of_ranges(FIRST, promise=Promise.AT_MOST_ONCE) == set()


@pytest.mark.parametrize("effects", [ONCE.effects[:3], [*ONCE.effects, ("a", 3)], [*ONCE.effects, ("x", 0)]])
def test_an_effect_that_is_missing_repeated_or_out_of_nowhere_is_found(effects):
    assert kinds(replace(ONCE, effects=effects)) == {"effect"}


def test_the_counts_name_each_group():
    again = replace(SECOND, member="m2", epoch=2)
    assert History(APPENDS, LOG, [replace(GROUP, ranges=[FIRST, SECOND, again])]).counts() == (
        "4 appended, 1 rolled back, 1 in doubt, 4 logged; g: 6 delivered, 2 repeated, 2 members, 2 epochs"
    )
