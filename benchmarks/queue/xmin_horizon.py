"""A transaction is held open, so that nothing that is dead can be removed, while jobs are offered and worked off.

The backlog is what is not done one second after the last job was offered; it is not a number if the machine was too busy to
offer that many. It is printed how soon jobs began in the last part of the time, and in the first.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Final, cast

from psycopg import IsolationLevel

from benchmarks.queue import statements
from benchmarks.queue.steady_load import Ages, Offer, Offered, Receive, milliseconds
from benchmarks.queue.testbed import Testbed, start_testbed
from benchmarks.report import Bar, Output
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync
from headwater.queue import prepare_queue

PER_SECOND: Final = 800
# By fours, so that those who enqueue leave the worker and the server time on a machine with two processors.
PER_CALL: Final = 4
CONNECTIONS: Final = 4
_AFTER_SECONDS: Final = 1.0
_WATCH_SECONDS: Final = 0.5
# Which part of the load has to be offered.
_ENOUGH: Final = 0.95


@dataclass(frozen=True, slots=True)
class Sizes:
    seconds: float = 600.0
    # What counts as the first and as the last part.
    share: float = 0.1


QUICK = Sizes(seconds=6.0, share=0.3)


def measure(quick: bool, output: Output) -> list[Bar]:
    sizes = QUICK if quick else Sizes()
    with start_testbed(output, helpers=2) as testbed:
        prepare_queue(testbed.connection)
        with held(testbed.url):
            backlog = worked_off(testbed, sizes)
            output.figures["horizon_table_mb"] = round(testbed.number(statements.read_size()) / 2**20, 1)
    return [Bar("held_horizon_backlog", backlog, at_most=0.0)]


def worked_off(testbed: Testbed, sizes: Sizes) -> float:
    """The backlog at the end."""
    (producer, worker), figures, largest = testbed.helpers, testbed.output.figures, 0
    worker.begin(Receive(testbed.url))
    testbed.wait_until_ready([worker])
    with testbed.output.console.status(f"{PER_SECOND} jobs a second, under a transaction that is held open"):
        producer.begin(Offer(testbed.url, PER_SECOND, sizes.seconds, CONNECTIONS, PER_CALL))
        while not producer.is_done(_WATCH_SECONDS):
            largest = max(largest, producer.board.handled.value - worker.board.handled.value)
        offered = cast("Offered", producer.result())
        time.sleep(_AFTER_SECONDS)
        backlog = testbed.number(statements.count_ours())
        ages = cast("Ages", worker.finish())
    figures["horizon_offered_per_s"] = round(offered.jobs / offered.seconds, 1)
    figures["horizon_largest_backlog"] = largest
    figures["horizon_pickup_p50_ms_at_the_end"] = milliseconds(ages.of_last(sizes.share), 50)
    figures["horizon_pickup_p99_ms_at_the_end"] = milliseconds(ages.of_last(sizes.share), 99)
    figures["horizon_pickup_p99_ms_at_first"] = milliseconds(ages.of_first(sizes.share), 99)
    return measured(backlog, offered)


def measured(backlog: int, offered: Offered) -> float:
    """The backlog, if it is that of the load which is meant."""
    return backlog if offered.jobs / offered.seconds >= PER_SECOND * _ENOUGH else float("nan")


@contextmanager
def held(url: str) -> Iterator[None]:
    with closing(connect_sync(url, application_name="benchmark")) as connection:
        connection.isolation_level = IsolationLevel.REPEATABLE_READ
        with connection.transaction():
            fetch_sync(connection, statements.hold())
            yield
