"""An outbox whose slot is lost, in all the ways there are: what it held is read from the table, exactly.

RabbitMQ is the place to count at: it keeps what comes twice. With transaction ids nothing does, when nothing but the slot
was lost.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pyspark.sql import SparkSession

from headwater.embedded import EmbeddedPostgres
from headwater.outbox import OutboxColumns
from headwater.outbox.checkpoint import prepare_outbox
from headwater.spark.settings import OutboxLanes
from tests.support.brokers.rabbitmq_node import RabbitmqNode
from tests.support.servers.embedded import fresh_database, postgres_settings
from tests.support.servers.tcp_proxy import Proxy
from tests.support.stories.outbox_story import (
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
from tests.support.stories.pipeline_process import execute, fetch
from tests.support.waiting import eventually

# How many messages each of some phases has: a second of writing.
SOME = 200
# How far the clocks of some applications are behind.
BEHIND = timedelta(seconds=5)
# Longer than it takes to drop a slot that is in use.
SKEW = timedelta(seconds=30)

pytestmark = pytest.mark.timeout(600)

Note = Callable[[str, object], None]


def test_a_slot_dropped_while_stopped_costs_nothing(
    spark: SparkSession,
    postgres15: EmbeddedPostgres,
    rabbitmq: RabbitmqNode,
    queue: Queue,
    tmp_path: Path,
    record_property: Note,
) -> None:
    """On the oldest server; the other stories are about the newest."""
    with fresh_database(postgres15.url) as source:
        prepare_outbox(source)
        witness = Witness(source)
        settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue), recovery_rows=100)
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
        found, sections = tally(committed, queue.arrived), Sections.of(source, queue.arrived)
        disordered = sections.disordered(witness.order(), written_order(source), is_first_read=True)
    record_property("counts", f"outbox, slot dropped while stopped (PostgreSQL 15): {found}, in all {disordered}")
    found.require_all()
    assert (found.repeated, disordered) == (0, 0)
    assert len(sections.recovered) == len(held.committed) + len(unheld.committed)


def _write_half_behind(connection: psycopg.Connection[Any], topic: str, messages: Sequence[Message]) -> None:
    """Write as an application of which every second instance has a clock that is 5 s behind."""
    behind = {each: "5 s" if int(each.key.partition("-")[0]) % 2 else "0 s" for each in messages}
    connection.cursor().executemany(
        "insert into headwater.outbox_message (id, created_at, topic, type, key, payload) "
        "values (%s, clock_timestamp() - %s::interval, %s, 'Counted', %s, %s)",
        [(each.id, behind[each], topic, each.key, Jsonb(each.payload)) for each in messages],
    )


def _maker(source: str) -> str:
    """The process id of the session that makes the slot, and waits for a transaction, if there is one."""
    query = "select active_pid from pg_replication_slots where slot_name = %s and confirmed_flush_lsn is null"
    return "".join(str(pid) for (pid,) in fetch(source, query, NAME))


def test_slots_lost_while_running_cost_nothing_whatever_is_open_and_whether_their_renewal_is_cut_off_or_stopped(
    spark: SparkSession, source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    """With lanes by key, and with writers of which half have a clock that is behind."""
    settings = relay_settings(tmp_path, source, queue_access(rabbitmq.url, queue), lane_by=OutboxLanes.KEY)
    early, late, stopped = (messages_of(key, 50) for key in ("early", "late", "stopped"))
    with Producer(source, NAME, write=_write_half_behind, paced_by=queue) as producer:
        with Relay(spark, settings) as relay:
            eventually(lambda: is_streaming(source), seconds=240)
            queue.wait_for_more(SOME)
            lose_slot(source)
            queue.wait_for_more(SOME)
            lost = generation_of(source)
            # Open before the loss, and so waited for by the session that makes the next slot; and open since then.
            with held_open(source, NAME, early):
                queue.wait_for_more(SOME)
                drop_slot(source)
                maker = eventually(lambda: _maker(source), seconds=60)
                with held_open(source, NAME, late):
                    execute(source, f"select pg_terminate_backend({maker})")
                    eventually(lambda: _maker(source) not in ("", maker), seconds=60)
            eventually(lambda: is_streaming(source, lost), seconds=240)
            queue.wait_for_more(SOME)
            lost = generation_of(source)
            relay.require_life()
        with held_open(source, NAME, stopped):
            with Relay(spark, settings):
                eventually(lambda: is_streaming(source), seconds=240)
                drop_slot(source)
                eventually(lambda: _maker(source), seconds=60)
            assert fetch(source, "select from pg_replication_slots where slot_name = %s", NAME) == []
        with Relay(spark, settings) as relay:
            eventually(lambda: is_streaming(source, lost), seconds=240)
            queue.wait_for_more(SOME)
            producer.stop()
            committed = [*producer.committed, *early, *late, *stopped]
            queue.wait_for(committed, relay.require_life)
    found = tally(committed, queue.arrived)
    said = "outbox, three slots lost while running, with open transactions, clocks behind, and a renewal cut off and stopped"
    record_property("counts", f"{said}: {found}")
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
            witness = Witness(source)
            with Producer(source, NAME, paced_by=queue) as producer:
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
            # The session that makes the next slot waits for them, and so the run is as far as it can come.
            eventually(lambda: _maker(source), seconds=60)
            eventually(lambda: _hanging(source) >= 2)
            assert _hanging(source) == 2, "nothing of ours waits with them"
            assert fetch(source, "select from headwater.outbox_message where key in ('delivered', 'unseen')") == []
            _set_standby(source, "")
            for thread in threads:
                thread.join()
            with Producer(source, NAME, first=100, paced_by=queue) as later:
                eventually(lambda: is_streaming(source, lost), seconds=240)
                queue.wait_for_more(SOME)
            committed = [*producer.committed, *delivered, *unseen, *later.committed]
            queue.wait_for(committed, relay.require_life)
        found = tally(committed, queue.arrived)
        disordered = Sections.of(source, queue.arrived).disordered(witness.order(), written_order(source))
    record_property("counts", f"outbox, commits wait for a standby while the slot is lost: {found}, in all {disordered}")
    found.require_all()
    assert (found.repeated, disordered) == (0, 0)


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


def test_without_transaction_ids_the_skew_covers_clocks_behind_and_short_transactions_and_a_longer_one_is_lost(
    spark: SparkSession, source: str, rabbitmq: RabbitmqNode, queue: Queue, tmp_path: Path, record_property: Note
) -> None:
    """The limit of the skew, shown: this is why rows should tell their transaction."""
    execute(source, TIMED)
    access = queue_access(rabbitmq.url, queue)
    settings = relay_settings(tmp_path, source, access, table="public.timed", columns=TIMED_COLUMNS, time_skew=-SKEW)
    # As old as the rows of a transaction that is open for longer than the skew.
    write_long = partial(_write_timed, behind=f"{(BEHIND + SKEW).total_seconds()} s")
    long, short = messages_of("long", 5), messages_of("short", 5)
    with Relay(spark, settings) as relay:
        eventually(lambda: is_streaming(source), seconds=240)
        with Producer(source, NAME, write=_write_timed, paced_by=queue) as producer:
            queue.wait_for_more(SOME)
            lose_slot(source)
            queue.wait_for_more(SOME)
            with held_open(source, NAME, long, write_long):
                written = datetime.now(UTC) - BEHIND - SKEW
                eventually(lambda: _newest(source) > written, seconds=60)
                lost = generation_of(source)
                with held_open(source, NAME, short, _write_timed):
                    drop_slot(source)
            eventually(lambda: is_streaming(source, lost), seconds=240)
        queue.wait_for([*producer.committed, *short], relay.require_life)
    found = tally([*producer.committed, *short], [each for each in queue.arrived if each.key != "long"])
    missing = {each.id for each in long} - {each.id for each in queue.arrived}
    record_property(
        "counts",
        f"outbox without transaction ids, all clocks 5 s behind, skew -30 s, slot lost twice: {found}; "
        f"of a longer transaction lost {len(missing)}",
    )
    assert (found.lost, found.ghosts) == (0, 0)
    assert len(missing) == len(long)


def _newest(source: str) -> datetime:
    """What was written before it is taken for delivered."""
    found = find_checkpoint(source)
    assert found is not None
    return found.newest_at or datetime.min.replace(tzinfo=UTC)
