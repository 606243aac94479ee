import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.brokers.base import Left, Offered, Published, Refused
from headwater.brokers.rabbitmq.ledger import Confirms, Ledger

# An answer: the tag, whether it is for all up to it, and whether they are stored.
answers = st.lists(st.tuples(st.integers(0, 45), st.booleans(), st.booleans()), max_size=60)


class OneByOne:
    """The same rules without runs and columns."""

    def __init__(self, first_tag: int) -> None:
        self.first_tag = first_tag
        self.states: list[bool | None] = []

    def register(self, count: int) -> None:
        self.states += [None] * count

    def settle(self, tag: int, is_multiple: bool, is_stored: bool) -> None:
        for place, state in enumerate(self.states):
            own = self.first_tag + place
            is_meant = (own <= tag or tag == 0) if is_multiple else own == tag
            if is_meant and state is None:
                self.states[place] = is_stored

    def low(self) -> int:
        return self.states.index(None) if None in self.states else len(self.states)


@given(st.integers(1, 5), st.lists(st.tuples(st.integers(0, 15), answers), max_size=3))
def test_confirms_are_those_of_one_message_after_the_other(first_tag, rounds):
    confirms, simple = Confirms(first_tag, 45), OneByOne(first_tag)
    for count, words in rounds:
        confirms.register(count)
        simple.register(count)
        for tag, is_multiple, is_stored in words:
            confirms.settle(tag, is_multiple=is_multiple, is_stored=is_stored)
            simple.settle(tag, is_multiple, is_stored)
            assert confirms.low == simple.low()
    assert confirms.stored.tolist() == [place for place, state in enumerate(simple.states) if state]
    nacked = [place for place, state in enumerate(simple.states) if state is False]
    assert confirms.nacked.tolist() == nacked
    assert confirms.count_waiting == simple.states.count(None)


def test_an_ack_of_many_leaves_what_was_refused_before_it():
    confirms = Confirms(1, 5)
    confirms.register(5)
    confirms.settle(2, is_multiple=False, is_stored=False)
    confirms.settle(5, is_multiple=True, is_stored=True)
    assert (confirms.low, confirms.stored.tolist(), confirms.nacked.tolist()) == (5, [0, 2, 3, 4], [1])


def test_a_nack_of_many_leaves_what_was_stored_before_it():
    confirms = Confirms(1, 4)
    confirms.register(4)
    confirms.settle(1, is_multiple=False, is_stored=True)
    confirms.settle(3, is_multiple=True, is_stored=False)
    assert (confirms.low, confirms.stored.tolist(), confirms.nacked.tolist()) == (3, [0], [1, 2])


def test_what_is_not_published_yet_cannot_be_settled():
    confirms = Confirms(1, 10)
    confirms.register(2)
    confirms.settle(7, is_multiple=True, is_stored=True)
    confirms.settle(8, is_multiple=False, is_stored=True)
    confirms.register(8)
    assert (confirms.low, confirms.stored.tolist()) == (2, [0, 1])


def test_answers_to_what_was_published_before_are_left_alone():
    confirms = Confirms(11, 3)
    confirms.register(3)
    confirms.settle(10, is_multiple=False, is_stored=False)
    confirms.settle(10, is_multiple=True, is_stored=False)
    assert (confirms.low, confirms.nacked.tolist()) == (0, [])


def test_many_answers_in_reverse_are_found_when_the_first_comes():
    confirms = Confirms(1, 10_000)
    confirms.register(10_000)
    for tag in range(10_000, 0, -1):
        assert confirms.low == 0
        confirms.settle(tag, is_multiple=False, is_stored=True)
    assert confirms.low == 10_000


def test_more_than_there_are_cannot_be_registered():
    confirms = Confirms(1, 2)
    confirms.register(2)
    with pytest.raises(ValueError, match="more than 2"):
        confirms.register(1)


def test_what_is_stored_behind_an_open_message_is_sent_again():
    ledger = Ledger(5)
    ledger.store(np.array([0, 2, 4]))
    assert ledger.first_open() == 1
    ledger.rewind()
    assert ledger.open().tolist() == [1, 2, 3, 4]
    assert ledger.published() == Published(1)


def test_what_is_refused_is_never_sent_again_nor_counted_as_stored():
    ledger = Ledger(4)
    ledger.refuse(1, "no queue")
    ledger.store(np.array([0, 1, 3]))
    ledger.rewind()
    assert ledger.open().tolist() == [2, 3]
    ledger.store(np.array([2, 3]))
    assert ledger.first_open() is None
    assert ledger.published() == Published(3, 0, (Refused(1, "no queue"),))


def test_the_first_reason_counts():
    ledger = Ledger(1)
    ledger.refuse(0, "too large")
    ledger.refuse(0, "no queue")
    assert ledger.published().refused == (Refused(0, "too large"),)


@given(st.integers(1, 30), st.data())
def test_whatever_happens_nothing_is_stored_behind_an_open_message_after_a_rewind(count, data):
    ledger = Ledger(count)
    for index in data.draw(st.sets(st.integers(0, count - 1))):
        ledger.refuse(index, "never")
    refused = {one.index for one in ledger.published().refused}
    while ledger.first_open() is not None:
        sent = ledger.open()
        stored = data.draw(st.sets(st.sampled_from(sent.tolist()), min_size=1))
        ledger.store(np.array(sorted(stored)))
        ledger.rewind()
        first = ledger.first_open()
        if first is not None:
            assert set(ledger.open().tolist()) == set(range(first, count)) - refused
            # Otherwise this has no end.
            ledger.store(np.array([first]))
            ledger.rewind()
    assert ledger.published().stored == count - len(refused)


def test_what_is_open_can_be_left_and_what_is_settled_cannot():
    ledger = Ledger(5)
    ledger.refuse(0, "no queue")
    ledger.store(np.array([2]))
    ledger.leave(np.array([3]), "full", was_sent=True)
    ledger.leave(np.arange(5), "cut", was_sent=False)
    assert ledger.offered() == Offered(
        1,
        0,
        (Refused(0, "no queue"),),
        (Left(1, "cut", was_sent=False), Left(3, "full", was_sent=True), Left(4, "cut", was_sent=False)),
    )
    assert ledger.first_open() is None
