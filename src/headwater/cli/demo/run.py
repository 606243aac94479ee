"""One run: set the stage, capture while the traffic is written, compare, and sum it up."""

import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from headwater.capture import Capture, CaptureSettings, CatalogTypes
from headwater.capture.statements import wal_position
from headwater.cli.demo.follow import Follower
from headwater.cli.demo.gauge import Gauge
from headwater.cli.demo.replica import Replica
from headwater.cli.demo.report import Report, Server, TableReport, Wal
from headwater.cli.demo.stage import read_table, staged
from headwater.cli.demo.statements import PUBLICATION, read_clock
from headwater.cli.demo.tally import Tally, percentile
from headwater.cli.demo.traffic import Traffic
from headwater.cli.demo.view import KINDS, View
from headwater.postgres.catalog import Table
from headwater.postgres.connect import Connection, describe
from headwater.postgres.statements import fetch_sync

# Small, so that the screen moves on several times a second also while the large transaction is applied.
_BATCH_BYTES = 256 * 1024


def run(connection: Connection, url: str, seconds: float, view: View, *, is_private: bool) -> Report:
    """Write for so many seconds, capture it all, and say how the replicas compare."""
    version = connection.info.parameter_status("server_version") or "?"
    server = Server(describe(url), version.split()[0], is_private)
    view.step(f"Creating tables, a publication and a slot on PostgreSQL {server.version}")
    with staged(connection, url) as tables, Capture(_settings(url)) as capture:
        follower = _follower(connection, url, capture, tables)
        (begin,) = fetch_sync(connection, wal_position())
        view.begin(seconds)
        with Traffic(url, seconds) as traffic:
            follower.follow(traffic, view.show)
        capture.report()
        follower.gauge.look(now=True)
        view.step("Comparing tables and replicas, row by row")
        reports = [_compare(connection, table, follower, traffic) for table in tables]
        return _report(server, reports, follower, traffic, (traffic.end or begin) - begin)


def _settings(url: str) -> CaptureSettings:
    """A temporary slot: should all else fail, the server forgets it when the connection ends."""
    return CaptureSettings(
        url=url,
        slot=f"headwater_demo_{secrets.token_hex(4)}",
        publications=(PUBLICATION,),
        temporary=True,
        batch_bytes=_BATCH_BYTES,
        status_interval=timedelta(milliseconds=250),
    )


def _follower(connection: Connection, url: str, capture: Capture, tables: Sequence[Table]) -> Follower:
    replicas = {table.name: Replica(table.name, table.key) for table in tables}
    gauge = Gauge(connection, capture.lineage.slot)
    return Follower(capture, CatalogTypes(url), gauge, _server_clock(connection), replicas, Tally())


def _server_clock(connection: Connection) -> Callable[[], datetime]:
    """The server's time, told by our clock, so that a commit's stamp can be held against it."""
    before = datetime.now(UTC)
    (there,) = fetch_sync(connection, read_clock())
    ahead = there - (before + (datetime.now(UTC) - before) / 2)
    return lambda: datetime.now(UTC) + ahead


def _compare(connection: Connection, table: Table, follower: Follower, traffic: Traffic) -> TableReport:
    written, captured = traffic.written, follower.tally.counts
    comparison = follower.replicas[table.name].compare(read_table(connection, table))
    by_op = [{op: counts[table.name, op] for op in KINDS} for counts in (written, captured)]
    return TableReport(by_op[0], by_op[1], comparison)


def _report(server: Server, tables: list[TableReport], follower: Follower, traffic: Traffic, wal_bytes: int) -> Report:
    tally, gauge = follower.tally, follower.gauge
    return Report(
        server=server,
        tables=tables,
        transactions_written=traffic.transactions,
        transactions_captured=tally.transactions,
        rolled_back=traffic.rolled_back,
        largest=tally.largest,
        latency_median_ms=percentile(tally.latencies, 0.5) * 1000,
        latency_p99_ms=percentile(tally.latencies, 0.99) * 1000,
        kept_values=sum(replica.kept_values for replica in follower.replicas.values()),
        wal=Wal(wal_bytes, gauge.peak_retained, gauge.retained, gauge.behind),
        seconds=0.0,
    )
