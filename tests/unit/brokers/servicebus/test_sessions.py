from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headwater.brokers.servicebus.sessions import groups

MESSAGES = st.lists(st.tuples(st.sampled_from(["orders", "bills", ""]), st.sampled_from([None, "", "a", "b", "c"])))


def columns(messages):
    return pa.array([entity for entity, _ in messages], pa.string()), pa.array([key for _, key in messages], pa.string())


@given(MESSAGES)
def test_each_message_is_in_exactly_one_group(messages):
    entities, keys = columns(messages)
    for sessions in (keys, None):
        places = [place for group in groups(entities, sessions) for place in group.places.tolist()]
        assert sorted(places) == list(range(len(messages)))


@given(MESSAGES)
def test_a_group_is_all_of_one_session_of_one_entity_in_its_order(messages):
    seen = set()
    for group in groups(*columns(messages)):
        (pair,) = {messages[place] for place in group.places}
        assert pair[0] == group.entity
        assert pair not in seen
        seen.add(pair)
        assert np.all(np.diff(group.places) > 0)


@given(MESSAGES)
def test_without_sessions_an_entity_is_one_group_in_its_order(messages):
    entities, _ = columns(messages)
    found = {group.entity: group.places.tolist() for group in groups(entities, None)}
    assert found == {
        entity: [place for place, (other, _) in enumerate(messages) if other == entity] for entity, _ in messages
    }


@given(MESSAGES)
def test_the_groups_of_an_entity_follow_each_other(messages):
    entities = [group.entity for group in groups(*columns(messages))]
    changes = sum(one != other for one, other in pairwise(entities))
    assert changes == max(len(set(entities)) - 1, 0)
