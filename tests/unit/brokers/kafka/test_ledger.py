from hypothesis import given
from hypothesis import strategies as st

from headwater.brokers.base import Left, Published, Refused
from headwater.brokers.kafka.ledger import Ledger

MESSAGES = st.lists(
    st.tuples(
        st.sampled_from(["orders", "bills"]), st.sampled_from([None, "a", "b"]), st.sampled_from(["stored", "open", "no"])
    )
)


def ledger_of(messages) -> Ledger:
    ledger = Ledger([topic for topic, _, _ in messages], [key for _, key, _ in messages])
    for place, (_, _, state) in enumerate(messages):
        if state == "stored":
            ledger.store(place)
        elif state == "no":
            ledger.refuse(place, "no")
    return ledger


@given(MESSAGES)
def test_what_stands_behind_an_open_message_of_its_key_is_sent_again_and_nothing_else(messages):
    ledger = ledger_of(messages)
    ledger.reopen_overtaken()
    for place, (topic, key, state) in enumerate(messages):
        earlier = {other for *pair, other in messages[:place] if pair == [topic, key] and key is not None}
        wanted = state == "open" or (state == "stored" and "open" in earlier)
        assert ledger.is_open(place) == wanted


@given(MESSAGES)
def test_the_first_open_message_and_their_number_are_known(messages):
    ledger = ledger_of(messages)
    places = [place for place, (_, _, state) in enumerate(messages) if state == "open"]
    assert ledger.first_open() == (places[0] if places else None)
    assert ledger.count_open() == len(places)


@given(MESSAGES)
def test_once_all_is_settled_each_message_is_stored_or_refused(messages):
    ledger = ledger_of(messages)
    while (place := ledger.first_open()) is not None:
        ledger.store(place)
    refused = tuple(Refused(place, "no") for place, (_, _, state) in enumerate(messages) if state == "no")
    assert ledger.published() == Published(len(messages) - len(refused), 0, refused)


@given(MESSAGES, st.integers(0, 20))
def test_what_is_still_open_is_left_with_its_own_reason_or_that_of_all(messages, sent):
    ledger = ledger_of(messages)
    places = [place for place, (_, _, state) in enumerate(messages) if state == "open"]
    for place in places[::2]:
        ledger.give_back(place, f"came back {place}", was_answered=place % 2 == 0)
    offered = ledger.offered(sent, "cut")
    assert offered.left == tuple(
        Left(
            place,
            "cut" if at % 2 else f"came back {place}",
            was_sent=place < sent,
            was_answered=at % 2 == 0 and place % 2 == 0,
        )
        for at, place in enumerate(places)
    )
    assert offered.stored + len(offered.refused) + len(offered.left) == len(messages)
