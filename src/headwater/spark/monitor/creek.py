"""Creek's own metric names, so that its dashboards keep working: made beside ours when they are asked for.

Prometheus' Python client puts `_total` behind the name of a counter, and Creek's have none: the text is written here.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Self, TypeAlias

from headwater.model import Op
from headwater.spark.monitor.watch import Watch
from headwater.spark.reporter import Reporter

Labels: TypeAlias = Mapping[str, str]
Sample: TypeAlias = tuple[Labels, float]
# What was read: the kind of stream, the operation and the table, and how often.
Reads: TypeAlias = Mapping[tuple[str, str, str], int]

_APPLICATION: Final = "creek_producer"
_OPS: Final = {
    str(Op.INSERT): "insert",
    str(Op.UPDATE): "update",
    str(Op.UPDATE_KEY): "update",
    str(Op.DELETE): "delete",
    str(Op.TRUNCATE): "truncate",
    str(Op.READ): "read",
}


def reads_of(published: Mapping[tuple[str, str], int]) -> dict[tuple[str, str, str], int]:
    """Counts of published changes, by operation and table, as Creek counts what it read of the WAL."""
    found: Counter[tuple[str, str, str]] = Counter()
    for (op, table), count in published.items():
        found["wal", _OPS[op], table] += count
    return dict(found)


class LogCounter(logging.Handler):
    """Counts what is logged, by level, from the beginning of a `with` to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.counts[record.levelname.lower()] += 1

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        logging.getLogger().removeHandler(self)


class CreekMetrics:
    """The metrics of a Creek producer: `reads` and `tables` are those of its sink, `logged` the lines of the log."""

    def __init__(
        self, reporter: Reporter, watch: Watch, logged: LogCounter, reads: Callable[[], Reads], tables: Callable[[], int]
    ) -> None:
        self._reporter, self._watch, self._logged = reporter, watch, logged
        self._reads, self._tables = reads, tables

    def render(self) -> bytes:
        return "".join(self._families()).encode()

    def _families(self) -> Iterator[str]:
        reads = [
            ({"creek_pg_source": table, "creek_producer_pg_op": op, "creek_stream_type": kind}, float(count))
            for (kind, op, table), count in sorted(self._reads().items())
        ]
        yield _family("creek_producer_pg_reads", "counter", "Changes, rows and tables read from PostgreSQL.", reads)
        position, progress = self._reporter.report.position, self._watch.progress
        lag = progress.lag
        lsn = None if position is None else position.commit_lsn
        behind = None if lag is None else lag.total_seconds() * 1000
        figures = {
            "creek_producer_lsn": ("The position up to which everything is published.", lsn),
            "creek_producer_pg_behind_time": ("How far behind, in milliseconds.", behind),
            "creek_producer_pg_behind_bytes": ("How far behind, in bytes of WAL.", progress.lag_bytes),
            "creek_producer_wal_subscriptions": ("Tables that are followed.", self._tables()),
        }
        for name, (said, value) in figures.items():
            yield _family(name, "gauge", said, [] if value is None else [({}, float(value))])
        logged = [({"application": _APPLICATION, "level": level}, float(n)) for level, n in self._logged.counts.items()]
        yield _family("log_messages_total", "counter", "Lines of the log.", logged)


def _family(name: str, kind: str, said: str, samples: Iterable[Sample]) -> str:
    lines = [f"# HELP {name} {said}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        listed = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{listed}}} {value!r}" if listed else f"{name} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
