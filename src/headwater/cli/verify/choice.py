"""Which tables of a pipeline are to be compared, and which of them cannot be.

Imports Spark's package, so it is imported where that is known to be there.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import psycopg

from headwater.capture.tables import PipelineTable, TableStore
from headwater.errors import SettingsError, SourceError
from headwater.postgres.catalog import Table, select_tables
from headwater.spark.settings import PipelineSettings, PostgresSinkSettings, TransformSettings


@dataclass(frozen=True, slots=True)
class Choice:
    """Tables of the source to compare, and why others that were asked for cannot be, by name."""

    tables: Sequence[Table]
    refused: dict[str, str] = field(default_factory=dict)


def require_comparable(pipeline: PipelineSettings) -> list[PostgresSinkSettings]:
    """The sinks that can be compared; raises SettingsError if there are none, or if rows change on their way."""
    sinks = [sink for sink in pipeline.sinks if isinstance(sink, PostgresSinkSettings)]
    if not sinks:
        raise SettingsError(f"pipeline {pipeline.name} has no sink of type postgres, and no other can be compared; add one")
    transform = pipeline.transform or TransformSettings()
    for name in ("filter", "sql", "function"):
        if getattr(transform, name) is not None:
            raise SettingsError(
                f"pipeline {pipeline.name} has a transform.{name}, which changes or leaves out rows on their way, so its "
                "target cannot be compared with its source"
            )
    return sinks


def choose_tables(
    found: Sequence[Table], pipeline: PipelineSettings, known: Sequence[PipelineTable], patterns: Sequence[str]
) -> Choice:
    """Of the tables at the source those that match, or all of the pipeline; `known` is what its run knows of them."""
    members, refused = _select(found, pipeline.source.tables)
    states = {table.key: table for table in known}
    added = [table for table in found if (entry := states.get(_name(table))) and entry.is_added]
    own = {table.oid: table for table in (*members, *added) if not _has_left(states.get(_name(table)))}
    if patterns:
        asked, refused = _select(found, patterns)
        refused |= {str(table): _not_in(pipeline.name) for table in asked if table.oid not in own}
        own = {table.oid: table for table in asked if table.oid in own}
    there = {_name(table) for table in found}
    gone = [entry for entry in known if entry.state != "left" and entry.key not in there]
    if not patterns:
        refused |= {".".join(entry.key): "in the source: it does not exist any more" for entry in gone}
    chosen = sorted(own.values(), key=_name)
    for table in chosen:
        reason = _reason(table, pipeline.transform, states.get(_name(table)))
        if reason is not None:
            refused[str(table)] = reason
    return Choice([table for table in chosen if str(table) not in refused], refused)


def known_tables(pipeline: PipelineSettings) -> list[PipelineTable]:
    """What the run of a pipeline knows of its tables; nothing, if it never ran."""
    with closing(TableStore(pipeline.state_url, pipeline.name)) as store:
        try:
            return store.tables()
        except psycopg.errors.UndefinedTable:
            return []


def _select(found: Sequence[Table], patterns: Iterable[str]) -> tuple[list[Table], dict[str, str]]:
    """The tables that match, and what is wrong with a pattern that matches none."""
    chosen: dict[int, Table] = {}
    refused: dict[str, str] = {}
    for pattern in patterns:
        try:
            chosen.update((table.oid, table) for table in select_tables(found, [pattern]))
        except SourceError as exc:
            refused[pattern] = f"in the source: {exc}"
    return list(chosen.values()), refused


def _reason(table: Table, transform: TransformSettings | None, entry: PipelineTable | None) -> str | None:
    """Why a table of the pipeline cannot be compared, if it cannot."""
    if entry is not None and entry.state == "wanted":
        return "the pipeline has yet to read it as a whole; compare it when `headwater status` says that this is done"
    protected = [*transform.mask, *transform.hash] if transform is not None else []
    columns = [name.split(".")[2] for name in protected if tuple(name.split(".")[:2]) == _name(table)]
    if columns:
        return f"it cannot be compared, since {', '.join(columns)} is masked or hashed on its way"
    return None


def _has_left(entry: PipelineTable | None) -> bool:
    return entry is not None and entry.state == "left"


def _not_in(pipeline: str) -> str:
    return f"it is no table of pipeline {pipeline}; name one that is, or add it to the pipeline"


def _name(table: Table) -> tuple[str, str]:
    return table.schema, table.name
