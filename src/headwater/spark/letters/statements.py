"""The statements of dead letters, typed."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from headwater.model import Lsn
from headwater.postgres.statements import Statement, load
from headwater.spark.letters.letter import Letter, LetterSummary, OpenLetter

SQL: Final = load("headwater.spark.letters")


@dataclass(frozen=True, slots=True)
class Record:
    """A whole row of the table."""

    id: int
    state: str
    created_at: datetime
    pipeline: str
    sink: str
    event_id: str
    schema: str
    table: str
    op: str
    commit_lsn: Lsn
    ordinal: int
    xid: int
    committed_at: datetime
    key: dict[str, Any] | None
    new_key: dict[str, Any] | None
    reason: str
    relation: bytes | None
    message: bytes | None
    envelope: dict[str, Any] | None
    own_types: list[dict[str, Any]]


def save_letters(letters: Sequence[Letter]) -> Statement[int]:
    """A row for each letter that was not there."""
    return SQL["save_letters"].bind(
        int,
        pipeline=[letter.pipeline for letter in letters],
        sink=[letter.sink for letter in letters],
        event_id=[letter.event_id for letter in letters],
        schema_name=[letter.schema for letter in letters],
        table_name=[letter.table for letter in letters],
        op=[letter.op for letter in letters],
        commit_lsn=[letter.position.commit_lsn for letter in letters],
        ordinal=[letter.position.ordinal for letter in letters],
        xid=[letter.xid for letter in letters],
        committed_at=[letter.committed_at for letter in letters],
        key=[_json(letter.key) for letter in letters],
        new_key=[_json(letter.new_key) for letter in letters],
        # No text of PostgreSQL's holds a NUL, and a reason may quote what a driver said.
        reason=[letter.reason.replace("\0", "\\0") for letter in letters],
        relation=[letter.relation for letter in letters],
        message=[letter.message for letter in letters],
        envelope=[_json(letter.envelope) for letter in letters],
        own_types=[json.dumps([asdict(type_) for type_ in letter.own_types]) for letter in letters],
    )


def list_open(pipeline: str, sink: str) -> Statement[OpenLetter]:
    return SQL["list_open"].bind(OpenLetter, pipeline=pipeline, sink=sink)


def supersede(ids: Sequence[int]) -> Statement[int]:
    """A row for each letter that was open."""
    return SQL["supersede"].bind(int, ids=list(ids))


def list_earlier(id: int) -> Statement[int]:
    """The ids, in the order of the stream."""
    return SQL["list_earlier"].bind(int, id=id)


def list_letters(pipeline: str | None, sink: str | None, table: str | None, state: str | None) -> Statement[LetterSummary]:
    return SQL["list_letters"].bind(LetterSummary, pipeline=pipeline, sink=sink, table=table, state=state)


def find_letter(id: int) -> Statement[Record]:
    """At most one row."""
    return SQL["find_letter"].bind(Record, id=id)


def lock_letter(id: int) -> Statement[int]:
    """At most one row; it is held until the transaction ends."""
    return SQL["lock_letter"].bind(int, id=id)


def mark_replayed(id: int) -> Statement[int]:
    return SQL["mark_replayed"].bind(int, id=id)


def drop_letters(ids: Sequence[int]) -> Statement[int]:
    """A row for each letter that was there."""
    return SQL["drop_letters"].bind(int, ids=list(ids))


def _json(value: object) -> str | None:
    return None if value is None else json.dumps(value)
