"""The statements about the tables of pipelines, typed."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from headwater.model import Lsn
from headwater.postgres.statements import Statement, load

SQL: Final = load("headwater.capture.tables")

State: TypeAlias = Literal["wanted", "streaming", "left"]
Name: TypeAlias = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PipelineTable:
    """A table of a pipeline: `is_due` if one that is wanted may be tried now, and what its last reading was bounded by.

    `reason` is why it has its state.
    """

    schema: str
    name: str
    state: State
    is_added: bool
    request: int
    is_due: bool
    error: str | None
    snapshot: str | None
    until_lsn: Lsn | None
    attempt: str | None
    pieces_done: int
    pieces_total: int
    rows_estimate: int
    table_oid: int | None
    reason: str = ""

    @property
    def key(self) -> Name:
        return self.schema, self.name


@dataclass(frozen=True, slots=True)
class Progress:
    """How many pieces of a table have been delivered, of how many, and how many rows it has by the server's estimate."""

    table: Name
    done: int
    total: int
    rows_estimate: int


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of tables that was delivered: what it was asked for by, what it saw; oids as far as they are known."""

    attempt: str
    tables: Sequence[Name]
    requests: Sequence[int]
    oids: Sequence[int | None]
    snapshot: str
    until: Lsn


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """The slot of a pipeline as it was made: another `generation` knows nothing of what was before `since`.

    `since` is None until the slot is there. The slot is never confirmed beyond `confirmed` by us.
    """

    slot: str
    generation: str
    system_identifier: str
    since: Lsn | None
    confirmed: Lsn | None


def list_tables(pipeline: str) -> Statement[PipelineTable]:
    return SQL["list_tables"].bind(PipelineTable, pipeline=pipeline)


def enlist(pipeline: str, tables: Sequence[Name], state: State, reason: str) -> Statement[object]:
    return SQL["enlist"].bind(object, pipeline=pipeline, state=state, reason=reason, **_columns(tables))


def add_table(pipeline: str, table: Name) -> Statement[object]:
    return SQL["add_table"].bind(object, pipeline=pipeline, schema=table[0], name=table[1])


def remove_table(pipeline: str, table: Name) -> Statement[object]:
    return SQL["remove_table"].bind(object, pipeline=pipeline, schema=table[0], name=table[1])


def leave_table(pipeline: str, table: Name, reason: str) -> Statement[object]:
    return SQL["leave_table"].bind(object, pipeline=pipeline, schema=table[0], name=table[1], reason=reason)


def request_load(pipeline: str, table: Name, reason: str) -> Statement[object]:
    schema, name = table
    return SQL["request_load"].bind(object, pipeline=pipeline, schema=schema, name=name, reason=reason)


def request_all(pipeline: str, reason: str) -> Statement[object]:
    return SQL["request_all"].bind(object, pipeline=pipeline, reason=reason)


def save_progress(pipeline: str, attempt: str, progress: Sequence[Progress]) -> Statement[object]:
    return SQL["save_progress"].bind(
        object,
        pipeline=pipeline,
        attempt=attempt,
        done=[one.done for one in progress],
        totals=[one.total for one in progress],
        estimates=[one.rows_estimate for one in progress],
        **_columns([one.table for one in progress]),
    )


def save_loaded(pipeline: str, reading: Reading) -> Statement[object]:
    return SQL["save_loaded"].bind(
        object,
        pipeline=pipeline,
        attempt=reading.attempt,
        requests=list(reading.requests),
        oids=list(reading.oids),
        snapshot=reading.snapshot,
        until_lsn=reading.until,
        **_columns(reading.tables),
    )


def find_slot(pipeline: str) -> Statement[SlotRecord]:
    return SQL["find_slot"].bind(SlotRecord, pipeline=pipeline)


def save_slot(pipeline: str, record: SlotRecord) -> Statement[object]:
    return SQL["save_slot"].bind(
        object,
        pipeline=pipeline,
        slot=record.slot,
        generation=record.generation,
        system_identifier=record.system_identifier,
        since=record.since,
    )


def save_confirmed(pipeline: str, generation: str, confirmed: Lsn) -> Statement[object]:
    return SQL["save_confirmed"].bind(object, pipeline=pipeline, generation=generation, confirmed=confirmed)


def save_error(pipeline: str, table: Name, error: str, wait: timedelta) -> Statement[object]:
    schema, name = table
    return SQL["save_error"].bind(object, pipeline=pipeline, schema=schema, name=name, error=error, wait=wait)


def _columns(tables: Sequence[Name]) -> dict[str, list[str]]:
    return {"schemas": [schema for schema, _ in tables], "names": [name for _, name in tables]}
