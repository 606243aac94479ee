"""Messages by columns: cut, picked and joined as if each were by itself."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headwater.topics.encoded import Encoded
from headwater.topics.message import Message, encode_message
from tests.support.topics.message_columns import encoded, rows_of


def has_no_empty_column(messages: Encoded) -> bool:
    return (messages.keys is None or any(key is not None for key in messages.keys)) and (
        messages.headers is None or any(messages.headers)
    )


some = st.tuples(
    st.binary(max_size=30), st.sampled_from([None, None, "k", "longer", ""]), st.sampled_from([None, None, {}, {"n": "v"}])
).map(lambda parts: Message(*parts))


@given(st.lists(some, min_size=1), st.integers(1, 60))
def test_portions_are_as_large_as_may_be_and_keep_the_order(given_messages, most):
    messages = encoded(*given_messages)
    parts = list(messages.portions(most))
    assert rows_of(Encoded.joined(parts)) == rows_of(messages)
    assert all(map(has_no_empty_column, parts))
    assert all(len(part) == 1 or sum(part.sizes) <= most for part in parts)
    for part, following in pairwise(parts):
        assert sum(part.sizes) + following.sizes[0] > most


@given(st.lists(st.lists(some, min_size=1, max_size=3), min_size=1))
def test_what_several_have_sent_is_joined_whatever_some_of_it_has_not(groups):
    joined = Encoded.joined([encoded(*group) for group in groups])
    assert rows_of(joined) == rows_of(encoded(*(one for group in groups for one in group)))


def test_a_column_that_no_message_has_is_not_there():
    assert (encoded(Message(b"x"), Message(b"y")).keys, encoded(Message(b"x", "k")).headers) == (None, None)
    assert list(encoded(Message(b"x"), Message(b"y", "k", {"n": "v"})).keys or []) == [None, b"k"]


@given(st.lists(some, min_size=1), st.data())
def test_those_at_some_places_are_picked_with_all_that_they_have(given_messages, data):
    messages = encoded(*given_messages)
    places = data.draw(st.lists(st.integers(0, len(given_messages) - 1), min_size=1))
    picked = messages.picked(places)
    assert rows_of(picked) == [rows_of(messages)[place] for place in places]
    assert has_no_empty_column(picked)


@given(some)
def test_one_message_is_as_many_of_one(message):
    fields = encode_message(message, 1 << 20)
    one = Encoded.of_one(fields)
    assert rows_of(one) == rows_of(Encoded.of([fields])) == [fields]
    assert has_no_empty_column(one)
