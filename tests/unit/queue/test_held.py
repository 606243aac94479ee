"""What a worker has, and for how long."""

from datetime import timedelta

from headwater.queue.held import Held
from tests.support.queue.claimed_jobs import job

LEASE = timedelta(seconds=30)


def test_jobs_are_had_until_they_are_removed():
    held = Held(LEASE)
    (one, other) = held.add([job(1), job(2)], 0.0)
    assert (len(held), held.ids, held.find(1), held.find(3)) == (2, [1, 2], one, None)
    held.remove(one)
    held.remove(one)
    assert (len(held), held.find(2)) == (1, other)


def test_one_that_was_claimed_again_is_not_removed_with_the_old_one():
    held = Held(LEASE)
    (old,) = held.add([job(1, epoch=1)], 0.0)
    (new,) = held.add([job(1, epoch=2)], 50.0)
    held.remove(old)
    assert held.find(1) is new


def test_a_lease_is_due_after_a_third_of_its_time():
    held = Held(LEASE)
    (one,) = held.add([job(1)], 100.0)
    assert held.due(109.9) == []
    assert held.due(110.0) == [one]
    one.renewed_at = 110.0
    assert held.due(119.9) == []


def test_what_is_lost_or_goes_on_for_too_long_is_not_renewed():
    held = Held(LEASE)
    lost, stuck, fine = held.add([job(1), job(2), job(3)], 0.0)
    lost.is_lost = True
    stuck.began_at, stuck.ends_at = 0.0, 20.0
    assert held.due(19.0) == [stuck, fine]
    assert held.due(20.0) == [fine]


def test_while_the_loop_is_blocked_what_was_not_begun_is_left_to_others():
    held = Held(LEASE)
    waiting, begun = held.add([job(1), job(2)], 0.0)
    begun.began_at = 1.0
    assert held.due(15.0, is_blocked=True) == [begun]
    assert held.due(15.0) == [waiting, begun]


def test_a_job_is_ones_own_for_as_long_as_its_lease():
    (one,) = Held(LEASE).add([job(1)], 100.0)
    assert one.is_ours(129.9)
    assert not one.is_ours(130.0)
    one.renewed_at = 120.0
    assert one.is_ours(149.9)
    one.is_lost = True
    assert not one.is_ours(120.0)


def test_a_job_that_does_not_run_cannot_be_interrupted():
    (one,) = Held(LEASE).add([job(1)], 0.0)
    one.interrupt()
