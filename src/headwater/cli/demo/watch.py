"""Watching traffic and pipeline side by side, until all that was written is delivered, and confirmed to the server."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime

from headwater.cli.demo.delivery import Delivery
from headwater.cli.demo.gauge import Gauge
from headwater.cli.demo.statements import SCHEMA
from headwater.cli.demo.tally import Large, Tally
from headwater.cli.demo.traffic import LOAD_ROWS, Traffic
from headwater.cli.demo.view import Progress
from headwater.errors import SourceError
from headwater.model import Lsn

# Several times in the shortest batch, so that a look tells when it was there.
_LOOK_SECONDS = 0.05
# With no more to be written, and nothing confirmed for this long, nothing will be.
_PATIENCE_SECONDS = 60.0


class Watch:
    """Looks at both ends of the pipeline while it delivers; `clock` tells the server's time."""

    def __init__(self, delivery: Delivery, traffic: Traffic, gauge: Gauge, clock: Callable[[], datetime]) -> None:
        self._delivery, self._traffic, self._gauge, self._clock = delivery, traffic, gauge, clock
        self._confirmed, self._heard_at = Lsn(0), 0.0
        self.tally = Tally(clock())
        self.large: Large | None = None

    def until_delivered(self, show: Callable[[Progress], None]) -> None:
        """Return when the server knows that all of the traffic was delivered; raises what keeps it from being so."""
        while (end := self._traffic.end) is None or self._gauge.confirmed < end:
            self._require_life()
            self._gauge.look()
            show(self._look())
            time.sleep(_LOOK_SECONDS)

    def _look(self) -> Progress:
        report, written = self._delivery.report, self._traffic.written
        delivered = delivered_by_table(self._delivery)
        self.tally.look(
            self._clock(),
            written=written.total(),
            delivered=sum(delivered.values()),
            committed_at=report.committed_at if report else None,
        )
        self._note_large(delivered.get("reading", 0))
        return Progress(
            written=written,
            delivered=delivered,
            rate=self.tally.rate,
            lag=self.tally.lag,
            behind=self._gauge.behind,
            is_loading=self._traffic.loading and self.large is None,
            is_written=self._traffic.end is not None,
        )

    def _note_large(self, readings: int) -> None:
        loaded_at = self._traffic.loaded_at
        if self.large is None and loaded_at is not None and readings >= LOAD_ROWS:
            self.large = Large(readings, time.monotonic() - loaded_at)

    def _require_life(self) -> None:
        self._delivery.require_life()
        if self._traffic.failure is not None:
            raise self._traffic.failure
        now = time.monotonic()
        if self._traffic.end is None or self._gauge.confirmed != self._confirmed:
            self._confirmed, self._heard_at = self._gauge.confirmed, now
        if now - self._heard_at > _PATIENCE_SECONDS:
            raise SourceError(
                f"nothing was delivered for {_PATIENCE_SECONDS:.0f} s, although there is more; see the server's log, and "
                "run `headwater check` against it"
            )


def delivered_by_table(delivery: Delivery) -> Mapping[str, int]:
    """How many changes of each table were delivered until now."""
    report = delivery.report
    return {name.removeprefix(f"{SCHEMA}."): table.changes for name, table in report.tables.items()} if report else {}
