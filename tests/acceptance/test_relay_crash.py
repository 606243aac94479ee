"""Relays that are killed, or that share a table, and a database that is restarted under them: lost 0, repeats counted."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.outbox import RelaySettings
from tests.support.brokers.rabbitmq_node import RabbitmqNode
from tests.support.failpoints import Failpoints
from tests.support.servers.embedded import fresh_database, postgres_settings
from tests.support.stories.outbox_story import Producer, Queue, queue_access, tally
from tests.support.stories.relay_processes import (
    Program,
    RelayProducer,
    RelayThread,
    application,
    prepare_shop,
    require_none_lost,
    sales,
    wait_until_settled,
)

# How many events arrive between two faults.
SOME = 500
# Where a relay that sends as events come dies, and one that keeps their order.
POINTS = {
    "unordered": ("relay.claimed=kill@2", "relay.acknowledged=kill@3"),
    "ordered": ("relay.lease_renewal=kill@2", "relay.acknowledged=kill@3"),
}

pytestmark = pytest.mark.timeout(300)

Note = Callable[[str, object], None]


@pytest.fixture
def source(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        prepare_shop(url)
        yield url


@pytest.mark.parametrize("order", POINTS)
def test_a_relay_process_that_is_killed_at_each_point_loses_nothing(
    source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note, order: str
) -> None:
    broker = {"type": "rabbitmq", "url": rabbitmq.url, "routing_key": queue.name}
    points = Failpoints(tmp_path, ", ".join(POINTS[order]))
    is_ordered = order == "ordered"
    program = Program(source, broker, tmp_path, points.environment, order_by_key=is_ordered)
    with program, Producer(source, "sales") as producer:
        for _ in POINTS[order]:
            program.replace_killed()
        queue.wait_for_more(SOME)
        producer.stop()
        queue.wait_for(producer.committed, program.require_life, seconds=240)
        found = wait_until_settled(source)
        assert program.stop() == 0
    counted = tally(producer.committed, queue.arrived)
    record_property("counts", f"relay process, SIGKILL at {', '.join(sorted(points.fired))}: {counted}")
    assert points.fired == {point.partition("=")[0] for point in POINTS[order]}
    require_none_lost(counted)
    # Those that were acknowledged and not marked, and no more than one go to the broker and a save of what it took.
    settings = RelaySettings()
    assert 0 < counted.repeated <= 2 * (settings.window + settings.save_rows)
    assert (counted.disordered == 0) or not is_ordered
    assert found == {"published": counted.committed}


def test_an_application_that_is_killed_half_way_loses_nothing_that_it_has_committed(
    source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    points = Failpoints(tmp_path, "relay.acknowledged=kill@5")
    with application(source, rabbitmq.url, queue.name, "a", tmp_path, points.environment) as running:
        running.wait_until_killed()
    # Its events are another's when their leases have ended.
    with RelayThread(source, queue_access(rabbitmq.url, queue)) as other:
        committed = sales(source)
        queue.wait_for(committed, other.require_life)
        found = wait_until_settled(source)
    counted = tally(committed, queue.arrived)
    record_property("counts", f"application with a relay, SIGKILL behind the broker's answer: {counted}")
    assert points.fired == {"relay.acknowledged"}
    require_none_lost(counted)
    assert counted.repeated > 0
    assert found == {"published": counted.committed}


def test_two_instances_that_share_a_table_send_each_event_once(
    source: str, rabbitmq: RabbitmqNode, queue: Queue, record_property: Note
) -> None:
    with ExitStack() as stack:
        relays = [stack.enter_context(RelayThread(source, queue_access(rabbitmq.url, queue))) for _ in range(2)]
        producers: list[Producer] = [
            stack.enter_context(RelayProducer(each.relay, source, "sales", first=10 * number, writers=2))
            for number, each in enumerate(relays)
        ]
        # And one who writes and relays nothing, whose events any of them may take.
        producers.append(stack.enter_context(Producer(source, "sales", first=20, writers=2)))
        queue.wait_for_more(SOME)
        for producer in producers:
            producer.stop()
        committed = [message for producer in producers for message in producer.committed]
        queue.wait_for(committed, relays[0].require_life)
        found = wait_until_settled(source)
        revived = [each.relay.counts.revived for each in relays]
        suspected = [each.relay.counts.suspected_duplicates for each in relays]
    counted = tally(committed, queue.arrived)
    record_property("counts", f"two relays, {revived} claimed from the table by each: {counted}")
    require_none_lost(counted)
    assert (counted.repeated, suspected) == (0, [0, 0])
    assert found == {"published": counted.committed}
    assert sum(revived) >= len(producers[2].committed)


def test_a_database_that_is_restarted_and_killed_while_statuses_are_pending_loses_nothing(
    rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    # With its WAL on disk, as a server that may crash has to have it.
    settings = postgres_settings(18, fsync="on", full_page_writes="on")
    with EmbeddedPostgres(settings) as server:
        prepare_shop(server.url)
        with application(server.url, rabbitmq.url, queue.name, "a", tmp_path) as running:
            queue.wait_for_more(SOME)
            server.restart()
            queue.wait_for_more(SOME)
            server.kill()
            server.start()
            queue.wait_for_more(SOME)
            running.require_life()
            assert running.stop() == 0
        with RelayThread(server.url, queue_access(rabbitmq.url, queue)) as last:
            committed = sales(server.url)
            queue.wait_for(committed, last.require_life)
            found = wait_until_settled(server.url)
    counted = tally(committed, queue.arrived)
    record_property("counts", f"relay, database restarted and killed in the middle: {counted}")
    require_none_lost(counted)
    assert found == {"published": counted.committed}
