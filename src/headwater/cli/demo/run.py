"""One run: set the stage, deliver while the traffic is written, compare source and target, and sum it up."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from tempfile import TemporaryDirectory

from headwater.capture.statements import wal_position
from headwater.cli.demo.compare import compare
from headwater.cli.demo.delivery import Delivery, Route
from headwater.cli.demo.events import EventReport, relay_events
from headwater.cli.demo.gauge import Gauge
from headwater.cli.demo.report import Lag, Report, Server, TableReport, Wal
from headwater.cli.demo.stage import Stage, read_table, staged
from headwater.cli.demo.statements import read_clock
from headwater.cli.demo.tally import Large, percentile
from headwater.cli.demo.topic import TopicReport, share_topic
from headwater.cli.demo.traffic import Traffic, write_first
from headwater.cli.demo.view import KINDS, View
from headwater.cli.demo.watch import Watch
from headwater.embedded import EmbeddedNats
from headwater.postgres.connect import Connection, describe
from headwater.postgres.statements import fetch_sync


def run(connection: Connection, url: str, nats: EmbeddedNats, seconds: float, view: View, *, is_private: bool) -> Report:
    """Write for so many seconds, deliver it all by way of NATS, and compare both sides; then sell, and share a topic."""
    version = connection.info.parameter_status("server_version") or "?"
    server = Server(describe(url), version.split()[0], is_private)
    view.step(f"Creating tables, a slot and a second database on PostgreSQL {server.version}")
    with staged(connection, url) as stage, TemporaryDirectory(prefix="headwater-demo-") as directory:
        gauge, (begin,) = Gauge(connection, stage.target), fetch_sync(connection, wal_position())
        route = Route(url, nats.url, stage.target_url, f"{directory}/checkpoint", stage.tables)
        with Delivery(route, view.step) as delivery:
            delivery.wait_until_running()
            view.step("Delivering a first batch")
            first = write_first(connection)
            delivery.wait_for_rows(first.written.total())
            view.begin(seconds)
            began = time.monotonic()
            with Traffic(url, seconds, first) as traffic:
                watch = Watch(delivery, traffic, gauge, _server_clock(connection))
                watch.until_delivered(view.show)
            took = time.monotonic() - began
        view.step("Comparing source and target, row by row")
        tables = _compare(connection, stage, delivery, traffic)
        events = relay_events(stage.target_url, nats, view)
        topic = share_topic(stage.target_url, view)
    wal = Wal((traffic.end or begin) - begin, gauge.peak_retained, gauge.retained, gauge.behind)
    return _report(server, tables, delivery, traffic, watch, wal, events, topic, took)


def _server_clock(connection: Connection) -> Callable[[], datetime]:
    """The server's time, told by our clock, so that a commit's stamp can be held against it."""
    before = datetime.now(UTC)
    (there,) = fetch_sync(connection, read_clock())
    ahead = there - (before + (datetime.now(UTC) - before) / 2)
    return lambda: datetime.now(UTC) + ahead


def _compare(source: Connection, stage: Stage, delivery: Delivery, traffic: Traffic) -> list[TableReport]:
    written, delivered = traffic.written, delivery.applied.by_table
    return [
        TableReport(
            {op: written[table.name, op] for op in KINDS},
            delivered.get(table.name, 0),
            compare(table.name, table.key, read_table(source, table), read_table(stage.target, table)),
        )
        for table in stage.tables
    ]


def _report(
    server: Server,
    tables: list[TableReport],
    delivery: Delivery,
    traffic: Traffic,
    watch: Watch,
    wal: Wal,
    events: EventReport,
    topic: TopicReport,
    took: float,
) -> Report:
    lags = watch.tally.lags
    return Report(
        server=server,
        tables=tables,
        transactions=traffic.transactions,
        rolled_back=traffic.rolled_back,
        applied=delivery.applied.changes,
        letters=delivery.applied.letters,
        rows_per_second=sum(table.delivered for table in tables) / took,
        large=watch.large or Large(0, 0.0),
        lag=Lag(percentile(lags, 0.5), percentile(lags, 0.99), max(lags, default=0.0)),
        wal=wal,
        events=events,
        topic=topic,
        seconds=0.0,
    )
