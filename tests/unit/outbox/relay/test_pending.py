"""Which events of a transaction are left at its end."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.outbox.event import EncodedEvent, Event, encode_events
from headwater.outbox.relay.pending import Pending


def event(number: int) -> EncodedEvent:
    return encode_events([Event("orders", "Counted", number)], {}, 1000)[0]


def test_what_a_block_takes_back_is_gone_with_all_that_was_in_it():
    pending = Pending()
    kept = event(1)
    pending.add([kept])
    pending.enter()
    pending.add([event(2)])
    pending.enter()
    pending.add([event(3)])
    pending.leave(keeps=True)
    pending.leave(keeps=False)
    assert pending.take() == [kept]
    assert pending.depth == 0


Blocks = st.recursive(st.just(None), lambda inner: st.lists(st.tuples(st.booleans(), inner), max_size=4), max_leaves=20)


@given(Blocks)
def test_what_is_kept_is_what_no_block_around_it_took_back_in_the_order_of_writing(blocks):
    pending = Pending()
    kept: list[EncodedEvent] = []

    def walk(block, is_kept):
        if block is None:
            one = event(len(kept))
            pending.add([one])
            if is_kept:
                kept.append(one)
            return
        for keeps, inner in block:
            pending.enter()
            walk(inner, is_kept and keeps)
            pending.leave(keeps=keeps)

    walk(blocks, True)
    assert pending.take() == kept
