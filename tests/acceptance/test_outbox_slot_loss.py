"""An outbox whose slot is lost, in all the ways there are: what it held is read from the table, exactly.

RabbitMQ is the place to count at: it keeps what comes twice. With transaction ids nothing does, when nothing but the slot
was lost.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pyspark.sql import SparkSession

from headwater.embedded import EmbeddedPostgres
from headwater.errors import SinkUnavailable
from headwater.outbox import OutboxColumns
from headwater.outbox.checkpoint import prepare_outbox
from headwater.spark.settings import OutboxLanes
from tests.acceptance.running import execute, fetch
from tests.outbox import (
    NAME,
    Message,
    Producer,
    Queue,
    Relay,
    Sections,
    Witness,
    drop_slot,
    find_checkpoint,
    generation_of,
    held_open,
    is_streaming,
    lose_slot,
    messages_of,
    queue_access,
    relay_once,
    relay_settings,
    tally,
    written_order,
)
from tests.proxy import Proxy
from tests.rabbitmq import RabbitmqNode
from tests.servers import fresh_database, postgres_settings
from tests.waiting import eventually

LONG = os.environ.get("HEADWATER_LONG") == "1"
# How many messages each of some phases has.
SOME = 10_000 if LONG else 400
LOSSES = 8 if LONG else 2
# For how long transactions are held open while the slot is lost.
HELD_SECONDS = 10 if LONG else 2
# By how much the clocks of some applications are.
BEHIND = timedelta(seconds=5)

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(3000 if LONG else 900)]

Note = Callable[[str, object], None]


@pytest.mark.parametrize("major", [15, 18])
def test_a_slot_dropped_while_stopped_costs_nothing(
    major: int,
    request: pytest.FixtureRequest,
    spark: SparkSession,
    rabbitmq: RabbitmqNode,
    queue: Queue,
    tmp_path: Path,
    record_property: Note,
) -> None:
    server: EmbeddedPostgres = request.getfixturevalue(f"postgres{major}")
    with fresh_database(server.url) as source:
        prepare_outbox(source)
        settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue), recovery_rows=100)
        relay_once(spark, settings)
        witness, committed = Witness(source), []
        with Producer(source, NAME) as producer:
            producer.wait_for_more(SOME)
        relay_once(spark, settings)
        with Producer(source, NAME, first=100) as held:
            held.wait_for_more(SOME)
        drop_slot(source)
        with Producer(source, NAME, first=200) as unheld:
            unheld.wait_for_more(SOME)
        relay_once(spark, settings)
        with Producer(source, NAME, first=300) as later:
            later.wait_for_more(SOME)
        relay_once(spark, settings)
        committed = [each for one in (producer, held, unheld, later) for each in one.committed]
        queue.wait_for(committed)
        found = tally(committed, queue.arrived)
        disordered = Sections.of(source, queue.arrived).disordered(witness.order(), written_order(source))
    record_property("counts", f"outbox, slot dropped while stopped (PostgreSQL {major}): {found}, in all {disordered}")
    found.require_all()
    assert (found.repeated, disordered) == (0, 0)


@pytest.mark.parametrize(("lane_by", "losses"), [("outbox", 1), ("key", LOSSES)])
def test_a_slot_dropped_while_running_costs_nothing(
    lane_by: str,
    losses: int,
    spark: SparkSession,
    source: str,
    rabbitmq: RabbitmqNode,
    queue: Queue,
    tmp_path: Path,
    record_property: Note,
) -> None:
    lanes = OutboxLanes(lane_by)
    settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue), lane_by=lanes, recovery_rows=1000)
    with Relay(spark, settings) as relay:
        eventually(lambda: is_streaming(source), seconds=240)
        witness = Witness(source)
        with Producer(source, NAME) as producer:
            for _ in range(losses):
                queue.wait_for_more(SOME)
                lose_slot(source)
            queue.wait_for_more(SOME)
        queue.wait_for(producer.committed, relay.require_life)
    found = tally(producer.committed, queue.arrived)
    disordered = 0
    if lanes is OutboxLanes.OUTBOX:
        disordered = Sections.of(source, queue.arrived).disordered(witness.order(), written_order(source))
    said = f"outbox, slot dropped while running, {losses} times, lanes by {lane_by}"
    record_property("counts", f"{said}: {found}, in all {disordered}")
    found.require_all()
    assert (found.repeated, disordered) == (0, 0)


def test_a_batch_that_no_sink_took_is_not_lost_with_the_slot(
    spark: SparkSession, source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    """Spark has logged its range, and asks for it again; the slot that held it is gone by then."""
    with Proxy(rabbitmq.url) as proxy:
        access = queue_access(proxy.url, queue, timeout=timedelta(milliseconds=200))
        settings = relay_settings(tmp_path, source, access)
        relay_once(spark, settings)
        proxy.refuse = True
        proxy.cut()
        with Producer(source, NAME) as producer:
            producer.wait_for_more(SOME)
        with pytest.raises(SinkUnavailable):
            relay_once(spark, settings)
        drop_slot(source)
        proxy.refuse = False
        relay_once(spark, settings)
        queue.wait_for(producer.committed, seconds=10)
    found = tally(producer.committed, queue.arrived)
    record_property("counts", f"outbox, slot dropped with a batch that no sink took: {found}")
    found.require_all()
    assert found.repeated == 0


def _invalidate(source: str) -> None:
    """Write WAL until the server gives the slot up."""

    def look() -> bool:
        execute(source, "select pg_logical_emit_message(false, 'noise', 'x')", "select pg_switch_wal()", "checkpoint")
        return fetch(source, "select wal_status from pg_replication_slots where slot_name = %s", NAME) == [("lost",)]

    eventually(look, seconds=60)


def test_an_invalidated_slot_costs_nothing_whether_it_is_read_or_not(
    spark: SparkSession, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    small = postgres_settings(18, max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="64MB")
    with EmbeddedPostgres(small) as server, Proxy(rabbitmq.url) as proxy:
        source = server.url
        prepare_outbox(source)
        settings = relay_settings(tmp_path, source, queue_access(proxy.url, queue, timeout=timedelta(seconds=1)))
        relay_once(spark, settings)
        with Producer(source, NAME) as stopped:
            stopped.wait_for_more(SOME)
            _invalidate(source)
            stopped.wait_for_more(SOME)
        with Relay(spark, settings) as relay:
            queue.wait_for(stopped.committed, relay.require_life)
            lost = generation_of(source)
            # Nothing is on its way by now; what is written from here on holds the slot, since nobody takes it.
            proxy.refuse = True
            proxy.cut()
            with Producer(source, NAME, first=100) as running:
                running.wait_for_more(SOME)
                _invalidate(source)
                running.wait_for_more(SOME)
            proxy.refuse = False
            committed = stopped.committed + running.committed
            queue.wait_for(committed, relay.require_life, seconds=60)
            assert generation_of(source) != lost
    found = tally(committed, queue.arrived)
    record_property("counts", f"outbox, slot invalidated while stopped and while running: {found}")
    found.require_all()
    assert found.repeated == 0


def test_a_transaction_that_is_open_while_the_slot_is_lost_is_delivered_once(
    spark: SparkSession, source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue))
    early, late = messages_of("early", 50), messages_of("late", 50)
    with Relay(spark, settings) as relay:
        eventually(lambda: is_streaming(source), seconds=240)
        with Producer(source, NAME) as producer:
            queue.wait_for_more(SOME // 2)
            with held_open(source, NAME, early):
                queue.wait_for_more(SOME // 2)
                lost = generation_of(source)
                drop_slot(source)
                with held_open(source, NAME, late):
                    Event().wait(HELD_SECONDS)
            eventually(lambda: is_streaming(source, lost), seconds=240)
            queue.wait_for_more(SOME // 2)
        committed = [*producer.committed, *early, *late]
        queue.wait_for(committed, relay.require_life)
    found = tally(committed, queue.arrived)
    record_property("counts", f"outbox, two transactions open for {HELD_SECONDS} s while the slot is lost: {found}")
    found.require_all()
    assert found.repeated == 0


def _maker(source: str) -> str:
    """The process id of the session that makes the slot, and waits for a transaction, if there is one."""
    query = "select active_pid from pg_replication_slots where slot_name = %s and confirmed_flush_lsn is null"
    return "".join(str(pid) for (pid,) in fetch(source, query, NAME))


def test_a_renewal_that_is_cut_off_begins_again_and_one_that_is_stopped_ends_at_once(
    spark: SparkSession, source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue))
    held = [messages_of(key, 50) for key in ("cut", "stopped")]
    with Producer(source, NAME) as producer:
        with Relay(spark, settings) as relay:
            eventually(lambda: is_streaming(source), seconds=240)
            queue.wait_for_more(SOME)
            lost = generation_of(source)
            with held_open(source, NAME, held[0]):
                drop_slot(source)
                maker = eventually(lambda: _maker(source), seconds=60)
                execute(source, f"select pg_terminate_backend({maker})")
                eventually(lambda: _maker(source) not in ("", maker), seconds=60)
            eventually(lambda: is_streaming(source, lost), seconds=240)
            queue.wait_for_more(SOME)
            lost = generation_of(source)
            relay.require_life()
        with held_open(source, NAME, held[1]):
            with Relay(spark, settings):
                eventually(lambda: is_streaming(source), seconds=240)
                drop_slot(source)
                eventually(lambda: _maker(source), seconds=60)
            assert fetch(source, "select from pg_replication_slots where slot_name = %s", NAME) == []
        with Relay(spark, settings) as relay:
            eventually(lambda: is_streaming(source, lost), seconds=240)
            queue.wait_for_more(SOME)
            producer.stop()
            committed = [*producer.committed, *held[0], *held[1]]
            queue.wait_for(committed, relay.require_life)
    found = tally(committed, queue.arrived)
    record_property("counts", f"outbox, renewal of the slot cut off, and stopped: {found}")
    found.require_all()
    assert found.repeated == 0


def _set_standby(source: str, names: str) -> None:
    """Have commits wait for a standby; our own do not."""
    execute(
        source,
        "set synchronous_commit = local",
        f"alter system set synchronous_standby_names = '{names}'",
        "select pg_reload_conf()",
    )
    eventually(lambda: fetch(source, "show synchronous_standby_names") == [(names,)])


def _write(source: str, messages: Sequence[Message]) -> None:
    with held_open(source, NAME, messages):
        pass


def _hanging(source: str) -> int:
    return len(fetch(source, "select from pg_stat_activity where wait_event = 'SyncRep'"))


def test_a_commit_that_waits_for_a_standby_while_the_slot_is_lost_is_delivered_once(
    spark: SparkSession, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    """It is in the WAL and in no snapshot: what one slot has delivered of it the next must not, and the other way round."""
    delivered, unseen = messages_of("delivered", 50), messages_of("unseen", 50)
    with EmbeddedPostgres(postgres_settings(18)) as server:
        source = server.url
        prepare_outbox(source)
        settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue))
        with Relay(spark, settings) as relay:
            eventually(lambda: is_streaming(source), seconds=240)
            with Producer(source, NAME) as producer:
                queue.wait_for_more(SOME)
            queue.wait_for(producer.committed, relay.require_life)
            lost = generation_of(source)
            _set_standby(source, "nobody")
            threads = [Thread(target=_write, args=[source, messages]) for messages in (delivered, unseen)]
            threads[0].start()
            queue.wait_for(delivered, relay.require_life, seconds=30)
            assert {each.id for each in delivered} <= {each.id for each in queue.arrived}, "a commit that waits is streamed"
            drop_slot(source)
            threads[1].start()
            eventually(lambda: _hanging(source) == 2)
            Event().wait(HELD_SECONDS)
            assert _hanging(source) == 2, "nothing of ours waits with them"
            assert fetch(source, "select from headwater.outbox_message where key in ('delivered', 'unseen')") == []
            _set_standby(source, "")
            for thread in threads:
                thread.join()
            eventually(lambda: is_streaming(source, lost), seconds=240)
            committed = [*producer.committed, *delivered, *unseen]
            queue.wait_for(committed, relay.require_life)
    found = tally(committed, queue.arrived)
    record_property("counts", f"outbox, commits wait for a standby for {HELD_SECONDS} s while the slot is lost: {found}")
    found.require_all()
    assert found.repeated == 0


def _write_behind(connection: psycopg.Connection[Any], topic: str, messages: Sequence[Message]) -> None:
    """By an application whose clock is 5 s behind."""
    connection.cursor().executemany(
        "insert into headwater.outbox_message (id, created_at, topic, type, key, payload) "
        "values (%s, clock_timestamp() - interval '5 s', %s, 'Counted', %s, %s)",
        [(each.id, topic, each.key, Jsonb(each.payload)) for each in messages],
    )


def test_a_clock_that_is_behind_loses_nothing_where_rows_tell_their_transaction(
    spark: SparkSession, source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue))
    with Relay(spark, settings) as relay:
        eventually(lambda: is_streaming(source), seconds=240)
        with (
            Producer(source, NAME, writers=2) as right,
            Producer(source, NAME, writers=2, first=100, write=_write_behind) as behind,
        ):
            queue.wait_for_more(SOME)
            lose_slot(source)
            queue.wait_for_more(SOME)
        committed = right.committed + behind.committed
        queue.wait_for(committed, relay.require_life)
    found = tally(committed, queue.arrived)
    record_property("counts", f"outbox, half of the writers 5 s behind, slot lost while running: {found}")
    found.require_all()
    assert found.repeated == 0


# An outbox whose rows do not tell their transaction.
TIMED = """
create table timed (
    id uuid primary key,
    created_at timestamptz not null,
    topic text not null,
    kind text not null,
    key text,
    body json not null
)
"""
TIMED_COLUMNS = OutboxColumns(id="id", created_at="created_at", topic="topic", type="kind", key="key", payload="body")


def _write_timed(connection: psycopg.Connection[Any], topic: str, messages: Sequence[Message], behind: str = "5 s") -> None:
    connection.cursor().executemany(
        "insert into timed values (%s, clock_timestamp() - %s::interval, %s, 'Counted', %s, %s)",
        [(each.id, behind, topic, each.key, Jsonb(each.payload)) for each in messages],
    )


@pytest.fixture
def timed(spark: SparkSession, source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path) -> Iterator[Relay]:
    execute(source, TIMED)
    access = queue_access(rabbitmq.url, queue)
    settings = relay_settings(tmp_path, source, access, table="public.timed", columns=TIMED_COLUMNS)
    with Relay(spark, settings) as relay:
        eventually(lambda: is_streaming(source), seconds=240)
        yield relay


def test_without_transaction_ids_a_clock_that_is_behind_for_all_loses_nothing_and_repeats_what_the_skew_covers(
    timed: Relay, source: str, queue: Queue, record_property: Note
) -> None:
    with Producer(source, NAME, write=_write_timed) as producer:
        queue.wait_for_more(SOME)
        lose_slot(source)
        queue.wait_for_more(SOME)
    queue.wait_for(producer.committed, timed.require_life)
    found = tally(producer.committed, queue.arrived)
    record_property("counts", f"outbox without transaction ids, all clocks 5 s behind, skew -2 s, slot lost: {found}")
    assert (found.lost, found.ghosts) == (0, 0)


def test_without_transaction_ids_a_transaction_longer_than_the_skew_is_lost_with_the_slot_and_a_shorter_one_is_not(
    timed: Relay, source: str, queue: Queue, record_property: Note
) -> None:
    """What the skew cannot promise, shown: this is why rows should tell their transaction."""
    long, short = messages_of("long", 5), messages_of("short", 5)
    with Producer(source, NAME, write=_write_timed) as producer:
        queue.wait_for_more(50)
        with held_open(source, NAME, long, _write_timed):
            written = datetime.now(UTC) - BEHIND
            eventually(lambda: _newest(source) > written, seconds=30)
            lost = generation_of(source)
            with held_open(source, NAME, short, _write_timed):
                drop_slot(source)
        eventually(lambda: is_streaming(source, lost), seconds=240)
    queue.wait_for([*producer.committed, *short], timed.require_life)
    found = tally([*producer.committed, *short], [each for each in queue.arrived if each.key != "long"])
    missing = {each.id for each in long} - {each.id for each in queue.arrived}
    record_property(
        "counts",
        f"outbox without transaction ids, skew -2 s, slot lost: {found}; of a longer transaction lost {len(missing)}",
    )
    assert (found.lost, found.ghosts) == (0, 0)
    assert len(missing) == len(long)


def _newest(source: str) -> datetime:
    """What was written before it is taken for delivered."""
    found = find_checkpoint(source)
    assert found is not None
    return found.newest_at or datetime.min.replace(tzinfo=UTC)
