"""The data path: capture to replicas to confirmation, until all that the traffic wrote has arrived."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from headwater.capture import Capture, CatalogTypes
from headwater.cli.demo.gauge import Gauge
from headwater.cli.demo.replica import Replica
from headwater.cli.demo.tally import Rate, Tally
from headwater.cli.demo.traffic import LOAD_ROWS, Traffic
from headwater.cli.demo.view import Progress
from headwater.errors import SourceError
from headwater.model import Change, Lsn, Op
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.columnar import Group, decode_columns
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Types

# How often the screen gets new figures when nothing comes.
_LOOK_SECONDS = 0.1
# With no more to be written, and nothing coming for this long, nothing will.
_PATIENCE_SECONDS = 30.0


@dataclass(slots=True)
class Follower:
    """Keeps a replica of each table from what a capture brings."""

    capture: Capture
    types: CatalogTypes
    gauge: Gauge
    clock: Callable[[], datetime]
    replicas: Mapping[str, Replica]
    tally: Tally

    def follow(self, traffic: Traffic, show: Callable[[Progress], None]) -> None:
        """Apply and confirm until the end of the traffic has arrived."""
        rate, arrived, heard_at = Rate(), Lsn(0), time.monotonic()
        while (end := traffic.end) is None or arrived < end:
            batch = self.capture.take(_LOOK_SECONDS)
            if batch is not None:
                self.apply(batch)
                arrived = batch.end or arrived
            if batch is not None or end is None:
                heard_at = time.monotonic()
            _require_life(traffic, time.monotonic() - heard_at)
            self.gauge.look()
            show(self._progress(traffic, rate))

    def apply(self, batch: Batch) -> None:
        """Bring the replicas up to the end of the batch; confirm it, if that is the end of a transaction."""
        taken_at, types = self.clock(), self.types.of(batch)
        inserts = _inserts_only(batch, types)
        if inserts is not None:
            self._insert(inserts, taken_at)
        else:
            self._apply_rows(batch, types, taken_at)
        if batch.end is not None:
            self.tally.settle(self.clock())
            self.capture.confirm(batch.end)

    def _apply_rows(self, batch: Batch, types: Types, taken_at: datetime) -> None:
        for change in decode_rows(batch, types):
            if isinstance(change, Change):
                self.replicas[change.table].apply(change)
                self.tally.begin(change.position.commit_lsn, change.committed_at, taken_at)
                self.tally.add(change.position.commit_lsn, change.table, change.op)

    def _insert(self, group: Group, taken_at: datetime) -> None:
        table, lsn = group.relation.name, Lsn(group.places.commit_lsn[0])
        committed_at = datetime.fromtimestamp(int(group.places.committed_at[0]) / 1_000_000, UTC)
        self.replicas[table].insert(group.after.to_pylist() if group.after is not None else ())
        self.tally.begin(lsn, committed_at, taken_at)
        self.tally.add(lsn, table, Op.INSERT, len(group))

    def _progress(self, traffic: Traffic, rate: Rate) -> Progress:
        return Progress(
            counts=self.tally.counts.copy(),
            rows={table: len(replica.rows) for table, replica in self.replicas.items()},
            transactions=self.tally.transactions,
            rate=rate.at(time.monotonic(), self.tally.changes),
            behind=self.gauge.behind,
            loading=traffic.loading and self.tally.largest.changes < LOAD_ROWS,
            written=traffic.end is not None,
        )


def _inserts_only(batch: Batch, types: Types) -> Group | None:
    """The batch by columns, which is many times faster, if it is a piece of one transaction that only inserts.

    Only then is the order within the group the order of all changes.
    """
    if batch.end is not None and batch.begin is None:
        return None
    groups = decode_columns(batch, types)
    if len(groups) != 1 or groups[0].tag != "I" or groups[0].rejected:
        return None
    commits = groups[0].places.commit_lsn
    return groups[0] if (commits == commits[0]).all() else None


def _require_life(traffic: Traffic, quiet_seconds: float) -> None:
    if traffic.failure is not None:
        raise traffic.failure
    if quiet_seconds > _PATIENCE_SECONDS:
        raise SourceError(
            f"nothing came from the server for {quiet_seconds:.0f} s, although it has more for us; "
            "see its log, and run `headwater check` against it"
        )
