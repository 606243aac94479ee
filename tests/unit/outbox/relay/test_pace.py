"""How long to wait from one attempt to the next."""

import random

import pytest

from headwater.outbox.relay.pace import Pace
from headwater.outbox.relay.settings import RelaySettings


def waits(per_second: float, seconds: float = 20.0) -> list[float]:
    """The waits of attempts while events come by chance, so many in a second on average."""
    pace, chance, now, waits = Pace(RelaySettings()), random.Random(17), 0.0, []
    arrival, since = chance.expovariate(per_second), 0
    while now < seconds:
        while arrival <= now:
            since, arrival = since + 1, arrival + chance.expovariate(per_second)
        if not since:
            now = arrival
            continue
        next_at = pace.next_at(since, now)
        waits.append(next_at - now)
        since, now = 0, next_at
    return waits


@pytest.mark.parametrize(("per_second", "wait"), [(5, 0.01), (200, 0.01), (600, 0.04), (5_000, 0.04)])
def test_under_load_attempts_are_fewer(per_second, wait):
    found = waits(per_second)[10:]
    assert sum(abs(one - wait) < 1e-6 for one in found) > 0.97 * len(found)


def test_the_first_event_and_one_after_a_pause_are_no_load():
    pace = Pace(RelaySettings())
    assert pace.next_at(1, 10.0) == pytest.approx(10.01)
    assert pace.next_at(1, 10.011) == pytest.approx(10.021)
