"""A client killed at telling points of a load loses nothing, repeats only what was not confirmed, and keeps the order."""

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from headwater.postgres.connect import connect_sync
from tests.support.failpoints import Failpoints
from tests.support.stories.tail_client import EventLoad, TailClient, compare, prepare_capture

# Before the first report to the server, and before later ones, which confirm what was printed.
REPORTS = ("slot.confirm=kill", "slot.confirm=kill@3", "slot.confirm=kill@2")


@pytest.mark.timeout(300)
def test_a_client_killed_under_load_loses_nothing_and_keeps_the_order(
    database: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with connect_sync(database) as connection:
        prepare_capture(connection)
        client = TailClient(database, connection, tmp_path)
        with EventLoad(database, random.Random(3)):
            for number, terms in enumerate(REPORTS):
                directory = tmp_path / f"{number}"
                directory.mkdir()
                points = Failpoints(directory, terms)
                assert client.run_until_failpoint(points.environment) == -signal.SIGKILL
                assert points.fired == {"slot.confirm"}
                # In the middle of printing, and of a backlog that has gathered while no client ran.
                client.run_until_bytes(100_000 * number)
            # Four reports, one each second, while it prints no more than a pipe holds.
            (directory := tmp_path / "unread").mkdir()
            unread = Failpoints(directory, "slot.confirm=kill@4")
            assert client.run_unread_until_failpoint(unread.environment) == -signal.SIGKILL
        client.run_to_the_end()
        found = compare(connection, client.runs)
    record_property("counts", f"client killed {2 * len(REPORTS) + 1} times: {found}")
    assert found.is_kept
    # It was a test of something: changes that were printed and not confirmed came again.
    assert found.repeated > 0
