"""The checker of stories finds each kind of violation, and none where there is none."""

from dataclasses import replace

import pytest

from tests.support.stories.queue_history import Enqueued, Final, Handled, History, Limits

LIMITS = {
    "ordered": Limits(is_ordered=True),
    "limited": Limits(most_running=2, most_running_per_key=1),
    "paced": Limits(rate=1),
}
JOBS = [
    Enqueued(1, queue="ordered", key="a"),
    Enqueued(2, queue="ordered", key="a"),
    Enqueued(3, queue="limited", key="k"),
    Enqueued(4, queue="limited", key="l"),
    Enqueued(5, unique="u"),
    Enqueued(5, unique="u"),
    Enqueued(6, unique="u"),
    Enqueued(7, idempotency_key="i"),
    Enqueued(7, idempotency_key="i"),
    Enqueued(8, discards=True),
    Enqueued(9, is_committed=False),
    Enqueued(10, queue="paced"),
    Enqueued(11),
]
CALLS = [Handled(id, 1, "w1", 10 * id, 10 * id + 5, "done") for id in (1, 2, 3, 4, 5, 6, 7, 10)] + [
    Handled(8, 1, "w2", 80, 85, "failed"),
    Handled(8, 2, "w2", 90, 95, "discarded"),
]
FINALS = [Final(id, "done", 1, 100.0 + id) for id in (1, 2, 3, 4, 5, 6, 7, 10)] + [
    Final(8, "error", 2),
    Final(11, "cancelled", 0),
]
GOOD = History(JOBS, CALLS, FINALS, LIMITS, cancelled=frozenset({11}))


def kinds(history: History) -> set[str]:
    return {one.kind for one in history.violations()}


def with_call(call: Handled, *, of: History = GOOD) -> History:
    """A call in place of those of the same attempt of its job."""
    others = [one for one in of.handled if (one.id, one.attempt) != (call.id, call.attempt)]
    return replace(of, handled=[*others, call])


def with_final(final: Final, *, of: History = GOOD) -> History:
    return replace(of, finals=[*(one for one in of.finals if one.id != final.id), final])


def again(worker: str = "w2", *, began: int = 500) -> History:
    """A job of one worker that another does once more."""
    history = with_final(Final(7, "done", 2))
    return replace(history, handled=[*CALLS, Handled(7, 2, worker, began, began + 5, "done")])


def test_a_run_as_it_should_be_has_none():
    assert kinds(GOOD) == set()
    assert (GOOD.never, GOOD.twice) == ([], {})


def test_a_job_that_is_nowhere_or_not_ended_is_found():
    gone = replace(GOOD, finals=FINALS[1:], handled=CALLS[1:])
    assert (kinds(gone), gone.never) == ({"lost"}, [1])
    left = with_final(Final(1, "claimed", 1))
    assert (kinds(left), left.never) == ({"lost"}, [1])


def test_a_job_that_is_there_twice_is_found():
    assert kinds(replace(GOOD, finals=[*FINALS, Final(1, "error", 1)])) == {"twice there"}


@pytest.mark.parametrize(
    "final", [Final(1, "error", 1), Final(1, "cancelled", 1), Final(8, "done", 2), Final(11, "done", 0)]
)
def test_a_job_that_ended_as_it_was_not_to_is_found(final):
    assert kinds(with_final(final)) == {"state"}


def test_a_job_that_was_rolled_back_and_is_there_or_begun_is_found():
    assert kinds(replace(GOOD, finals=[*FINALS, Final(9, "done", 0)])) == {"ghost"}
    assert kinds(replace(GOOD, handled=[*CALLS, Handled(9, 1, "w1", 1, 2, "done")])) == {"ghost"}


def test_an_attempt_that_two_have_begun_is_found():
    assert "two owners" in kinds(replace(GOOD, handled=[*CALLS, Handled(7, 1, "w2", 500)], gone={"w2": 501}))


def test_attempts_that_were_not_begun_need_somebody_who_is_gone_or_a_lost_claim():
    more = with_final(Final(7, "done", 2))
    assert kinds(more) == {"attempts"}
    assert kinds(replace(more, lost_claims=1)) == set()
    assert kinds(replace(more, gone={"w3": 1})) == set()
    assert kinds(with_final(Final(7, "done", 0))) == {"attempts"}


def test_a_job_done_again_needs_somebody_who_is_gone():
    assert kinds(again()) == {"done twice"}
    explained = replace(again(), gone={"w1": 400})
    assert (kinds(explained), explained.twice) == (set(), {7: 1})


def test_an_idempotency_key_with_two_jobs_is_found():
    assert "idempotency" in kinds(replace(GOOD, enqueued=[*JOBS, replace(JOBS[-1], idempotency_key="i")]))


def test_unique_jobs_that_overlap_are_found():
    assert kinds(with_call(Handled(5, 1, "w1", 50, 62, "done"))) == {"unique"}


def test_jobs_of_a_key_out_of_order_are_found():
    assert kinds(with_call(Handled(2, 1, "w1", 14, 16, "done"))) == {"order"}
    assert kinds(with_call(Handled(2, 1, "w1", 5, 6, "done"))) == {"order"}


def test_one_who_is_gone_holds_up_nobody():
    late = with_call(Handled(1, 1, "w3", 10, 99, "done"))
    assert kinds(late) == {"order"}
    assert kinds(replace(late, gone={"w3": 15})) == set()
    assert kinds(replace(late, gone={"w3": 30})) == {"order"}


def test_more_at_once_than_a_queue_allows_are_found():
    assert kinds(with_call(Handled(3, 1, "w1", 30, 42, "done"))) == set()
    crowded = replace(GOOD, limits={"limited": Limits(most_running=1)})
    assert kinds(with_call(Handled(3, 1, "w1", 30, 42, "done"), of=crowded)) == {"limit"}
    alike = replace(GOOD, enqueued=[*(one for one in JOBS if one.id != 4), Enqueued(4, queue="limited", key="k")])
    assert kinds(with_call(Handled(3, 1, "w1", 30, 42, "done"), of=alike)) == {"limit"}


def test_one_who_was_stopped_right_before_it_began_is_not_blamed_for_what_others_do_meanwhile():
    crowded = replace(GOOD, limits={"limited": Limits(most_running=1)}, gone={"w3": 25})
    late = Handled(3, 1, "w3", 30, 42, "done", claimed=20)
    assert kinds(with_call(late, of=crowded)) == set()
    # One that was claimed since then, or begun before, is.
    assert kinds(with_call(replace(late, claimed=26), of=crowded)) == {"limit"}
    assert kinds(replace(with_call(late, of=crowded), gone={"w3": 41})) == {"limit"}
    late = Handled(1, 1, "w3", 22, 23, "done", claimed=5)
    again = replace(with_call(late, of=GOOD), handled=[*CALLS, replace(late, attempt=2)])
    assert "order" in kinds(again)
    assert "order" not in kinds(replace(again, gone={"w3": 9}))


def test_more_claimed_within_a_second_than_the_rate_allows_are_found():
    paced = [Enqueued(id, queue="paced") for id in (5, 6, 7)]
    history = replace(GOOD, enqueued=[*(one for one in JOBS if one.id not in (5, 6, 7)), *paced])
    assert kinds(history) == set()
    close = [Final(5, "done", 1, 1.0), Final(6, "done", 1, 1.5), Final(7, "done", 1, 1.9)]
    assert kinds(replace(history, finals=[*(one for one in FINALS if one.id not in (5, 6, 7)), *close])) == {"limit"}
