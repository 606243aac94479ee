"""How near a slot is to being given up by the server, by the WAL it keeps or by the time nobody has read it. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from headwater.postgres.replication.slot import Slot

MIB: Final = 1024 * 1024
# From which parts of a limit on it is worth a warning: time enough, little time, none.
THRESHOLDS: Final = (0.5, 0.8, 0.95)
# So far below a threshold that was passed it still counts as passed: a slot on the border does not warn again and again.
_SLACK: Final = 0.1


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server allows a slot, None without limit; and for how long nobody has read it, None while somebody does."""

    wal_bytes: int | None = None
    idle_limit_seconds: int | None = None
    idle_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Use:
    """A part of one of the server's limits that is used, and what to do about it in words."""

    setting: str
    part: float
    said: str

    @property
    def threshold(self) -> float:
        """The highest one that is passed, 0 if none is."""
        return max((one for one in THRESHOLDS if self.part >= one), default=0.0)


def uses(slot: Slot | None, limits: Limits) -> Iterator[Use]:
    """How much of each limit that there is a slot has used; none for a slot that is lost or gone."""
    if slot is None or slot.invalidation_reason is not None:
        return
    if limits.wal_bytes:
        yield _wal(slot, limits.wal_bytes)
    if limits.idle_limit_seconds and limits.idle_seconds is not None:
        part = limits.idle_seconds / limits.idle_limit_seconds
        left = timedelta(seconds=max(0, round(limits.idle_limit_seconds - limits.idle_seconds)))
        yield Use(
            "idle_replication_slot_timeout",
            part,
            f"nobody reads slot {slot.name}, and {part:.0%} of idle_replication_slot_timeout are over: in {left} the server "
            "gives it up, and what it holds is lost; let the pipeline run, or raise the setting",
        )


def _wal(slot: Slot, limit: int) -> Use:
    left = slot.safe_wal_size or 0
    if slot.wal_status == "unreserved" or left <= 0:
        return Use(
            "max_slot_wal_keep_size",
            1.0,
            f"slot {slot.name} keeps more than max_slot_wal_keep_size ({limit / MIB:,.0f} MiB), and the server gives it up "
            "at its next checkpoint, with what it holds; let the pipeline catch up at once, or raise the setting",
        )
    part = max(0.0, 1 - left / limit)
    return Use(
        "max_slot_wal_keep_size",
        part,
        f"slot {slot.name} has used {part:.0%} of max_slot_wal_keep_size ({limit / MIB:,.0f} MiB): after {left / MIB:,.0f} "
        "MiB more the server gives it up, and what it holds is lost; let the pipeline catch up, or raise the setting",
    )


@dataclass(slots=True)
class Alarms:
    """Which thresholds have been warned of, so that each is warned of once, until the slot is well below it again."""

    _warned: dict[str, float] = field(default_factory=dict)

    def new(self, found: Iterator[Use]) -> list[Use]:
        """Those that have passed a threshold that they had not passed before."""
        fresh = []
        for use in found:
            before = self._warned.get(use.setting, 0.0)
            if use.threshold > before:
                fresh.append(use)
            still = max((one for one in THRESHOLDS if one <= before and use.part >= one - _SLACK), default=0.0)
            self._warned[use.setting] = max(use.threshold, still)
        return fresh
