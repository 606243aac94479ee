"""A pipeline under load whose parts are killed at failpoints and at random; in some rounds, a client of capture instead.

Every start of the driver arms one failpoint. When that has fired, some parts are killed, each after some more rows.
"""

import random
from dataclasses import dataclass

from headwater.embedded import EmbeddedPostgres
from headwater.postgres.connect import connect_sync
from tests.soak.story import Counts, Round
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import postgres_settings
from tests.support.stories.account_load import NAMES, AccountLoad, create_accounts, steps_back, wait_for_entries
from tests.support.stories.pipeline_process import Runner, kill, running, settle, write_file
from tests.support.stories.tail_client import EventLoad, TailClient, compare, prepare_capture

# With the largest hit to draw: batches are as frequent as the load lets them be, reports and renewals come once a second.
POINTS = {
    "batch.begin": 8,
    "sink.written": 8,
    "pipeline.lease_renewal": 6,
    "source.partitions": 8,
    "slot.confirm": 5,
    "postgres_sink.applied": 5,
    "postgres_sink.committed": 5,
}
# Failpoints that end the process which the runner started.
OF_DRIVER = ("batch.begin", "sink.written", "pipeline.lease_renewal")
VICTIMS = ("driver", "worker", "planner", "source", "target")


@dataclass(frozen=True)
class Stage:
    """A start of the driver: the point that it is armed with, and what is killed afterwards, after how many more rows."""

    point: str
    hit: int
    kills: tuple[tuple[str, int], ...]

    @property
    def term(self) -> str:
        return f"{self.point}=kill@{self.hit}"


def run(round: Round) -> Counts:
    return _kill_client(round) if round.random.random() < 0.25 else _kill_pipeline(round)


def _draw_stage(choose: random.Random) -> Stage:
    point = choose.choice(list(POINTS))
    kills = tuple((choose.choice(VICTIMS), choose.randint(1, 300)) for _ in range(choose.randint(1, 2)))
    return Stage(point, choose.randint(1, POINTS[point]), kills)


def _kill_pipeline(round: Round) -> Counts:
    choose = round.random
    lane_by, seed = choose.choice(["table", "key"]), choose.randrange(2**31)
    stages = [_draw_stage(choose) for _ in range(2)]
    faults: list[str] = []
    with EmbeddedPostgres(postgres_settings(18)) as source, EmbeddedPostgres(postgres_settings(18)) as target:
        create_accounts(source.url, target.url)
        urls, tables = {"source": source.url, "target": target.url}, [f"public.{name}" for name in NAMES]
        write_file(round.directory, "crash", **urls, tables=tables, lane_by=lane_by, max_bytes="1MiB")
        first, *others = [_arm(round, number, stage) for number, stage in enumerate(stages)]
        with running(round.directory, first.environment) as runner:
            with AccountLoad(source.url, target.url, random.Random(seed)):
                _wait_for_point(runner, first, stages[0], faults)
                _kill_parts(runner, source, target, stages[0], faults)
                for points, stage in zip(others, stages[1:], strict=True):
                    runner.kill(points.environment)
                    faults.append("driver")
                    _wait_for_point(runner, points, stage, faults)
                    _kill_parts(runner, source, target, stage, faults)
            found = settle(runner, source.url, target.url, NAMES)
            assert runner.stop() == 0
        backwards = steps_back(target.url)
    lost = found.lost + found.ghosts
    return Counts(found.rows, lost, found.twice, backwards, faults=tuple(faults), variant=(f"lanes:{lane_by}",))


def _arm(round: Round, number: int, stage: Stage) -> Failpoints:
    directory = round.directory / f"stage{number}"
    directory.mkdir()
    return Failpoints(directory, stage.term)


def _wait_for_point(runner: Runner, points: Failpoints, stage: Stage, faults: list[str]) -> None:
    if stage.point in OF_DRIVER:
        runner.wait_for_kill()
        runner.start()
    points.wait_for(stage.point)
    faults.append(stage.term)


def _kill_parts(runner: Runner, source: EmbeddedPostgres, target: EmbeddedPostgres, stage: Stage, faults: list[str]) -> None:
    for victim, entries in stage.kills:
        wait_for_entries(target.url, entries, runner.require_life)
        kill(victim, runner, source, target)
        faults.append(f"{victim}+{entries}")


def _kill_client(round: Round) -> Counts:
    """Kill `headwater tail` at reports to the server, and after so many bytes of output."""
    choose = round.random
    seed = choose.randrange(2**31)
    kills = [(choose.choice(["report", "output"]), choose.randint(1, 4), choose.randrange(400_000)) for _ in range(8)]
    faults = []
    with EmbeddedPostgres(postgres_settings(18)) as server, connect_sync(server.url) as connection:
        prepare_capture(connection)
        client = TailClient(server.url, connection, round.directory)
        with EventLoad(server.url, random.Random(seed)):
            for number, (kind, hit, size) in enumerate(kills):
                if kind == "report":
                    points = _arm(round, number, Stage("slot.confirm", hit, ()))
                    client.run_until_failpoint(points.environment)
                    points.wait_for("slot.confirm", seconds=1)
                    faults.append(f"client:slot.confirm=kill@{hit}")
                else:
                    client.run_until_bytes(size)
                    faults.append(f"client+{size}B")
        client.run_to_the_end()
        found = compare(connection, client.runs)
    return Counts(
        committed=found.changes,
        lost=found.lost + found.wrong,
        repeated=found.repeated,
        out_of_order=found.out_of_order,
        allowed_repeats=found.unconfirmed if found.confirmed_again == 0 else 0,
        faults=tuple(faults),
        variant=("client",),
    )
