"""What is said of events that fail, and how often."""

from headwater.brokers.base import Left
from headwater.outbox.relay.failures import Failures
from headwater.outbox.relay.outcome import Unpublished
from tests.support.outbox.relay_entries import entry


class Clock:
    """Has what is to be done later done when it is told to."""

    def __init__(self):
        self._waiting = []

    def call_later(self, seconds, call, *given):
        assert seconds == 10
        self._waiting.append((call, given))
        return self

    def cancel(self):
        self._waiting = []

    def strike(self):
        waiting, self._waiting = self._waiting, []
        for call, given in waiting:
            call(*given)


ENTRIES = [entry(str(number)) for number in range(50)]


def dead(numbers, reason="unroutable"):
    return [Unpublished.dead(ENTRIES[number], reason) for number in numbers]


def left(count, reason="full"):
    return [Left(index, reason, was_sent=True, was_answered=True) for index in range(count)]


def test_the_first_is_said_at_once_and_the_others_together_when_the_time_has_come(caplog):
    failures = Failures((clock := Clock()).call_later)
    failures.note(ENTRIES, [], dead(range(1)))
    assert caplog.messages == [
        "1 event is dead: unroutable; `headwater outbox dead` lists dead events, and `headwater outbox revive` has them "
        "sent again once that is mended"
    ]
    failures.note(ENTRIES, [], dead(range(20)))
    failures.note(ENTRIES, [], dead(range(20, 23), "too large"))
    assert len(caplog.messages) == 1
    clock.strike()
    assert caplog.messages[1].startswith("23 events are dead: too large; ")
    clock.strike()
    clock.strike()
    assert len(caplog.messages) == 2, "nothing has come since"
    failures.note(ENTRIES, [], dead(range(1)))
    assert len(caplog.messages) == 3


def test_each_kind_has_its_own_time(caplog):
    failures = Failures(Clock().call_later)
    failures.note(ENTRIES, left(2), dead(range(1)))
    failures.note(ENTRIES, left(2), dead(range(1)))
    assert [message.split(":")[0] for message in caplog.messages] == [
        "2 events were not taken",
        "1 event is dead",
    ]
    assert caplog.messages[0].endswith(
        ": full; such events are tried again until they are taken or dead, and `headwater outbox status` tells how many wait"
    )


def test_an_event_that_was_tried_again_and_again_is_counted_once(caplog):
    failures = Failures((clock := Clock()).call_later)
    for _ in range(5):
        failures.note(ENTRIES[7:], left(1), [])
    failures.note(ENTRIES, left(3), [])
    failures.note(ENTRIES[2:], left(3), [])
    clock.strike()
    assert [message.split(":")[0] for message in caplog.messages] == ["1 event was not taken", "6 events were not taken"]


def test_more_than_is_worth_to_be_told_apart_is_said_to_be_more(caplog):
    failures = Failures((clock := Clock()).call_later)
    entries = [entry(str(number)) for number in range(4000)]
    for number in range(5):
        for each in entries:
            each.id = f"{number}-{each.id}"
        failures.note(entries, left(4000), [])
    clock.strike()
    assert caplog.messages[1].startswith("at least 10,000 events were not taken")


def test_what_was_not_said_yet_is_said_at_the_end(caplog):
    failures = Failures((clock := Clock()).call_later)
    failures.note(ENTRIES, left(1), [])
    failures.note(ENTRIES, left(4), [])
    failures.close()
    clock.strike()
    assert [message[0] for message in caplog.messages] == ["1", "4"]


def test_nothing_is_said_of_what_went_well_or_is_only_to_be_tried_later(caplog):
    Failures(Clock().call_later).note(ENTRIES, [], [Unpublished.released(ENTRIES[0])])
    assert caplog.messages == []
