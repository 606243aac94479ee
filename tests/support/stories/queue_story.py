"""A queue with producers and workers in a story: what they did is recorded, so that it can be counted and judged."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self, cast

import psycopg

from headwater.errors import HeadwaterError
from headwater.postgres.connect import Connection, connect_sync
from headwater.queue import NewJob, enqueue_many_sync, prepare_queue
from tests.support.stories.queue_history import Enqueued, Final, Handled, History, Limits
from tests.support.stories.queue_worker import KIND
from tests.support.waiting import eventually

QUEUE = "plain"
# The connections of a worker, by what they are for.
CONNECTIONS = tuple(f"headwater queue {what}" for what in ("bell", "claims", "marks", "leases", "aside"))

# Jobs in a transaction of a load.
_EACH = 20


def prepare_story(url: str) -> None:
    """The queue; what producers write besides, which is there if and only if they committed; and effects of jobs."""
    with closing(connect_sync(url)) as connection:
        prepare_queue(connection)
        connection.execute("create table written (number int, job bigint)")
        connection.execute("create table effect (place bigint generated always as identity, job bigint, worker int)")


def fetch(url: str, query: str, *parameters: object) -> list[tuple[Any, ...]]:
    with closing(connect_sync(url)) as connection:
        return connection.execute(query.encode(), parameters).fetchall()


def enqueue_some(url: str, jobs: Sequence[NewJob], most: int = 500) -> list[int]:
    """In transactions of moderate size."""
    ids: list[int] = []
    with closing(connect_sync(url)) as connection:
        for begin in range(0, len(jobs), most):
            ids += enqueue_many_sync(connection, jobs[begin : begin + most])
    return ids


def states(url: str) -> dict[str, int]:
    """How many jobs are in each state."""
    return dict(fetch(url, "select state, count(*) from headwater.job_state group by state"))


def count_ended(url: str) -> int:
    """How many jobs are done, cancelled or given up; -1 while the server does not answer."""
    query = "select (select count(*) from headwater.job_done) + (select count(*) from headwater.job_dead)"
    with suppress(psycopg.OperationalError, HeadwaterError):
        return int(fetch(url, query)[0][0])
    return -1


def finals_of(url: str) -> list[Final]:
    query = "select id, state, attempt, extract(epoch from claimed_at)::double precision from headwater.job_state"
    return [Final(*row) for row in fetch(url, query)]


def cut(url: str, names: Iterable[str] = CONNECTIONS) -> int:
    """End connections of workers, by their names; how many there were."""
    query = """
        select count(pg_terminate_backend(pid))
          from pg_stat_activity
         where application_name = any(%s)
           and datname = current_database()
    """
    return int(fetch(url, query, list(names))[0][0])


class Load:
    """A thread that enqueues while fewer than `most_waiting` jobs wait, 20 in a transaction, of which one may take longer.

    What it did is in a table.
    """

    def __init__(self, url: str, *, slow_seconds: float | None = None, most_waiting: int = 200) -> None:
        self._url, self._slow_seconds, self._most_waiting = url, slow_seconds, most_waiting
        self._stopping = Event()
        self._errors: list[BaseException] = []
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping.set()
        self._thread.join()

    def stop(self) -> None:
        self.__exit__()
        assert not self._errors, self._errors

    def _run(self) -> None:
        number = 0
        try:
            while not self._stopping.is_set():
                # A server that is restarted is back in a moment.
                with suppress(psycopg.OperationalError, HeadwaterError), closing(connect_sync(self._url)) as connection:
                    while not self._stopping.wait(0.02):
                        if self._has_room(connection):
                            number += _EACH
                            self._enqueue(connection, number)
                self._stopping.wait(0.05)
        except BaseException as exc:  # noqa: BLE001 - it is for the test to see
            self._errors.append(exc)

    def _has_room(self, connection: Connection) -> bool:
        ((waiting,),) = connection.execute("select count(*) from headwater.job").fetchall()
        return int(waiting) < self._most_waiting

    def _enqueue(self, connection: Connection, number: int) -> None:
        numbers = range(number, number + _EACH)
        payloads: list[dict[str, float]] = [{"number": one} for one in numbers]
        if self._slow_seconds is not None:
            payloads[0]["seconds"] = self._slow_seconds
        with connection.transaction():
            ids = enqueue_many_sync(connection, [NewJob(KIND, payload, QUEUE) for payload in payloads])
            with connection.cursor() as cursor:
                cursor.executemany("insert into written values (%s, %s)", list(zip(numbers, ids, strict=True)))


class Writers:
    """Threads whose transactions enqueue all sorts of jobs, of which some roll back or do so to a savepoint."""

    def __init__(self, url: str, seed: int, *, threads: int = 3) -> None:
        self._url, self._seed = url, seed
        self._stopping = Event()
        self._numbers = count()
        self._tried: list[tuple[int, Enqueued]] = []
        self._errors: list[BaseException] = []
        self._threads = [Thread(target=self._guard, args=[number]) for number in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def stop(self) -> None:
        self.__exit__()
        assert not self._errors, self._errors

    def enqueued(self, url: str) -> list[Enqueued]:
        """What they did, by what is there."""
        written = {number for (number,) in fetch(url, "select number from written")}
        return [replace(one, is_committed=number in written) for number, one in self._tried]

    def _guard(self, writer: int) -> None:
        try:
            self._write(writer)
        except BaseException as exc:  # noqa: BLE001 - it is for the test to see
            self._errors.append(exc)

    def _write(self, writer: int) -> None:
        choose = random.Random(self._seed * 100 + writer)
        for generation in count():
            if self._stopping.wait(0.05):
                return
            # Nobody knows when a transaction ends whose connection was lost: what comes after it has other keys.
            name = f"w{writer}-{generation}"
            # Also a rollback, where the connection was lost before it.
            lost = suppress(psycopg.OperationalError, psycopg.Rollback, HeadwaterError)
            with lost, closing(connect_sync(self._url)) as connection:
                while not self._stopping.wait(choose.uniform(0, 0.1)):
                    self._transact(connection, name, choose)

    def _transact(self, connection: Connection, name: str, choose: random.Random) -> None:
        with connection.transaction():
            self._enqueue(connection, name, choose)
            with connection.transaction():
                self._enqueue(connection, name, choose)
                if choose.random() < 0.2:
                    raise psycopg.Rollback
            if choose.random() < 0.2:
                raise psycopg.Rollback

    def _enqueue(self, connection: Connection, name: str, choose: random.Random) -> None:
        jobs = [some_job(name, choose) for _ in range(choose.choice((1, 1, 2, 5)))]
        ids = enqueue_many_sync(connection, jobs)
        numbers = [next(self._numbers) for _ in jobs]
        for number, id, job in zip(numbers, ids, jobs, strict=True):
            discards = bool(cast("dict[str, object]", job.payload).get("discards"))
            one = Enqueued(id, False, job.queue, job.key, job.unique, job.idempotency_key, discards)
            self._tried.append((number, one))
        with connection.cursor() as cursor:
            cursor.executemany("insert into written values (%s, %s)", list(zip(numbers, ids, strict=True)))


def some_job(name: str, choose: random.Random) -> NewJob:
    """Of one of the queues of a story. Those that share a key with others are all alike, since one stands for all."""
    chance = choose.random()
    if chance < 0.05:
        return NewJob(KIND, {}, "plain", unique=f"u{choose.randrange(5)}")
    if chance < 0.1:
        return NewJob(KIND, {}, "plain", idempotency_key=f"i{choose.randrange(50)}")
    payload = {"fails": choose.choice((0, 0, 0, 0, 0, 1, 2)), "discards": choose.random() < 0.05}
    match choose.choices(("plain", "ordered", "limited", "paced"), weights=(4, 3, 2, 1))[0]:
        case "plain":
            due = datetime.now(UTC) + timedelta(seconds=choose.choice((-1, 0, 0, 0.3)))
            return NewJob(KIND, payload, "plain", due, choose.randrange(10))
        case "paced":
            return NewJob(KIND, payload, "paced")
        case "ordered":
            return NewJob(KIND, payload, "ordered", key=f"{name}-{choose.randrange(3)}")
        case queue:
            return NewJob(KIND, payload, queue, priority=choose.randrange(3), key=f"k{choose.randrange(4)}")


# The queues that writers write to, and what is promised of them.
LIMITS = {
    "plain": Limits(),
    "ordered": Limits(is_ordered=True),
    "limited": Limits(most_running=3, most_running_per_key=1),
    "paced": Limits(rate=40),
}


def limit_queues(url: str) -> None:
    with closing(connect_sync(url)) as connection:
        for name, limits in LIMITS.items():
            connection.execute(
                "insert into headwater.queue (name, is_ordered, most_running, most_running_per_key, rate) "
                "values (%s, %s, %s, %s, %s)",
                [name, limits.is_ordered, limits.most_running, limits.most_running_per_key, limits.rate],
            )


def cancel_some(url: str, salt: int, most: int = 5) -> list[int]:
    """Cancel some jobs that are scheduled or claimed; the salt chooses among them."""
    query = """
        select id
          from headwater.queue_cancel_1(array(select id from headwater.job order by hashint8extended(id, %s) limit %s))
    """
    return [id for (id,) in fetch(url, query, salt, most)]


@dataclass(slots=True)
class Running:
    """A worker as a process, and the file that it writes."""

    process: "subprocess.Popen[bytes]"
    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def calls(self) -> list[Handled]:
        return calls_of(self.path)

    @property
    def counts(self) -> dict[str, int]:
        """What the worker has counted, known when it has ended in good order."""
        (line,) = [line for line in self.path.read_text().splitlines() if line.startswith("counts ")]
        found: dict[str, int] = json.loads(line.removeprefix("counts "))
        return found

    @property
    def said(self) -> str:
        return self.path.with_suffix(".log").read_text(errors="replace")[-3000:]

    def ask_to_stop(self) -> None:
        """When it can hear that, which one who was just started cannot."""
        eventually(lambda: self.path.stat().st_size or self.process.poll() is not None, seconds=60)
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """In good order."""
        self.ask_to_stop()
        assert self.process.wait(60) == 0, self.said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(slots=True)
class Crew:
    """Workers as processes, what they wrote down, and who of them is gone since when."""

    url: str
    directory: Path
    size: int = 2
    settings: Mapping[str, object] = field(default_factory=dict)
    queues: Sequence[str] = (QUEUE,)
    environment: Mapping[str, str] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    everybody: list[Running] = field(default_factory=list)
    gone: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        for _ in range(self.size):
            self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        for one in self.everybody:
            if one.process.poll() is None:
                one.kill()

    def start(self) -> Running:
        path = self.directory / f"worker-{len(self.everybody)}.txt"
        path.touch()
        given = {"url": self.url, "path": str(path), "queues": list(self.queues), **self.settings}
        with path.with_suffix(".log").open("wb") as log:
            command = [sys.executable, "-m", "tests.support.stories.queue_worker", json.dumps(given)]
            process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=Path(__file__).parents[3], env={**os.environ, **self.environment}
            )
        one = Running(process, path)
        self.running.append(one)
        self.everybody.append(one)
        return one

    def wait_until_there(self) -> None:
        """Until each waits for jobs."""
        query = "select count(*) from pg_stat_activity where application_name = %s and datname = current_database()"
        self.wait(lambda: fetch(self.url, query, CONNECTIONS[0])[0][0] >= len(self.running))

    def wait_until_busy(self) -> None:
        """Until each has begun something."""
        self.wait(lambda: all(one.calls for one in self.running))

    def kill_one(self, place: int) -> Running:
        """And start another one."""
        one = self.running.pop(place)
        one.kill()
        self.gone[one.name] = time.monotonic_ns()
        self.start()
        return one

    def replace_killed(self) -> Running | None:
        """Start another one for one that a failpoint has killed, if there is such a one."""
        for one in self.running:
            assert one.process.poll() in (None, -signal.SIGKILL), one.said
            if one.process.returncode is not None:
                self.running.remove(one)
                self.gone[one.name] = time.monotonic_ns()
                self.start()
                return one
        return None

    def stall_one(self, place: int, url: str) -> None:
        """Have one stand still until others have all that it had, and go on; and replace it then."""
        self.wait_until_busy()
        one = self.running[place]
        one.process.send_signal(signal.SIGSTOP)
        self.gone[one.name] = time.monotonic_ns()
        has = "select from headwater.job where worker like %s limit 1"
        try:
            eventually(lambda: not fetch(url, has, f"%:{one.process.pid}"), seconds=60)
        finally:
            one.process.send_signal(signal.SIGCONT)
        self.replace(one)

    def replace(self, one: Running) -> None:
        """Start another one, and stop this one in good order."""
        self.start()
        self.running.remove(one)
        one.stop()

    def stop(self) -> None:
        for one in self.running:
            one.ask_to_stop()
        for one in self.running:
            assert one.process.wait(60) == 0, one.said

    def require_life(self) -> None:
        for one in self.running:
            assert one.process.poll() is None, f"{one.name} has ended with {one.process.returncode}: {one.said}"

    def wait(self, probe: Callable[[], object], seconds: float = 90) -> None:
        """Wait for something of their doing, as long as all live."""

        def look() -> bool:
            self.require_life()
            return bool(probe())

        eventually(look, seconds=seconds)

    def wait_for_more(self, url: str, count: int) -> None:
        """Until so many more jobs have ended."""
        self.wait(lambda: count_ended(url) >= 0)
        wanted = count_ended(url) + count
        self.wait(lambda: count_ended(url) >= wanted)

    def wait_until_idle(self, url: str) -> None:
        """Until no job is left that is not finished."""

        def is_idle() -> bool:
            with suppress(psycopg.OperationalError, HeadwaterError):
                return not fetch(url, "select from headwater.job limit 1")
            return False

        self.wait(is_idle)

    @property
    def calls(self) -> list[Handled]:
        return [call for one in self.everybody for call in one.calls]

    def count(self, name: str) -> int:
        """The sum of what those have counted who ended in good order."""
        return sum(one.counts[name] for one in self.everybody if one.process.returncode == 0)

    def history(self, url: str) -> History:
        """Of jobs that a load has enqueued."""
        enqueued = [Enqueued(id) for (id,) in fetch(url, "select job from written")]
        return History(enqueued, self.calls, finals_of(url), gone=self.gone)


def calls_of(path: Path) -> list[Handled]:
    """The calls that a worker wrote down."""
    found: dict[tuple[int, int], Handled] = {}
    for line in path.read_text().splitlines():
        what, *rest = line.split(" ", 4)
        if what in ("there", "counts"):
            continue
        id, attempt, at, *claimed = map(int, rest)
        if what == "began":
            assert (id, attempt) not in found, f"{path.stem} has begun attempt {attempt} of job {id} twice"
            found[id, attempt] = Handled(id, attempt, path.stem, at, claimed=claimed[0])
        else:
            found[id, attempt] = replace(found[id, attempt], ended=at, outcome=what)
    return list(found.values())
