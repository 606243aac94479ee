"""What a comparison of a pipeline's source with one of its sinks has found, in words and as JSON. Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime

from headwater.postgres.comparison import Compared, Finding, Layout, Moment


@dataclass(frozen=True, slots=True)
class TableResult:
    """One table: how it compares, or the reason why it could not be compared."""

    table: str
    compared: Compared | None = None
    layout: Layout | None = None
    findings: Sequence[Finding] = ()
    error: str | None = None

    @property
    def is_equal(self) -> bool:
        return self.compared is not None and self.error is None and not self.compared.counts and not self.lacking

    @property
    def lacking(self) -> Sequence[str]:
        return self.layout.lacking if self.layout is not None else ()

    @property
    def notes(self) -> list[str]:
        """What has to be said in words, besides the counts and the rows that are listed."""
        layout, compared = self.layout, self.compared
        if layout is None or compared is None:
            return []
        said = []
        if layout.lacking:
            said.append(f"the target lacks {_listed(layout.lacking)}; add it, or read the table as a whole again")
        if layout.surplus:
            said.append(f"only the target has {_listed(layout.surplus)}, which was not compared")
        if layout.generated:
            said.append(f"the source computes {_listed(layout.generated)} and does not send it, so it was not compared")
        if compared.changed:
            said.append(f"{compared.changed:,} keys changed meanwhile, were looked at again, and are equal")
        if compared.unsettled:
            said.append(f"{compared.unsettled:,} keys changed whenever they were looked at, and could not be judged")
        if compared.uncertain:
            said.append("there are too many differences for a second look at each; some may only have been on their way")
        return said


@dataclass(frozen=True, slots=True)
class SinkResult:
    """One sink: when each side was read, what the pipeline did meanwhile, and its tables."""

    sink: str
    source: Moment
    target: Moment
    is_running: bool
    has_caught_up: bool
    tables: Sequence[TableResult] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        return all(table.is_equal for table in self.tables)

    @property
    def said(self) -> str:
        """What was compared when."""
        times = f"source at {self.source.lsn}, {_clock(self.source.at)}; target at {_clock(self.target.at)}"
        if not self.is_running:
            return f"sink {self.sink}: {times}; the pipeline does not run, so they were compared as they are"
        if not self.has_caught_up:
            return f"sink {self.sink}: {times}; the pipeline is behind, and what is on its way counts as a difference"
        return f"sink {self.sink}: {times}, when the pipeline had delivered all that the source shows"


def verdict(sinks: Sequence[SinkResult]) -> str:
    tables = [table for sink in sinks for table in sink.tables]
    wrong = sum(not table.is_equal for table in tables)
    if wrong:
        return f"{wrong} of {len(tables)} tables not shown to be equal"
    rows = sum(table.compared.source_rows for table in tables if table.compared is not None)
    return f"all {rows:,} rows of {len(tables)} tables are equal"


def as_json(pipeline: str, sinks: Sequence[SinkResult]) -> dict[str, object]:
    """Keys are stable; what is not known is null."""
    return {
        "pipeline": pipeline,
        "equal": all(sink.is_equal for sink in sinks),
        "sinks": [
            {
                "sink": sink.sink,
                "equal": sink.is_equal,
                "source": {"lsn": str(sink.source.lsn), "at": sink.source.at.isoformat()},
                "target": {"lsn": str(sink.target.lsn), "at": sink.target.at.isoformat()},
                "running": sink.is_running,
                "caught_up": sink.has_caught_up,
                "tables": [_table(table) for table in sink.tables],
            }
            for sink in sinks
        ],
    }


def _table(result: TableResult) -> dict[str, object]:
    compared = result.compared
    return {
        "table": result.table,
        "equal": result.is_equal,
        "source_rows": compared.source_rows if compared else None,
        "target_rows": compared.target_rows if compared else None,
        "missing": compared.counts.missing if compared else None,
        "extra": compared.counts.extra if compared else None,
        "different": compared.counts.different if compared else None,
        "changed_meanwhile": compared.changed if compared else None,
        "unsettled": compared.unsettled if compared else None,
        "differences": [{**asdict(finding), "key": dict(finding.key)} for finding in result.findings],
        "error": result.error,
        "notes": result.notes,
    }


def _listed(names: Sequence[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S%z}"
