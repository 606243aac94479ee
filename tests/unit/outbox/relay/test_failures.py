"""What is said of events that fail, and how often."""

from headwater.brokers.base import Left
from headwater.outbox.relay.failures import Failures
from headwater.outbox.relay.outcome import Unpublished
from tests.unit.outbox.relay.entries import entry


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


def dead(count, reason="unroutable"):
    return [Unpublished.dead(entry("a"), reason)] * count


def left(count, reason="full"):
    return [Left(index, reason, was_sent=True, was_answered=True) for index in range(count)]


def test_the_first_is_said_at_once_and_the_others_together_when_the_time_has_come(caplog):
    failures = Failures((clock := Clock()).call_later)
    failures.note([], dead(1))
    assert caplog.messages == [
        "1 events are dead: unroutable; `headwater outbox dead` lists them, and `headwater outbox revive` has them sent "
        "again once that is mended"
    ]
    failures.note([], dead(20))
    failures.note([], dead(3, "too large"))
    assert len(caplog.messages) == 1
    clock.strike()
    assert caplog.messages[1].startswith("23 events are dead: too large; ")
    clock.strike()
    clock.strike()
    assert len(caplog.messages) == 2, "nothing has come since"
    failures.note([], dead(1))
    assert len(caplog.messages) == 3


def test_each_kind_has_its_own_time(caplog):
    failures = Failures(Clock().call_later)
    failures.note(left(2), dead(1))
    failures.note(left(2), dead(1))
    assert [message.split(":")[0] for message in caplog.messages] == [
        "2 events were not taken",
        "1 events are dead",
    ]
    assert caplog.messages[0].endswith(
        ": full; they are tried again until they are taken or dead, and `headwater outbox status` tells how many wait"
    )


def test_what_was_not_said_yet_is_said_at_the_end(caplog):
    failures = Failures((clock := Clock()).call_later)
    failures.note(left(1), [])
    failures.note(left(4), [])
    failures.close()
    clock.strike()
    assert [message[0] for message in caplog.messages] == ["1", "4"]


def test_nothing_is_said_of_what_went_well(caplog):
    Failures(Clock().call_later).note([], [])
    assert caplog.messages == []
