"""How far a pipeline is, put together from its last report, its slot and its server; as JSON, and in words. Pure."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from headwater.model import Lsn
from headwater.postgres.replication.slot import Slot
from headwater.spark.state.limits import MIB, Limits, uses
from headwater.spark.state.report import Phase, SavedReport
from headwater.spark.state.store import ServerPosition, TableLoad


@dataclass(frozen=True, slots=True)
class Progress:
    """What is known of a pipeline: its last report, its slot, and how far the server is, all at about the same time.

    `server` is None if the source was not reached; then nothing is known of the slot either. `is_held` if a run has the
    pipeline: one that reads an outbox's table leaves the slot alone meanwhile. Without `has_slot` it reads a topic, and
    `slot_name` says which.
    """

    pipeline: str
    slot_name: str
    saved: SavedReport | None
    slot: Slot | None
    server: ServerPosition | None
    limits: Limits = field(default_factory=Limits)
    letters: Mapping[str, int] = field(default_factory=dict)
    loads: tuple[TableLoad, ...] = ()
    is_held: bool = False
    has_slot: bool = True

    @property
    def confirmed(self) -> Lsn | None:
        return self.slot.confirmed_flush_lsn if self.slot is not None else None

    @property
    def lag_bytes(self) -> int | None:
        """The WAL that is durable at the server and not confirmed; None without a slot that has a position."""
        if self.confirmed is None or self.server is None:
            return None
        return max(0, self.server.flush_lsn - self.confirmed)

    @property
    def lag(self) -> timedelta | None:
        """Nothing, if nothing is unconfirmed; else the age of the last change that was delivered, None if none was."""
        if self.lag_bytes == 0:
            return timedelta(0)
        if self.server is None or self.lag_bytes is None or self.saved is None or self.saved.report.committed_at is None:
            return None
        return max(timedelta(0), self.server.now - self.saved.report.committed_at)

    @property
    def is_stale(self) -> bool:
        """Whether the phase is that of a run which is over: nobody has the pipeline, and nobody reads its slot."""
        is_active = self.is_held or self.server is None or (self.slot is not None and self.slot.active)
        return self.saved is not None and self.saved.report.phase is Phase.RUNNING and not is_active

    @property
    def paused_at(self) -> datetime | None:
        return self.saved.paused_at if self.saved is not None else None


def notes(progress: Progress) -> list[str]:
    """What has to be said in words."""
    return [*_of_run(progress), *_of_slot(progress), *_of_tables(progress)]


def _of_run(progress: Progress) -> list[str]:
    said, saved = [], progress.saved
    if saved is None:
        return [f"pipeline {progress.pipeline} has never run; start it with `headwater run`"]
    if saved.slot != progress.slot_name:
        said.append(f"the last run read slot {saved.slot}, and the file names {progress.slot_name}")
    if progress.is_stale:
        said.append("the last run says that it is running, but nobody reads its slot: it has ended without a word")
    if saved.report.error:
        became = "is trying again after" if saved.report.phase is Phase.RETRYING else "failed"
        said.append(f"the last run {became}: {saved.report.error}")
    if saved.paused_at is not None:
        kept = (progress.slot.retained_bytes or 0) if progress.slot is not None else 0
        held = f"; meanwhile the server keeps all WAL for slot {progress.slot_name}, {kept / MIB:,.1f} MiB by now"
        held = held if progress.has_slot else ""
        said.append(f"paused since {saved.paused_at:%Y-%m-%d %H:%M:%S%z}{held}, until `headwater resume`")
    return said


def _of_slot(progress: Progress) -> list[str]:
    slot, name = progress.slot, progress.slot_name
    if progress.server is None:
        return ["the source does not answer, so that nothing is known of the slot and the lag"]
    if not progress.has_slot:
        return []
    if slot is None and progress.saved is not None and progress.saved.report.position is None:
        return [f"slot {name} is not there yet"]
    if slot is None:
        gone = f"slot {name} is gone, and with it what it held; the pipeline cannot go on where it was"
        return [gone] if progress.saved is not None else []
    if slot.invalidation_reason is not None:
        return [f"slot {name} was invalidated by the server ({slot.invalidation_reason}), and what it held is gone"]
    return [use.said for use in uses(slot, progress.limits) if use.threshold > 0]


def _of_tables(progress: Progress) -> list[str]:
    return [f"table {load.name} could not be read: {load.error}" for load in progress.loads if load.error is not None]


def as_json(progress: Progress) -> dict[str, object]:
    """Keys are stable; what is not known is null."""
    saved, lag = progress.saved, progress.lag
    report = saved.report if saved is not None else None
    return {
        "pipeline": progress.pipeline,
        "phase": report.phase if report else None,
        "stale": progress.is_stale,
        "paused_at": _instant(progress.paused_at),
        "position": str(report.position) if report and report.position else None,
        "committed_at": _instant(report.committed_at if report else None),
        "started_at": _instant(saved.started_at if saved else None),
        "updated_at": _instant(saved.updated_at if saved else None),
        "lag_bytes": progress.lag_bytes,
        "lag_seconds": None if lag is None else round(lag.total_seconds(), 3),
        "rows": report.rows if report else None,
        "rows_per_second": report.rows_per_second if report else None,
        "batch_seconds": report.batch_seconds if report else None,
        "error": report.error if report else None,
        "slot": _slot(progress),
        "tables": {
            name: {"changes": table.changes, "last_committed_at": _instant(table.last_committed_at)}
            for name, table in (report.tables.items() if report else ())
        },
        "sinks": {name: dataclasses.asdict(sink) for name, sink in (report.sinks.items() if report else ())},
        "open_letters": dict(progress.letters),
        "loads": {load.name: _load(load) for load in progress.loads},
        "notes": notes(progress),
    }


def _slot(progress: Progress) -> dict[str, object]:
    slot = progress.slot
    return {
        "name": progress.slot_name,
        "exists": slot is not None,
        "active": slot is not None and slot.active,
        "confirmed_flush_lsn": str(progress.confirmed) if progress.confirmed is not None else None,
        "retained_bytes": slot.retained_bytes if slot else None,
        "safe_wal_bytes": slot.safe_wal_size if slot else None,
        "wal_limit_bytes": progress.limits.wal_bytes,
        "wal_status": slot.wal_status if slot else None,
        "invalidation_reason": slot.invalidation_reason if slot else None,
    }


def _load(load: TableLoad) -> dict[str, object]:
    facts = dataclasses.asdict(load)
    return {name: facts[name] for name in ("state", "pieces_done", "pieces_total", "rows_estimate", "error")}


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
