"""A queue under rollbacks, kills, cuts, stalls and cancellations: faults that a seed draws, and a record to judge."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.servers.tcp_proxy import Proxy
from tests.support.stories.queue_history import History
from tests.support.stories.queue_story import LIMITS, Crew, Writers, cancel_some, cut, finals_of, limit_queues

# Each with how often it is drawn beside the others.
WAYS: Final = {"kill": 6, "cut": 3, "terminate": 3, "stall": 1}
_WORKERS = 3
# Long enough that a worker on a busy machine keeps its leases unless it is stalled.
_SETTINGS: Final = {"lease": 6, "concurrency": 16, "claim_most": 50, "settle_most": 50, "latency_seconds": 0.1}
# What a worker that is gone may have done and not marked: the jobs in hand, two batches of marks, and two claims ahead.
MOST_REPEATS: Final = 16 + 2 * 50 + 2 * 50


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault after so many more jobs have ended, to the worker at a place if it concerns one."""

    way: str
    after_jobs: int
    place: int
    salt: int

    def __str__(self) -> str:
        return f"{self.way}:{self.place}" if self.way in ("kill", "stall") else self.way


@dataclass(frozen=True, slots=True)
class Run:
    """The record of a run, the faults of it, and how many marks of workers were refused."""

    history: History
    faults: tuple[str, ...]
    refused: int


def draw_faults(choose: random.Random, count: int) -> list[Fault]:
    """Each way at least once, in an order by chance."""
    ways = [*WAYS, *choose.choices([*WAYS], weights=[*WAYS.values()], k=count - len(WAYS))]
    choose.shuffle(ways)
    return [Fault(way, choose.randrange(30, 70), choose.randrange(_WORKERS), choose.getrandbits(31)) for way in ways]


def run_with_faults(url: str, directory: Path, choose: random.Random, count: int) -> Run:
    """Run writers and workers on the database of a story, and do one fault after the other to them."""
    faults, seed = draw_faults(choose, count), choose.getrandbits(31)
    limit_queues(url)
    with Proxy(url) as proxy:
        settings = {**_SETTINGS, "seed": seed}
        with Crew(proxy.url, directory, _WORKERS, settings, list(LIMITS)) as crew, Writers(proxy.url, seed) as writers:
            crew.wait_until_busy()
            cancelled = _disturb(url, proxy, crew, faults)
            writers.stop()
            crew.wait_until_idle(url)
            crew.stop()
        history = History(
            enqueued=writers.enqueued(url),
            handled=crew.calls,
            finals=finals_of(url),
            limits=LIMITS,
            gone=crew.gone,
            lost_claims=sum(fault.way in ("cut", "terminate") for fault in faults),
            cancelled=frozenset(cancelled),
        )
    return Run(history, tuple(map(str, faults)), crew.count("suspected_duplicates"))


def _disturb(url: str, proxy: Proxy, crew: Crew, faults: list[Fault]) -> set[int]:
    """The jobs that were cancelled, some before each fault."""
    cancelled: set[int] = set()
    for fault in faults:
        crew.wait_for_more(url, fault.after_jobs)
        cancelled.update(cancel_some(url, fault.salt))
        match fault.way:
            case "kill":
                crew.kill_one(fault.place)
            case "cut":
                proxy.cut()
            case "terminate":
                cut(url)
            case _:
                crew.stall_one(fault.place, url)
    crew.wait_for_more(url, 50)
    return cancelled
