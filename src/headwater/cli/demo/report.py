"""What the demo found in the end, as a value, and in the form for programs."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from headwater.cli.demo.replica import Comparison
from headwater.cli.demo.tally import Large
from headwater.cli.demo.view import KINDS
from headwater.model import Op


@dataclass(frozen=True, slots=True)
class Server:
    """Where it ran; `is_private` if the demo started it."""

    name: str
    version: str
    is_private: bool


@dataclass(frozen=True, slots=True)
class Wal:
    """Bytes of WAL: written by the server meanwhile, kept for the slot at most and in the end, not confirmed in the end."""

    written: int
    peak_retained: int
    retained: int
    unconfirmed: int


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table: what was written to it and captured of it by kind of change, and how the rows compare."""

    written: Mapping[Op, int]
    captured: Mapping[Op, int]
    comparison: Comparison

    @property
    def name(self) -> str:
        return self.comparison.table

    @property
    def differences(self) -> list[str]:
        """What is not as it should be, in words."""
        counts = [
            f"{self.name}: {self.written[op]:,} {kind} were written, {self.captured[op]:,} captured"
            for op, kind in KINDS.items()
            if self.written[op] != self.captured[op]
        ]
        return [*counts, *self.comparison.differences]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole of it. Latencies are from a commit to its rows being in the replica, in milliseconds."""

    server: Server
    tables: list[TableReport]
    transactions_written: int
    transactions_captured: int
    rolled_back: Counter[str]
    largest: Large
    latency_median_ms: float
    latency_p99_ms: float
    kept_values: int
    wal: Wal
    seconds: float

    @property
    def changes(self) -> int:
        return sum(sum(table.captured.values()) for table in self.tables)

    @property
    def differences(self) -> list[str]:
        """All that is not as it should be; empty if nothing was lost and nothing came twice."""
        written, captured = self.transactions_written, self.transactions_captured
        found = [f"{written:,} transactions were committed, {captured:,} captured"] if written != captured else []
        return [*found, *(line for table in self.tables for line in table.differences)]

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def as_json(self) -> dict[str, object]:
        return {
            "equal": self.is_equal,
            "differences": self.differences,
            "server": dataclasses.asdict(self.server),
            "seconds": round(self.seconds, 3),
            "changes": self.changes,
            "tables": {table.name: _table_json(table) for table in self.tables},
            "transactions": {"written": self.transactions_written, "captured": self.transactions_captured},
            "rolled_back": dict(self.rolled_back),
            "largest_transaction": {**dataclasses.asdict(self.largest), "per_second": round(self.largest.per_second)},
            "latency_ms": {"median": round(self.latency_median_ms, 3), "p99": round(self.latency_p99_ms, 3)},
            "unchanged_values_kept": self.kept_values,
            "wal_bytes": dataclasses.asdict(self.wal),
        }


def _table_json(table: TableReport) -> dict[str, object]:
    rows = {name: getattr(table.comparison, name) for name in ("equal", "missing", "extra", "different", "strays")}
    return {"written": _by_name(table.written), "captured": _by_name(table.captured), "rows": rows}


def _by_name(counts: Mapping[Op, int]) -> dict[str, int]:
    return {kind.replace(" ", "_"): counts[op] for op, kind in KINDS.items()}
