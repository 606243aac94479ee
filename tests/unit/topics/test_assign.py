"""Who reads which partition: balanced, and with as few changes as possible."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headwater.topics.assign import assign, moves

MEMBERS = [UUID(int=n) for n in range(1, 9)]


@st.composite
def states(draw):
    members = draw(st.lists(st.sampled_from(MEMBERS), min_size=1, unique=True))
    count = draw(st.integers(0, 20))
    owners = {partition: draw(st.sampled_from([None, *MEMBERS])) for partition in range(count)}
    return members, owners


def held_by(member, owners):
    return [partition for partition, owner in owners.items() if owner == member]


@given(states())
def test_every_partition_has_one_owner_who_is_there(state):
    members, owners = state
    assigned = assign(members, owners)
    assert assigned.keys() == owners.keys()
    assert set(assigned.values()) <= set(members)


@given(states())
def test_nobody_has_two_more_than_another(state):
    members, owners = state
    counts = [len(held_by(member, assign(members, owners))) for member in members]
    assert max(counts) - min(counts) <= 1


@given(states())
def test_as_few_as_possible_change_hands(state):
    members, owners = state
    least, more = divmod(len(owners), len(members))
    # What can stay at best: the fullest members keep one more, each no more than it has.
    held = sorted((len(held_by(member, owners)) for member in members), reverse=True)
    can_stay = sum(min(count, least + (place < more)) for place, count in enumerate(held))
    assert len(moves(members, owners)) == len(owners) - can_stay


@given(states())
def test_what_was_decided_is_not_decided_anew(state):
    members, owners = state
    assert moves(members, assign(members, owners)) == {}


@given(states(), st.data())
def test_whatever_moves_first_the_others_are_no_more_than_before(state, data):
    members, owners = state
    wanted = moves(members, owners)
    done = data.draw(st.sets(st.sampled_from(sorted(wanted)))) if wanted else set()
    halfway = {**owners, **{partition: wanted[partition] for partition in done}}
    assert len(moves(members, halfway)) == len(wanted) - len(done)


@given(states())
def test_the_order_of_members_is_of_no_importance(state):
    members, owners = state
    assert assign(members, owners) == assign(list(reversed(members)), owners)


def test_nobody_gets_anything_where_nobody_is():
    assert assign([], {0: None, 1: MEMBERS[0]}) == {}


def test_more_members_than_partitions_leave_some_with_nothing():
    assigned = assign(MEMBERS, {0: None, 1: None})
    assert sorted(assigned.values()) == MEMBERS[:2]
