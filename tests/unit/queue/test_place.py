"""Where due jobs are looked for: what is passed over is found by the next sweep."""

from dataclasses import dataclass, field
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from headwater.queue import Job
from headwater.queue.place import Place
from tests.support.queue.claimed_jobs import NOON, job

POLL = 1.0
# What a claim without places looks at, as the statement has it.
LATELY = timedelta(seconds=5)


def moment(seconds):
    return NOON + timedelta(seconds=seconds)


@dataclass
class Table:
    """What is there: jobs with the time from which on they can be seen."""

    rows: list[tuple[Job, float]] = field(default_factory=list)

    def claim(self, now, most, place, *, sweeps):
        taken: list[Job] = []
        for level in range(9, -1, -1):
            run_at, id = place.run_ats[level], place.ids[level]
            after = (moment(-1e6) if sweeps else run_at or moment(now) - LATELY, id or 0)
            due = [
                one for one, seen_at in self.rows if one.priority == level and seen_at <= now and one.run_at <= moment(now)
            ]
            found = sorted(due, key=lambda one: (one.run_at, one.id))
            taken += [one for one in found if (one.run_at, one.id) > after][: most - len(taken)]
        self.rows = [row for row in self.rows if row[0] not in taken]
        return taken


ARRIVALS = st.lists(
    st.tuples(
        st.floats(0, 20),  # when it can be seen
        st.floats(0, 15),  # for how long it was due by then: its transaction took so long
        st.sampled_from([0, 0, 5, 9]),
    ),
    max_size=60,
)


@given(ARRIVALS, st.integers(1, 6), st.floats(0.001, 0.3), st.lists(st.floats(0, 20), max_size=10))
def test_whoever_waits_has_left_behind_only_what_came_after_its_last_sweep(arrivals, most, takes, rings):
    table = Table([(job(n, priority=p, seconds=at - late), at) for n, (at, late, p) in enumerate(arrivals, 1)])
    place, now, last_sweep = Place(POLL), 0.0, 0.0
    rings = sorted(rings)
    while now < 60:
        began = now
        if sweeps := place.begin(began):
            last_sweep = began
        jobs = table.claim(began, most, place, sweeps=sweeps)
        now += takes
        place.note(jobs, most, swept=sweeps, began=began, ended=now)
        if place.has_more or place.sweep_at <= now:
            continue
        left = [one for one, seen_at in table.rows if seen_at <= last_sweep and one.run_at <= moment(last_sweep)]
        assert left == []
        # No sweep takes more than its share of the time, and none is far away.
        assert place.sweep_at - now <= max(POLL, 20 * takes)
        until = min([place.sweep_at, *(ring for ring in rings if ring > now)])
        now = max(now, until)
    assert table.rows == []


@given(st.lists(st.tuples(st.integers(0, 9), st.floats(-100, 0)), min_size=1, max_size=20))
def test_places_are_after_the_last_that_were_taken_of_each_priority(taken):
    jobs = [job(n, priority=priority, seconds=seconds) for n, (priority, seconds) in enumerate(taken, 1)]
    place = Place(POLL)
    place.note(jobs, len(jobs), swept=True, began=0.0, ended=0.0)
    for level in range(10):
        of_level = [(one.run_at, one.id) for one in jobs if one.priority == level]
        assert (place.run_ats[level], place.ids[level]) == max(of_level, default=(None, None))


def test_the_first_claim_is_a_sweep():
    assert Place(POLL).begin(0.0)


def test_what_was_not_all_is_looked_for_at_once_and_from_where_it_was_left():
    place = Place(POLL)
    place.begin(0.0)
    place.note([job(1), job(2)], 2, swept=True, began=0.0, ended=0.01)
    assert place.has_more
    assert place.ids[:1] == [2]
    assert not place.begin(0.02)
    # Then there was no more, but there may be some that are older.
    place.note([job(3)], 2, swept=False, began=0.02, ended=0.03)
    assert place.ids[:1] == [None]
    assert place.begin(0.03)


def test_a_sweep_that_takes_long_is_made_less_often():
    place = Place(POLL)
    place.begin(0.0)
    place.note([], 10, swept=True, began=0.0, ended=1.0)
    assert not place.begin(19.9)
    assert place.begin(20.0)


def test_one_that_a_blocked_loop_made_long_is_not_waited_for_without_end():
    place = Place(POLL)
    place.begin(0.0)
    place.note([], 10, swept=True, began=0.0, ended=60.0)
    assert place.begin(60.0)


def test_who_asks_for_a_sweep_while_one_goes_on_gets_another():
    place = Place(POLL)
    place.begin(0.0)
    place.sweep_at = 0.0
    place.note([], 10, swept=True, began=0.0, ended=0.1)
    assert place.begin(0.1)
