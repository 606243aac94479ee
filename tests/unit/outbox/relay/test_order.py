"""What goes together where keys keep their order, and what becomes of it."""

from headwater.brokers.base import Left, Offered, Refused
from headwater.outbox.relay.entry import Entry
from headwater.outbox.relay.order import Caution, OrderedJudge
from headwater.outbox.relay.settings import RelaySettings
from tests.support.outbox.relay_entries import entry


def keyed(id_: str, *, attempts: int = 0) -> Entry:
    """Its key is the first letter of its id; none for a dash."""
    made = entry(id_, attempts=attempts, committed=None)
    made.key = None if id_[0] == "-" else id_[0]
    return made


def nack(index: int) -> Left:
    return Left(index, "full", was_sent=True, was_answered=True)


def judge(**settings) -> OrderedJudge:
    return OrderedJudge(RelaySettings(**settings), lambda: 1.0)


def ids(entries: list[Entry]) -> list[str]:
    return [one.id for one in entries]


def test_as_long_as_all_goes_well_all_go_together():
    entries = [keyed(id_) for id_ in ("a1", "b1", "a2", "-1", "-2")]
    made = judge()
    assert made.choose(entries) == entries
    assert made.judge(entries, Offered(5)).published == entries
    assert made.choose([]) == []


def test_of_each_key_only_what_precedes_the_first_that_was_not_taken_is_settled():
    entries = [keyed(id_) for id_ in ("a1", "a2", "b1", "a3", "b2", "-1", "-2")]
    outcome = judge().judge(entries, Offered(4, refused=(Refused(4, "unroutable"),), left=(nack(1), nack(5))))
    assert ids(outcome.published) == ["a1", "b1", "-2"]
    assert [(one.entry.id, one.status, one.wait_seconds) for one in outcome.unpublished] == [
        ("a2", "pending", 0.05),
        ("b2", "dead", None),
        ("-1", "pending", 0.05),
    ]
    assert [one.tries for one in entries] == [1, 1, 1, 0, 1, 1, 1]
    assert (outcome.nacks, outcome.returns, outcome.suspects) == (2, 1, [])


def test_waits_grow_and_after_so_many_attempts_it_is_dead_and_holds_up_nothing():
    def judged(attempts):
        return judge(max_attempts=6).judge([keyed("a1", attempts=attempts), keyed("a2")], Offered(1, left=(nack(0),)))

    assert [judged(n).unpublished[0].wait_seconds for n in range(5)] == [0.05, 0.1, 1, 2, 4]
    last = judged(5)
    assert (last.unpublished[0].status, last.unpublished[0].error) == ("dead", "given up after 6 attempts: full")
    assert ids(last.published) == ["a2"]


def test_what_was_not_sent_has_had_no_attempt_and_those_behind_it_wait():
    entries = [keyed("a1"), keyed("a2")]
    outcome = judge().judge(entries, Offered(0, left=tuple(Left(index, "gone", was_sent=False) for index in (0, 1))))
    assert (outcome.published, outcome.unpublished, outcome.suspects) == ([], [], [])
    assert [one.tries for one in entries] == [0, 0]


def test_after_a_failure_a_key_goes_on_with_one_and_then_with_more():
    made, entries = judge(), [keyed(f"a{number}") for number in range(10)]
    made.judge(entries, Offered(9, left=(nack(0),)))
    for size in (1, 2, 4):
        chosen = made.choose([*entries, keyed("b1")])
        assert ids(chosen) == [*(f"a{number}" for number in range(size)), "b1"]
        made.judge(chosen, Offered(len(chosen)))


def test_one_that_was_tried_before_goes_without_those_behind_it():
    entries = [keyed("a1", attempts=1), keyed("a2"), keyed("b1"), keyed("b2", attempts=1)]
    assert ids(judge().choose(entries)) == ["a1", "b1"]


def test_what_was_under_way_when_a_connection_broke_goes_in_smaller_company_and_at_last_alone():
    made, entries = judge(max_attempts=100), [keyed(f"-{number}") for number in range(300)]
    for size in (300, 256, 16, 1):
        chosen = made.choose(entries)
        assert len(chosen) == size
        made.judge(chosen, Offered(0, left=tuple(Left(index, "broken", was_sent=True) for index in range(size))))
        entries = chosen


def test_only_so_many_keys_are_remembered_as_difficult():
    caution = Caution(most=2)
    for key in "abc":
        caution.failed(key)
    assert [caution.allowed(key) for key in "abc"] == [None, 1, 1]
