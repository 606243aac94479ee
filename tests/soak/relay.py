"""A relay process that is killed, cut off from its broker before and after answers, and left without one.

Committed are events of an outbox, and repeated those that came more than once, of which a fault may cause as many as the
broker had and the table had not marked. The order counts in rounds whose relay keeps it.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from headwater.embedded import EmbeddedPostgres
from tests.soak.story import Counts, Round
from tests.support.brokers.rabbitmq_node import RabbitmqNode
from tests.support.servers.embedded import postgres_settings
from tests.support.servers.tcp_proxy import Proxy
from tests.support.stories.outbox_story import Producer, Queue, tally
from tests.support.stories.relay_processes import Program, prepare_shop, wait_until_settled
from tests.support.waiting import eventually

_FAULTS = 8
_WAYS: Final = ("kill", "cut", "mute", "away")
_SIZES: Final[Mapping[str, Any]] = {"window": 200, "save_rows": 100}
# By one fault: the window that the broker had and had not answered is sent again.
_UNANSWERED: Final[int] = _SIZES["window"]
# A kill repeats also the events that were answered and not marked: as many rows as are being marked, and as many as wait for
# that. A relay that keeps the order marks each window before it sends the next one, and so has none of them.
_UNMARKED: Final[int] = 2 * _SIZES["save_rows"]


def run(round: Round) -> Counts:
    faults, is_ordered = _draw(round.random), round.random.random() < 0.5
    with EmbeddedPostgres(postgres_settings(18)) as server, RabbitmqNode() as node:
        prepare_shop(server.url)
        with Queue(node) as queue, Proxy(node.url) as proxy:
            broker = {"type": "rabbitmq", "url": proxy.url, "routing_key": queue.name}
            program = Program(server.url, broker, round.directory, order_by_key=is_ordered, **_SIZES)
            with program, Producer(server.url, "sales", seed=round.seed) as producer:
                for way, events in faults:
                    queue.wait_for_more(events)
                    _do(way, program, proxy, queue, producer)
                producer.stop()
                queue.wait_for(producer.committed, program.require_life, seconds=240)
                wait_until_settled(server.url)
                assert program.stop() == 0
            found = tally(producer.committed, queue.arrived)
    assert found.ghosts == 0, found
    return Counts(
        committed=found.committed,
        lost=found.lost,
        repeated=found.repeated,
        out_of_order=found.disordered if is_ordered else 0,
        allowed_repeats=_most_repeats([way for way, _ in faults], is_ordered=is_ordered),
        faults=tuple(way for way, _ in faults),
        variant=("ordered" if is_ordered else "unordered",),
    )


def _draw(choose: Random) -> Sequence[tuple[str, int]]:
    """Each way at least once, and after how many more events that have arrived."""
    ways = [*_WAYS, *choose.choices(_WAYS, k=_FAULTS - len(_WAYS))]
    choose.shuffle(ways)
    return [(way, choose.randrange(100, 600)) for way in ways]


def _most_repeats(ways: Sequence[str], *, is_ordered: bool) -> int:
    return _UNANSWERED * len(ways) + (0 if is_ordered else _UNMARKED * ways.count("kill"))


def _do(way: str, program: Program, proxy: Proxy, queue: Queue, producer: Producer) -> None:
    match way:
        case "kill":
            program.kill()
        case "cut":
            proxy.cut()
        case "mute":
            # Events arrive, and the relay does not hear of it before its connection ends.
            proxy.mute, before = True, len(queue.arrived)
            eventually(lambda: len(queue.arrived) > before, seconds=60)
            proxy.cut()
            proxy.mute = False
        case _:
            proxy.refuse = True
            proxy.cut()
            producer.wait_for_more(300)
            proxy.refuse = False
