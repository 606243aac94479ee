"""A topic whose members and producers are killed, cut off and lose their server: faults that a seed draws, and a record."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headwater.embedded import EmbeddedPostgres
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import postgres_settings
from tests.support.servers.tcp_proxy import Proxy
from tests.support.stories.topic_history import History
from tests.support.stories.topic_story import Crew, Writers, effects, is_read, prepare_story, read_log
from tests.support.waiting import eventually

# Each with how often it is drawn beside the others.
WAYS: Final = {"kill": 6, "cut": 3, "restart": 1, "crash": 1}


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault, to the process of members at a place if it concerns one."""

    way: str
    place: int

    def __str__(self) -> str:
        return f"{self.way}:{self.place}" if self.way == "kill" else self.way


def draw_faults(choose: random.Random, count: int) -> list[Fault]:
    """Each way at least once, in an order by chance."""
    ways = [*WAYS, *choose.choices([*WAYS], weights=[*WAYS.values()], k=count - len(WAYS))]
    choose.shuffle(ways)
    return [Fault(way, choose.randrange(2)) for way in ways]


def run_with_faults(directory: Path, seed: int, faults: Sequence[Fault], kills: Sequence[str] = ()) -> History:
    """Kill processes at failpoints, and then do one fault after the other, each when all groups have gone on."""
    points = Failpoints(directory, ", ".join(kills))
    # With its WAL on disk, as a server that may crash has to have it.
    with EmbeddedPostgres(postgres_settings(18, fsync="on", full_page_writes="on")) as server:
        prepare_story(server.url)
        with (
            Proxy(server.url) as proxy,
            Crew(proxy.url, directory, seed, environment=points.environment) as crew,
            Writers(proxy.url, seed) as writers,
        ):
            for _ in kills:
                eventually(crew.replace_killed, seconds=60)
            for fault in faults:
                crew.wait_for_more()
                _do(fault, server, proxy, crew)
            crew.wait_for_more()
            writers.stop()
            crew.stop("producer")
            eventually(lambda: is_read(server.url), seconds=60)
            crew.stop("member")
        assert points.fired == {term.partition("=")[0] for term in kills}
        appends = [*writers.appends(server.url), *crew.appends()]
        cuts = sum(fault.way != "kill" for fault in faults)
        return History(appends, read_log(server.url), crew.groups(effects(server.url), cuts))


def _do(fault: Fault, server: EmbeddedPostgres, proxy: Proxy, crew: Crew) -> None:
    match fault.way:
        case "kill":
            crew.kill_one(fault.place)
        case "cut":
            proxy.cut()
        case "restart":
            server.restart()
        case _:
            server.kill()
            server.start()
