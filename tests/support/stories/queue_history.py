"""What must hold of a queue after a run in which everything went wrong: a record of it, and the violations in it. Pure.

Enqueued is what transactions have asked for, committed or not. Handled is every call of a handler, as the worker wrote it
down itself. Final is what the tables say at the end. Times of calls are nanoseconds of one clock.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A job as a transaction has enqueued it. Several have one id where they share a unique or idempotency key."""

    id: int
    is_committed: bool = True
    queue: str = "plain"
    key: str | None = None
    unique: str | None = None
    idempotency_key: str | None = None
    discards: bool = False


@dataclass(frozen=True, slots=True)
class Handled:
    """A call of a handler; how it ended is None if its worker was killed before."""

    id: int
    attempt: int
    worker: str
    began: int
    ended: int | None = None
    outcome: str | None = None
    claimed: int | None = None


@dataclass(frozen=True, slots=True)
class Final:
    """A job in the tables at the end; claimed at seconds of the server's clock."""

    id: int
    state: str
    attempt: int
    claimed_at: float | None = None


T = TypeVar("T", Handled, Final)


@dataclass(frozen=True, slots=True)
class Limits:
    """Of a queue."""

    is_ordered: bool = False
    most_running: int | None = None
    most_running_per_key: int | None = None
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class History:
    """`gone` has those who were killed, or stopped for longer than a lease, and when: nobody waited for what they had.

    `lost_claims` is how often a claim may have been made whose answer nobody got, beside those of whoever is gone.
    """

    enqueued: Sequence[Enqueued]
    handled: Sequence[Handled]
    finals: Sequence[Final]
    limits: Mapping[str, Limits] = field(default_factory=dict)
    gone: Mapping[str, int] = field(default_factory=dict)
    lost_claims: int = 0
    cancelled: frozenset[int] = frozenset()

    @property
    def committed(self) -> dict[int, Enqueued]:
        return {one.id: one for one in self.enqueued if one.is_committed}

    @property
    def never(self) -> list[int]:
        """Committed, and neither done nor ended otherwise."""
        ended = {one.id for one in self.finals if one.state in ("done", "error", "cancelled")}
        return sorted(set(self.committed) - ended)

    @property
    def twice(self) -> dict[int, int]:
        """Jobs that were done more than once, and how often more."""
        times = Counter(one.id for one in self.handled if one.outcome == "done")
        return {id: count - 1 for id, count in times.items() if count > 1}

    @property
    def unexplained(self) -> list[int]:
        """Jobs done again although nobody who had done them was killed or stopped: each but the last has to be gone."""
        found = []
        done = _by_id(one for one in self.handled if one.outcome == "done")
        for id in self.twice:
            *earlier, _ = sorted(done[id], key=lambda one: (one.attempt, one.began))
            if any(one.worker not in self.gone for one in earlier):
                found.append(id)
        return found

    def violations(self) -> list[Violation]:
        return [
            *self._of_ends(),
            *self._of_ghosts(),
            *self._of_attempts(),
            *self._of_repeats(),
            *self._of_keys(),
            *self._of_order(),
            *self._of_running(),
            *self._of_rates(),
        ]

    def counts(self) -> str:
        """What was recorded, in a line."""
        undone = len({one.id for one in self.enqueued} - set(self.committed))
        states = Counter(one.state for one in self.finals)
        ended = ", ".join(f"{states[state]} {state}" for state in ("done", "error", "cancelled") if states[state])
        return (
            f"{len(self.committed)} enqueued, {undone} rolled back, {ended}, {len(self.handled)} begun, "
            f"never done {len(self.never)}, done twice {sum(self.twice.values())}, "
            f"of which not explained {len(self.unexplained)}"
        )

    def _of_ends(self) -> Iterator[Violation]:
        """What was committed ends once, and as it was to; nothing else does."""
        ends = _by_id(self.finals)
        done = {one.id for one in self.handled if one.outcome == "done"}
        for id, job in self.committed.items():
            match [one.state for one in ends.get(id, [])]:
                case []:
                    yield Violation("lost", f"job {id} was committed and is nowhere")
                case ["done"]:
                    if id not in done or job.discards:
                        yield Violation("state", f"job {id} is done and no handler has done it")
                case ["error"]:
                    if not job.discards:
                        yield Violation("state", f"job {id} was given up, and its handler does not")
                case ["cancelled"]:
                    if id not in self.cancelled:
                        yield Violation("state", f"job {id} is cancelled, and nobody asked for that")
                case [state]:
                    yield Violation("lost", f"job {id} is still {state}")
                case states:
                    yield Violation("twice there", f"job {id} is there as {' and as '.join(states)}")

    def _of_ghosts(self) -> Iterator[Violation]:
        """What was rolled back is nowhere and never begun."""
        known = set(self.committed)
        for one in self.handled:
            if one.id not in known:
                yield Violation("ghost", f"job {one.id} was begun and never committed")
        for final in self.finals:
            if final.id not in known:
                yield Violation("ghost", f"job {final.id} is there as {final.state} and was never committed")

    def _of_attempts(self) -> Iterator[Violation]:
        """No attempt is begun twice; and as many are recorded as were begun, or more where claims came to nothing."""
        for (id, attempt), times in Counter((one.id, one.attempt) for one in self.handled).items():
            if times > 1:
                yield Violation("two owners", f"attempt {attempt} of job {id} was begun {times} times")
        begun = Counter(one.id for one in self.handled)
        for final in self.finals:
            # One that was cancelled between its claim and its begin.
            spare = len(self.gone) + self.lost_claims + (final.state == "cancelled")
            if not begun[final.id] <= final.attempt <= begun[final.id] + spare:
                yield Violation("attempts", f"job {final.id} was begun {begun[final.id]} times, and has {final.attempt}")

    def _of_repeats(self) -> Iterator[Violation]:
        for id in self.unexplained:
            yield Violation("done twice", f"job {id} was done again although nobody was gone who had done it")

    def _of_keys(self) -> Iterator[Violation]:
        """Of an idempotency key there is one job; those of a unique key are one after the other."""
        ids = defaultdict(set)
        uniques = defaultdict(set)
        for one in self.committed.values():
            if one.unique is not None:
                uniques[one.unique].add(one.id)
        for each in self.enqueued:
            if each.is_committed and each.idempotency_key is not None:
                ids[each.idempotency_key].add(each.id)
        for key, found in ids.items():
            if len(found) > 1:
                yield Violation("idempotency", f"key {key} has jobs {sorted(found)}")
        calls = _by_id(self._timely)
        for unique, found in uniques.items():
            for earlier, later in _neighbours(found, calls):
                if self._end(earlier[-1]) > later[0].began:
                    yield Violation("unique", f"jobs {earlier[0].id} and {later[0].id} of {unique} overlap")

    def _of_order(self) -> Iterator[Violation]:
        """A job of a key is begun when the one before has ended."""
        calls = _by_id(self._timely)
        keys = defaultdict(set)
        for one in self.committed.values():
            if one.key is not None and self.limits.get(one.queue, Limits()).is_ordered:
                keys[one.queue, one.key].add(one.id)
        for (_, key), ids in keys.items():
            for earlier, later in _neighbours(ids, calls):
                if self._end(earlier[-1]) > later[0].began:
                    yield Violation("order", f"job {later[0].id} of key {key} was begun before {earlier[0].id} had ended")

    def _of_running(self) -> Iterator[Violation]:
        """No more at once than a queue allows, all in all and of a key."""
        committed = self.committed
        by_queue: dict[str, list[Handled]] = defaultdict(list)
        by_key: dict[tuple[str, str], list[Handled]] = defaultdict(list)
        for one in self._timely:
            job = committed.get(one.id)
            if job is not None and job.queue in self.limits:
                by_queue[job.queue].append(one)
                if job.key is not None:
                    by_key[job.queue, job.key].append(one)
        for queue, calls in by_queue.items():
            if (most := self.limits[queue].most_running) is not None and (found := self._at_once(calls)) > most:
                yield Violation("limit", f"{found} jobs of queue {queue} at once, and {most} are the most")
        for (queue, key), calls in by_key.items():
            if (most := self.limits[queue].most_running_per_key) is not None and (found := self._at_once(calls)) > most:
                yield Violation("limit", f"{found} jobs of key {key} of queue {queue} at once, and {most} are the most")

    def _of_rates(self) -> Iterator[Violation]:
        """Within a second no more are claimed than may be begun at once and than come in a second."""
        committed = self.committed
        for queue, limits in self.limits.items():
            if limits.rate is None:
                continue
            claimed = [
                one.claimed_at
                for one in self.finals
                if one.claimed_at is not None and one.id in committed and committed[one.id].queue == queue
            ]
            if (found := _within_a_second(sorted(claimed))) > 2 * limits.rate:
                yield Violation("limit", f"{found} jobs of queue {queue} claimed within a second, of {limits.rate}")

    @property
    def _timely(self) -> list[Handled]:
        """All but those of one who was stopped between its look at the lease and the begin: the job was another's then."""
        return [
            one
            for one in self.handled
            if one.claimed is None or not one.claimed <= self.gone.get(one.worker, one.began) < one.began
        ]

    def _end(self, one: Handled) -> int:
        """When a call was over: that of one who is gone was when it was gone, as far as others are concerned."""
        ended = one.began if one.ended is None else one.ended
        gone = self.gone.get(one.worker)
        return ended if gone is None or gone <= one.began else gone if one.ended is None else min(gone, ended)

    def _at_once(self, calls: Iterable[Handled]) -> int:
        # One that ends when another begins is not at once with it.
        steps = sorted(step for one in calls for step in ((one.began, 1), (self._end(one), 0)))
        most = running = 0
        for _, begins in steps:
            running += 1 if begins else -1
            most = max(most, running)
        return most


def _by_id(given: Iterable[T]) -> dict[int, list[T]]:
    found: dict[int, list[T]] = defaultdict(list)
    for one in given:
        found[one.id].append(one)
    return found


def _neighbours(ids: Iterable[int], calls: Mapping[int, list[Handled]]) -> Iterator[tuple[list[Handled], list[Handled]]]:
    """Calls of each job that was begun, in order, and those of the next one."""
    begun = [sorted(calls[id], key=lambda one: one.began) for id in sorted(ids) if calls.get(id)]
    return pairwise(begun)


def _within_a_second(times: Sequence[float]) -> int:
    most = first = 0
    for place, time in enumerate(times):
        while times[first] < time - 1:
            first += 1
        most = max(most, place - first + 1)
    return most
