"""Relays that are killed, or that share a table, and a database that is restarted under them: lost 0, repeats counted."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headwater.embedded import EmbeddedPostgres
from tests.outbox import Producer, Queue, queue_access, tally
from tests.rabbitmq import RabbitmqNode
from tests.relaying import (
    Program,
    RelayProducer,
    RelayThread,
    application,
    prepare_shop,
    require_none_lost,
    sales,
    wait_until_settled,
)
from tests.servers import fresh_database, postgres_settings

LONG = os.environ.get("HEADWATER_LONG") == "1"
SOME = 25_000 if LONG else 1_000
KILLS = 5 if LONG else 1

pytestmark = pytest.mark.timeout(1800 if LONG else 300)

Note = Callable[[str, object], None]


@pytest.fixture
def source(postgres18: EmbeddedPostgres) -> Iterator[str]:
    with fresh_database(postgres18.url) as url:
        prepare_shop(url)
        yield url


def test_a_relay_process_that_is_killed_half_way_loses_nothing(
    source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    broker = {"type": "rabbitmq", "url": rabbitmq.url, "routing_key": queue.name}
    with Program(source, broker, tmp_path) as program, Producer(source, "sales", is_fast=True) as producer:
        for _ in range(KILLS):
            queue.wait_for_more(SOME)
            program.kill()
        queue.wait_for_more(SOME)
        producer.stop()
        queue.wait_for(producer.committed, program.require_life, seconds=240)
        found = wait_until_settled(source)
        assert program.stop() == 0
    counted = tally(producer.committed, queue.arrived)
    record_property("counts", f"relay process, SIGKILL half way ({KILLS} times): {counted}")
    require_none_lost(counted)
    assert found == {"published": counted.committed}


def test_an_application_that_is_killed_half_way_loses_nothing_that_it_has_committed(
    source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    for number in range(KILLS):
        with application(source, rabbitmq.url, queue.name, f"a{number}", tmp_path) as running:
            queue.wait_for_more(SOME)
            running.require_life()
            running.kill()
    with application(source, rabbitmq.url, queue.name, "b", tmp_path) as running:
        queue.wait_for_more(SOME)
        running.require_life()
        assert running.stop() == 0
        # What the killed one had in memory is left, if the other was quicker than its lease.
        with RelayThread(source, queue_access(rabbitmq.url, queue)) as last:
            committed = sales(source)
            queue.wait_for(committed, last.require_life)
            found = wait_until_settled(source)
    counted = tally(committed, queue.arrived)
    record_property("counts", f"application with a relay, SIGKILL half way ({KILLS} times): {counted}")
    require_none_lost(counted)
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
        queue.wait_for_more(2 * SOME)
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


@pytest.mark.parametrize("way", ["restart", "kill"])
def test_a_database_that_is_restarted_while_statuses_are_pending_loses_nothing(
    rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note, way: str
) -> None:
    # With its WAL on disk, as a server that may crash has to have it.
    settings = postgres_settings(18, fsync="on", full_page_writes="on")
    with EmbeddedPostgres(settings) as server:
        prepare_shop(server.url)
        with application(server.url, rabbitmq.url, queue.name, "a", tmp_path) as running:
            queue.wait_for_more(SOME)
            if way == "kill":
                server.kill()
                server.start()
            else:
                server.restart()
            queue.wait_for_more(SOME)
            running.require_life()
            assert running.stop() == 0
        with RelayThread(server.url, queue_access(rabbitmq.url, queue)) as last:
            committed = sales(server.url)
            queue.wait_for(committed, last.require_life)
            found = wait_until_settled(server.url)
    counted = tally(committed, queue.arrived)
    record_property("counts", f"relay, database {'killed' if way == 'kill' else 'restarted'} in the middle: {counted}")
    require_none_lost(counted)
    assert found == {"published": counted.committed}
