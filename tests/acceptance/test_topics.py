"""A topic under everything that goes wrong at once, judged by the record of all appends and deliveries.

Writers roll back, members are killed, connections cut, and the server restarted and crashed, in an order by chance; the seed
is shown, and HEADWATER_SEED repeats the order.
"""

import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from headwater.embedded import EmbeddedPostgres
from tests.proxy import Proxy
from tests.servers import postgres_settings
from tests.topic_history import History, Promise
from tests.topic_story import Members, Writers, effects, is_read, prepare_story, read_log
from tests.waiting import eventually

LONG = os.environ.get("HEADWATER_LONG") == "1"
FAULTS = 150 if LONG else 8
# What each group writes down between two faults: some 50 messages.
SOME_BYTES = 2_000

pytestmark = pytest.mark.timeout(3600 if LONG else 300)

Note = Callable[[str, object], None]


def test_a_run_with_rollbacks_kills_cuts_and_restarts_keeps_every_promise(tmp_path: Path, record_property: Note) -> None:
    seed = int(os.environ.get("HEADWATER_SEED", random.randrange(2**31)))
    # With its WAL on disk, as a server that may crash has to have it.
    with EmbeddedPostgres(postgres_settings(18, fsync="on", full_page_writes="on")) as server:
        prepare_story(server.url)
        with Proxy(server.url) as proxy, ExitStack() as stack:
            groups = [stack.enter_context(members) for members in members_of(proxy.url, tmp_path)]
            writers = stack.enter_context(Writers(proxy.url, seed))
            faults = disturb(server, proxy, groups, seed)
            writers.stop()
            eventually(lambda: is_read(server.url), seconds=60)
            for members in groups:
                members.stop()
        found = [members.group(effects(server.url)) for members in groups]
        history = History(writers.appends(server.url), read_log(server.url), found)
    record_property("counts", f"topic, seed {seed}, {' '.join(faults)}: {history.counts()}")
    assert history.violations() == [], f"seed {seed}"
    assert history.log
    assert {one.is_committed for one in history.appends} >= {True, False}


def members_of(url: str, directory: Path) -> list[Members]:
    return [
        Members(url, "least", Promise.AT_LEAST_ONCE, "partition", directory),
        Members(url, "forgetful", Promise.AT_LEAST_ONCE, "partition", directory, commit_waits=False),
        Members(url, "most", Promise.AT_MOST_ONCE, "partition", directory, subscribers=1),
        Members(url, "exactly", Promise.EXACTLY_ONCE, "partition", directory),
        Members(url, "shared", Promise.AT_LEAST_ONCE, "shared", directory, size=3),
    ]


def disturb(server: EmbeddedPostgres, proxy: Proxy, groups: list[Members], seed: int) -> list[str]:
    """One fault after the other, each when all groups have gone on since the last; returns what was done."""
    choose = random.Random(seed)
    ways: dict[str, Callable[[], None]] = {
        "kill": lambda: choose.choice(groups).kill_one(choose),
        "cut": proxy.cut,
        "restart": server.restart,
        "crash": lambda: crash(server),
    }
    # Each at least once.
    done = [*ways, *choose.choices([*ways], weights=(6, 3, 1, 1), k=FAULTS - len(ways))]
    choose.shuffle(done)
    for way in done:
        wait_for_more(groups)
        ways[way]()
    wait_for_more(groups)
    return done


def crash(server: EmbeddedPostgres) -> None:
    server.kill()
    server.start()


def wait_for_more(groups: list[Members]) -> None:
    wanted = {members.name: members.bytes_written() + SOME_BYTES for members in groups}

    def is_going_on(members: Members) -> bool:
        members.require_life()
        return members.bytes_written() > wanted[members.name]

    for members in groups:
        eventually(partial(is_going_on, members), seconds=60)
