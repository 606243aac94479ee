import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headwater.brokers.nats.ledger import Ledger, Published, Refused


def acknowledge(ledger: Ledger, *answers: tuple[int, int] | tuple[int, int, bool]) -> bool:
    indices, sequences, duplicates = zip(*((*one, False)[:3] for one in answers), strict=True)
    ledger.note_sent(max(indices) + 1)
    return ledger.acknowledge(np.array(indices), np.array(sequences), np.array(duplicates))


def is_done(ledger: Ledger) -> bool:
    ledger.reopen_misplaced()
    return ledger.first_open() is None


def test_what_is_stored_in_order_is_done():
    ledger = Ledger(3)
    acknowledge(ledger, (0, 5), (1, 6), (2, 9))
    assert is_done(ledger)
    assert ledger.result() == Published(3, 0, ())


def test_what_was_sent_is_sent_again_from_the_first_open_message_on_before_the_rest():
    ledger = Ledger(5)
    assert ledger.to_send().tolist() == [0, 1, 2, 3, 4]
    acknowledge(ledger, (0, 1), (2, 2))
    ledger.note_sent(4)
    assert ledger.to_send().tolist() == [1, 2, 3]
    acknowledge(ledger, (1, 3), (2, 4), (3, 5))
    assert ledger.to_send().tolist() == [4]


def test_what_was_stored_before_an_earlier_message_is_stored_again_under_a_new_id():
    ledger = Ledger(4)
    acknowledge(ledger, (0, 1), (2, 2), (3, 3))
    acknowledge(ledger, (1, 4), (2, 2, True), (3, 3, True))
    ledger.reopen_misplaced()
    assert ledger.to_send().tolist() == [2, 3]
    assert ledger.rounds.tolist() == [0, 0, 1, 1]
    acknowledge(ledger, (2, 5), (3, 6))
    assert is_done(ledger)
    assert ledger.result() == Published(4, 0, ())


def test_nothing_gets_a_new_id_before_it_is_known_of_all_where_it_is():
    ledger = Ledger(4)
    ledger.note_sent(4)
    acknowledge(ledger, (0, 5), (1, 2, True))
    ledger.reopen_misplaced()
    assert ledger.to_send().tolist() == [2, 3]
    acknowledge(ledger, (2, 3, True), (3, 6))
    ledger.reopen_misplaced()
    assert ledger.to_send().tolist() == [1, 2, 3]
    assert ledger.rounds.tolist() == [0, 1, 1, 1]


def test_a_wrong_order_is_told_as_soon_as_it_is_known():
    ledger = Ledger(4)
    assert acknowledge(ledger, (0, 1))
    ledger.to_send()
    assert acknowledge(ledger, (1, 4))
    assert not acknowledge(ledger, (2, 2, True), (3, 3, True))


def test_duplicates_in_order_are_in_order():
    ledger = Ledger(4)
    ledger.to_send()
    assert acknowledge(ledger, (0, 5, True), (1, 7, True))
    assert acknowledge(ledger, (2, 9, True), (3, 20))


def test_a_new_id_that_was_used_before_leads_to_another_one():
    ledger = Ledger(2)
    acknowledge(ledger, (0, 9), (1, 3, True))
    ledger.reopen_misplaced()
    acknowledge(ledger, (1, 4, True))
    ledger.reopen_misplaced()
    assert ledger.rounds.tolist() == [0, 2]
    acknowledge(ledger, (1, 10))
    assert is_done(ledger)
    assert ledger.result() == Published(2, 0, ())


def test_a_message_in_packets_that_another_one_stands_between_is_sent_again_from_its_first_packet():
    ledger = Ledger(4, np.array([True, True, False, True]))
    acknowledge(ledger, (0, 1), (1, 2), (3, 3))
    acknowledge(ledger, (2, 4), (3, 3, True))
    ledger.reopen_misplaced()
    assert ledger.to_send().tolist() == [1, 2, 3]


def test_refused_messages_are_not_sent_again_and_break_no_order():
    ledger = Ledger(3)
    ledger.refuse(1, 10054, "too large")
    acknowledge(ledger, (0, 1))
    assert ledger.to_send().tolist() == [2]
    acknowledge(ledger, (2, 2))
    assert is_done(ledger)
    assert ledger.result() == Published(2, 0, (Refused(1, 10054, "too large"),))


def test_a_stream_that_was_made_anew_counts_from_the_beginning_and_keeps_the_order():
    ledger = Ledger(4)
    acknowledge(ledger, (0, 70), (1, 71))
    acknowledge(ledger, (2, 1), (3, 2))
    assert is_done(ledger)
    assert ledger.result() == Published(4, 0, ())


def test_duplicates_are_counted_apart():
    ledger = Ledger(2)
    acknowledge(ledger, (0, 4, True), (1, 8))
    assert ledger.result() == Published(1, 1, ())


def test_nothing_to_send_is_done():
    ledger = Ledger(0)
    assert is_done(ledger)
    assert ledger.result() == Published(0, 0, ())


class Stream:
    """A stream as JetStream keeps it, which loses some of what is sent and some of its answers."""

    def __init__(self) -> None:
        self.messages: list[int] = []
        self._known: dict[tuple[int, int], int] = {}

    def store(self, index: int, number: int) -> tuple[int, bool]:
        is_old = (index, number) in self._known
        if not is_old:
            self.messages.append(index)
            self._known[index, number] = len(self.messages)
        return self._known[index, number], is_old


def reassembled(packets: list[int], starts: list[bool]) -> set[int]:
    """The messages, by their first packet, that a reader gets whole who starts again at each first packet."""
    whole: set[int] = set()
    start = following = -1
    for packet in packets:
        if starts[packet]:
            start, following = packet, packet
        if packet == following:
            following += 1
            if following == len(starts) or starts[following]:
                whole.add(start)
    return whole


@given(st.integers(1, 12), st.data())
def test_whatever_is_lost_all_messages_are_stored_whole_and_their_last_copies_in_order(count, data):
    starts = [True, *data.draw(st.lists(st.booleans(), min_size=count - 1, max_size=count - 1))]
    ledger, stream = Ledger(count, np.array(starts)), Stream()
    for attempt in range(200):
        if is_done(ledger):
            break
        is_calm, to_send = attempt >= 4, ledger.to_send().tolist()
        for index in to_send if is_calm else to_send[: data.draw(st.integers(1, len(to_send)))]:
            fate = "stored" if is_calm else data.draw(st.sampled_from(["stored", "lost", "stored unseen"]))
            ledger.note_sent(index + 1)
            if fate != "lost":
                sequence, is_old = stream.store(index, int(ledger.rounds[index]))
                if fate == "stored":
                    acknowledge(ledger, (index, sequence, is_old))
    last = [max(at for at, message in enumerate(stream.messages) if message == index) for index in range(count)]
    assert last == sorted(last)
    assert reassembled(stream.messages, starts) == {index for index in range(count) if starts[index]}
    assert ledger.result().stored + ledger.result().duplicates == count


def test_where_the_order_is_of_no_interest_any_sequence_is_as_good():
    ledger = Ledger(5)
    ledger.store(np.array([4, 0]), np.array([False, True]))
    ledger.refuse(2, 10054, "too large")
    assert ledger.open().tolist() == [1, 3]
    assert ledger.result() == Published(1, 1, (Refused(2, 10054, "too large"),))
