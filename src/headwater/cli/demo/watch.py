"""Watching traffic and pipeline side by side, until all that was written is delivered, and confirmed to the server."""

import time
from collections.abc import Callable
from datetime import datetime

from headwater.cli.demo.delivery import Delivery
from headwater.cli.demo.gauge import Gauge
from headwater.cli.demo.tally import Large, Tally
from headwater.cli.demo.traffic import LOAD_ROWS, Traffic
from headwater.cli.demo.view import Progress
from headwater.errors import SourceError
from headwater.model import Lsn

# Several times in the shortest batch, so that a look tells when it was there.
_LOOK_SECONDS = 0.05
# With no more to be written, and nothing confirmed or applied for this long, nothing will be.
_PATIENCE_SECONDS = 60.0


class Watch:
    """Looks at both ends of the pipeline while it delivers; `clock` tells the server's time."""

    def __init__(self, delivery: Delivery, traffic: Traffic, gauge: Gauge, clock: Callable[[], datetime]) -> None:
        self._delivery, self._traffic, self._gauge, self._clock = delivery, traffic, gauge, clock
        self._progress, self._heard_at = (Lsn(0), 0), 0.0
        self.tally = Tally(clock())
        self.large: Large | None = None

    def until_delivered(self, show: Callable[[Progress], None]) -> None:
        """Return when all of the traffic is in the target, and the server knows it; raises what keeps it from being so."""
        while (end := self._traffic.end) is None or self._gauge.confirmed < end or not self._delivery.is_up_to_date:
            self._require_life()
            self._gauge.look()
            show(self._look())
            time.sleep(_LOOK_SECONDS)
        show(self._look())

    def _look(self) -> Progress:
        written, delivered = self._traffic.written, self._delivery.applied.by_table
        self.tally.look(
            self._clock(),
            written=written.total(),
            delivered=sum(delivered.values()),
            committed_at=self._gauge.applied_at,
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
        progress = (self._gauge.confirmed, self._delivery.applied.total)
        if self._traffic.end is None or progress != self._progress:
            self._progress, self._heard_at = progress, now
        if now - self._heard_at > _PATIENCE_SECONDS:
            raise SourceError(
                f"nothing was delivered for {_PATIENCE_SECONDS:.0f} s, although there is more; see the server's log, and "
                "run `headwater check` against it"
            )
