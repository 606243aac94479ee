"""What the demo found in the end, as a value, and in the form for programs."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from headwater.cli.demo.compare import Comparison
from headwater.cli.demo.events import EventReport
from headwater.cli.demo.tally import Large
from headwater.cli.demo.topic import TopicReport
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
class Lag:
    """How far the target was behind the source, in seconds: at half of all looks at most so much, and so on."""

    median: float
    p99: float
    largest: float


@dataclass(frozen=True, slots=True)
class TableReport:
    """One table: what was written to it, by kind of change, how many changes were delivered, and how the rows compare."""

    written: Mapping[Op, int]
    delivered: int
    comparison: Comparison

    @property
    def name(self) -> str:
        return self.comparison.table

    @property
    def differences(self) -> list[str]:
        """What is not as it should be, in words; what was delivered again after a restart is no loss."""
        written = sum(self.written.values())
        lost = [f"{self.name}: {written:,} changes were written, {self.delivered:,} delivered"]
        return [*(lost if self.delivered < written else ()), *self.comparison.differences]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole of it. `applied` are the changes that the target has taken, `letters` those that it could not take."""

    server: Server
    tables: list[TableReport]
    transactions: int
    rolled_back: Counter[str]
    applied: int
    letters: int
    rows_per_second: float
    large: Large
    lag: Lag
    wal: Wal
    events: EventReport
    topic: TopicReport
    seconds: float

    @property
    def changes(self) -> int:
        return sum(table.delivered for table in self.tables)

    @property
    def differences(self) -> list[str]:
        """All that is not as it should be; empty if nothing was lost and nothing was applied twice."""
        written = sum(sum(table.written.values()) for table in self.tables)
        repeated = [f"{written:,} changes were written, {self.applied:,} applied"] if self.applied > written else []
        letters = [f"{self.letters:,} changes were put aside as dead letters"] if self.letters else []
        return [
            *repeated,
            *letters,
            *(line for table in self.tables for line in table.differences),
            *self.events.differences,
            *self.topic.differences,
        ]

    @property
    def is_equal(self) -> bool:
        return not self.differences

    def as_json(self) -> dict[str, object]:
        large = {
            "rows": self.large.rows,
            "seconds": round(self.large.seconds, 3),
            "per_second": round(self.large.per_second),
        }
        return {
            "equal": self.is_equal,
            "differences": self.differences,
            "server": dataclasses.asdict(self.server),
            "seconds": round(self.seconds, 3),
            "changes": self.changes,
            "rows_per_second": round(self.rows_per_second),
            "tables": {table.name: _table_json(table) for table in self.tables},
            "transactions": self.transactions,
            "rolled_back": dict(self.rolled_back),
            "applied": self.applied,
            "letters": self.letters,
            "large_transaction": large,
            "lag_seconds": {name: round(value, 3) for name, value in dataclasses.asdict(self.lag).items()},
            "wal_bytes": dataclasses.asdict(self.wal),
            "events": _rounded(self.events),
            "topic": _rounded(self.topic),
        }


def _rounded(part: EventReport | TopicReport) -> dict[str, object]:
    given = dataclasses.asdict(part)
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in given.items()}


def _table_json(table: TableReport) -> dict[str, object]:
    rows = {name: getattr(table.comparison, name) for name in ("equal", "missing", "extra", "different")}
    written = {kind.replace(" ", "_"): table.written[op] for op, kind in KINDS.items()}
    return {"written": written, "delivered": table.delivered, "rows": rows}
