"""A slot that is lost time and again, with the recovery killed: no row is lost, and none is left that was deleted.

The slot is dropped, or dropped and made anew, while the pipeline is down, or invalidated while it runs. Rows are deleted
while there is no slot, and while the tables are read again.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from headwater.embedded import EmbeddedPostgres
from headwater.postgres.connect import connect_sync
from tests.soak.story import Counts, Round
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import postgres_settings
from tests.support.stories.pipeline_process import Runner, execute, fetch, kill, running, settle, write_file
from tests.support.waiting import eventually

NAMES = ("item", "entry")
SCHEMA = (
    "create table item (id int primary key, v text not null)",
    # Without a key, so that a row which is delivered twice is there twice.
    "create table entry (id int, v text)",
    "alter table entry replica identity full",
    "insert into item select g, 'first' from generate_series(1, 20000) g",
    "insert into entry select g, 'first' from generate_series(1, 20000) g",
)
CHANGES = (
    "delete from item where id % 100 = {0}",
    "delete from entry where id % 100 = {0}",
    "update item set v = 'change {0}' where id % 100 = {0} + 1",
    "insert into entry select 100000 + {0} * 1000 + g, 'new' from generate_series(1, 50) g",
)
POINTS = ("slot.renewal_requested", "slot.renewal_recorded", "slot.renewal_created", "snapshot.opened", "snapshot.swap")
OF_DRIVER = tuple(point for point in POINTS if point != "snapshot.opened")
# The servers are left alone: the source must not forget that it gave the slot up, nor the target what it waits for.
VICTIMS = ("driver", "worker", "planner")
DROP = "select pg_drop_replication_slot('lossy')"
MAKE = "select pg_create_logical_replication_slot('lossy', 'pgoutput')"


@dataclass(frozen=True)
class Loss:
    """How a slot is lost, the point at which the recovery is killed, and what is killed after that."""

    how: str
    point: str
    victims: tuple[str, ...]


def run(round: Round) -> Counts:
    choose = round.random
    losses = [_draw(choose) for _ in range(2)]
    faults: list[str] = []
    small = postgres_settings(18, max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="64MB")
    with EmbeddedPostgres(small) as source, EmbeddedPostgres(postgres_settings(18)) as target:
        execute(source.url, *SCHEMA)
        urls, tables = {"source": source.url, "target": target.url}, [f"public.{name}" for name in NAMES]
        top = f'state_url = "{target.url}"'
        write_file(round.directory, "lossy", top=top, **urls, tables=tables, on_slot_loss="resnapshot")
        with running(round.directory) as runner:
            changes = _changes()
            assert settle(runner, source.url, target.url, NAMES).is_none
            for number, loss in enumerate(losses):
                directory = round.directory / f"loss{number}"
                directory.mkdir()
                _lose(loss, runner, source.url, target.url, Failpoints(directory, f"{loss.point}=kill"), changes)
                faults += [loss.how, f"{loss.point}=kill"]
                for victim in loss.victims:
                    kill(victim, runner, source, target)
                    faults.append(victim)
                    execute(source.url, *next(changes))
                found = settle(runner, source.url, target.url, NAMES)
                assert found.is_none, str(found)
            execute(source.url, *next(changes))
            found = settle(runner, source.url, target.url, NAMES)
            assert runner.stop() == 0
    return Counts(found.rows, found.lost + found.ghosts, found.twice, faults=tuple(faults))


def _draw(choose: random.Random) -> Loss:
    victims = tuple(choose.choice(VICTIMS) for _ in range(choose.randint(0, 2)))
    return Loss(choose.choice(["dropped", "made anew", "invalidated"]), choose.choice(POINTS), victims)


def _changes() -> Iterator[Sequence[str]]:
    for number in range(0, 98, 2):
        yield [statement.format(number) for statement in CHANGES]


def _lose(
    loss: Loss, runner: Runner, source: str, target: str, points: Failpoints, changes: Iterator[Sequence[str]]
) -> None:
    """Lose the slot, and wait until the recovery was killed once and goes on."""
    if loss.how == "invalidated":
        runner.kill(points.environment)
        execute(source, *next(changes))
        assert settle(runner, source, target, NAMES).is_none
        with _blocked(target):
            execute(source, *next(changes))
            _invalidate(source)
            execute(source, *next(changes))
    else:
        runner.end()
        execute(source, *next(changes))
        eventually(lambda: fetch(source, "select from pg_replication_slots where not active"), seconds=60)
        execute(source, DROP, *next(changes))
        if loss.how == "made anew":
            execute(source, MAKE)
        runner.start(points.environment)
    if loss.point in OF_DRIVER:
        runner.wait_for_kill()
        execute(source, *next(changes))
        runner.start()
    points.wait_for(loss.point)
    execute(source, *next(changes))


@contextmanager
def _blocked(target: str) -> Iterator[None]:
    """Nothing can be written to the target: changes are not confirmed, and the slot stays behind."""
    with closing(connect_sync(target)) as connection, connection.transaction():
        connection.execute("lock table item in access exclusive mode")
        yield


def _invalidate(source: str) -> None:
    """Write WAL until the server gives the slot up."""

    def look() -> bool:
        execute(source, "select pg_logical_emit_message(false, 'noise', 'x')", "select pg_switch_wal()", "checkpoint")
        return fetch(source, "select wal_status from pg_replication_slots where slot_name = 'lossy'") == [("lost",)]

    eventually(look, seconds=60)
