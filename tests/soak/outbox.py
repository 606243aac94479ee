"""A relay from an outbox to RabbitMQ whose parts are killed, whose broker is cut off and whose slot is dropped, in turn.

Committed are messages. Each fault that ends a batch may repeat that batch; the loss of a slot repeats nothing.
"""

from contextlib import ExitStack
from pathlib import Path

from headwater.embedded import EmbeddedPostgres
from headwater.outbox.checkpoint import prepare_outbox
from tests.soak.story import Counts, Round
from tests.support.brokers.rabbitmq_node import RabbitmqNode
from tests.support.servers.embedded import postgres_settings
from tests.support.servers.tcp_proxy import Proxy
from tests.support.stories.outbox_story import NAME, Producer, Queue, is_streaming, lose_slot, tally, write_relay_file
from tests.support.stories.pipeline_process import Runner, kill, running
from tests.support.waiting import eventually

_FAULTS = ("driver", "worker", "planner", "broker", "slot")
# The least that `max_bytes` of a batch may be, and how many rows a chunk of a recovery has.
_BATCH_BYTES, _RECOVERY_ROWS = 65_536, 200
# By one fault: the messages of a batch. Each is an insert of at least 181 bytes in pgoutput, which is that of message 1 of a
# key; a chunk of a recovery has fewer messages.
_MOST_REPEATS = _BATCH_BYTES // 181


def run(round: Round) -> Counts:
    choose = round.random
    # Every fault may come between any two others, and the slot is lost at least once.
    faults = [*choose.choices(_FAULTS, k=choose.randint(3, 4)), "slot"]
    choose.shuffle(faults)
    plan = [(fault, choose.randrange(50, 400)) for fault in faults]
    lane_by = choose.choice(["outbox", "key"])
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedPostgres(postgres_settings(18)))
        node = stack.enter_context(RabbitmqNode())
        queue, proxy = stack.enter_context(Queue(node)), stack.enter_context(Proxy(node.url))
        prepare_outbox(server.url)
        _write_file(round.directory, server.url, proxy.url, queue, lane_by)
        runner = stack.enter_context(running(round.directory))
        eventually(lambda: is_streaming(server.url), seconds=240)
        with Producer(server.url, NAME, paced_by=queue, seed=round.seed) as producer:
            for fault, messages in plan:
                queue.wait_for_more(messages)
                _inject(fault, runner, server, proxy)
            queue.wait_for_more(100)
        queue.wait_for(producer.committed, runner.require_life, seconds=240)
        assert runner.stop() == 0
    found = tally(producer.committed, queue.arrived)
    assert found.ghosts == 0, str(found)
    return Counts(
        committed=found.committed,
        lost=found.lost,
        repeated=found.repeated,
        out_of_order=found.disordered,
        allowed_repeats=_MOST_REPEATS * sum(fault != "slot" for fault in faults),
        faults=tuple(f"{fault}@{messages}" for fault, messages in plan),
        variant=(f"lanes:{lane_by}",),
    )


def _write_file(directory: Path, source: str, broker: str, queue: Queue, lane_by: str) -> None:
    keys = {"checkpoint_interval": "1s", "max_bytes": _BATCH_BYTES, "recovery_rows": _RECOVERY_ROWS, "lane_by": lane_by}
    sink = {"type": "rabbitmq", "url": broker, "routing_key": queue.name}
    write_relay_file(directory, directory / "checkpoint", {"url": source, **keys}, sink)


def _inject(fault: str, runner: Runner, server: EmbeddedPostgres, proxy: Proxy) -> None:
    match fault:
        case "broker":
            said = runner.log.count("trying again in")
            proxy.refuse = True
            proxy.cut()
            eventually(lambda: runner.log.count("trying again in") > said, seconds=120)
            proxy.refuse = False
        case "slot":
            lose_slot(server.url)
        case _:
            kill(fault, runner, server, server)
