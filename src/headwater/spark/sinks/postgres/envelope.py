"""Changes that went through a transform, as logs: their JSON turned back into texts, by the types of the target."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from headwater.errors import SinkError
from headwater.model import Lineage, Lsn, Op, Position
from headwater.postgres.replication.columnar import Places
from headwater.spark.letters import Letter, letter_of_envelope
from headwater.spark.sinks.postgres.box import Refusal
from headwater.spark.sinks.postgres.from_json import parse_row, plain_text, to_literal
from headwater.spark.sinks.postgres.log import DELETE, INSERT, TRUNCATE, UPDATE, Arrays, Log, Mask, moved_rows
from headwater.spark.sinks.postgres.session import Address
from headwater.spark.sinks.postgres.statements import LanePosition, Reached, Table
from headwater.spark.sinks.postgres.target import Fit, Misfit, Sent

_TAGS: Mapping[str, int] = {
    Op.INSERT: INSERT,
    Op.READ: INSERT,
    Op.UPDATE: UPDATE,
    Op.UPDATE_KEY: UPDATE,
    Op.DELETE: DELETE,
    Op.TRUNCATE: TRUNCATE,
}
_NEEDED = ("commit_lsn", "ordinal", "committed_at", "op", "schema", "table")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the DataFrame `changes`, and its JSON taken apart."""

    envelope: Mapping[str, Any]
    key: Mapping[str, Any] | None
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    unchanged: frozenset[str]

    @property
    def position(self) -> Position:
        return Position(Lsn(self.envelope["commit_lsn"]), self.envelope["ordinal"])

    @property
    def tag(self) -> int:
        return _TAGS[self.envelope["op"]]

    @property
    def old(self) -> Mapping[str, Any] | None:
        """What is known of the row as it was; a key that stayed is not among it."""
        if self.tag == DELETE or self.envelope["op"] == Op.UPDATE_KEY:
            return {**(self.key or {}), **(self.before or {})}
        return self.before if self.tag == UPDATE else None

    @property
    def shape(self) -> tuple[frozenset[str], tuple[str, ...] | None] | None:
        """The columns that are sent, and those that name a row if not all do; None if there is no new row."""
        if self.after is None:
            return None
        columns = frozenset(self.after) | self.unchanged
        key = tuple(self.key or ())
        return columns, key if key and set(key) < columns else None


@dataclass(frozen=True, slots=True)
class EnvelopeRun:
    """Changes of one table with the same columns."""

    sent: Sent
    rows: Sequence[Row]
    lineage: Lineage

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def layout(self) -> None:
        """The transform has left no trace of it."""
        return None

    @property
    def start(self) -> Position:
        return self.rows[0].position

    def log(self, fit: Fit) -> Log:
        count = len(self.rows)
        names = fit.names
        found = [names[number] for number in fit.key] if fit.key else names
        tags = np.array([row.tag for row in self.rows], np.uint8)
        values = tuple(self._texts(fit, name, [row.after for row in self.rows]) for name in names)
        old = tuple(self._texts(fit, name, [row.old for row in self.rows]) for name in found)
        has_old = np.array([bool(row.old) and all(name in (row.old or ()) for name in found) for row in self.rows], np.bool_)
        self._check_old(fit, found, has_old)
        masks = {
            number: np.array([name in row.unchanged for row in self.rows], np.bool_) for number, name in enumerate(names)
        }
        return Log(
            names,
            fit.key,
            tags,
            values,
            {number: mask for number, mask in masks.items() if mask.any()},
            old,
            has_old,
            moved_rows(tags, has_old, [values[number] for number in fit.key], old) if fit.key else np.zeros(count, np.bool_),
            Places(
                np.array([row.position.commit_lsn for row in self.rows], np.int64),
                np.array([row.position.ordinal for row in self.rows], np.int64),
                np.array([row.envelope["xid"] or 0 for row in self.rows], np.int64),
                np.zeros(count, np.int64),
            ),
            np.arange(count),
        )

    def _check_old(self, fit: Fit, found: Sequence[str], has_old: Mask) -> None:
        """Rows that go, or change what they are found by, say which they are; else they would be left behind."""
        for at in np.flatnonzero(~has_old).tolist():
            row = self.rows[at]
            if row.tag == DELETE or row.envelope["op"] == Op.UPDATE_KEY or (row.tag == UPDATE and not fit.key):
                known = row.old or {}
                raise Misfit(
                    f"a change of {fit.target} came out of the transform without the old value of column "
                    f"{next((name for name in found if name not in known), found[0])!r}, by which rows are found in the "
                    "target; let the transform do to `key` and `before` what it does to `after`"
                )

    def _texts(self, fit: Fit, name: str, rows: Sequence[Mapping[str, Any] | None]) -> pa.Array:
        column = next(column for column in fit.columns if column.name == name)
        write = to_literal(fit.types, column.type_oid)
        values = (None if row is None else row.get(name) for row in rows)
        return pa.array([None if value is None else write(value) for value in values], pa.string())

    def keys(self, _log: Log, columns: Arrays) -> list[str]:
        return [json.dumps(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]

    def key_of(self, log: Log, key: Mapping[str, Any]) -> str | None:
        names = [log.columns[number] for number in log.key]
        return None if not all(name in key for name in names) else json.dumps([plain_text(key[name]) for name in names])

    def letters(self, refused: Sequence[Refusal], address: Address) -> list[Letter]:
        whose = {"pipeline": address.pipeline, "sink": address.sink}
        found = []
        for one in refused:
            row = self.rows[int(one.log.origins[0])]
            letter = letter_of_envelope(row.envelope, self.lineage, one.reason, **whose)
            found.append(_about(letter, row, one) if one.log.moved[0] else letter)
        return found


def _about(letter: Letter, row: Row, refusal: Refusal) -> Letter:
    """A change of the key: what is left to be done is the new row, unless the old one has yet to go."""
    names = (refusal.log.columns[number] for number in refusal.log.key)
    new_key = {name: (row.after or {}).get(name) for name in names}
    return replace(letter, new_key=new_key) if refusal.moves else replace(letter, key=new_key, new_key=None)


class Envelopes:
    """The rows of a task, by table; a table's changes are all in one task, and come in order."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], lineage: Lineage, sink: str) -> None:
        self._lineage = lineage
        self._rows: list[Row] = []
        # What is no row of JSON objects, and why.
        self.bad: list[tuple[Mapping[str, Any], str]] = []
        for envelope in rows:
            missing = [name for name in _NEEDED if envelope[name] is None]
            if missing or envelope["op"] not in _TAGS:
                wrong = (missing or ["op"])[0]
                raise SinkError(sink, f"a change without a proper {wrong} came out of the transform; leave it as it is")
            try:
                self._rows.append(_row(envelope))
            except ValueError as exc:
                self.bad.append((envelope, f"key, before or after is not a JSON object after the transform: {exc}"))

    @property
    def tables(self) -> list[Table]:
        envelopes = [row.envelope for row in self._rows] + [envelope for envelope, _ in self.bad]
        return list(dict.fromkeys((envelope["schema"], envelope["table"]) for envelope in envelopes))

    @property
    def changes(self) -> int:
        return len(self._rows) + len(self.bad)

    @property
    def has_key_lanes(self) -> bool:
        return False

    @property
    def lineages(self) -> list[Lineage]:
        return [self._lineage]

    @property
    def locks(self) -> list[str]:
        return [f"table {schema}.{table}" for schema, table in self.tables]

    def reached(self, _end: Position) -> list[Reached]:
        # The lineage is that of the start of the run: a standby may have been promoted since.
        return [Reached(schema, table, 1, 0, self._lineage.system_identifier, None) for schema, table in self.tables]

    def runs(self, table: Table, positions: Iterable[LanePosition]) -> list[EnvelopeRun]:
        """What is not applied yet of a table's changes, in order."""
        done = _applied(positions)
        rows = [
            row
            for row in self._rows
            if (row.envelope["schema"], row.envelope["table"]) == table and not _is_applied(row.envelope, done)
        ]
        # A row that goes has no columns: it is written like those beside it.
        shapes = [row.shape for row in rows]
        known = next((shape for shape in shapes if shape is not None), None)
        filled = []
        for shape in shapes:
            known = shape or known
            filled.append(known)
        numbered = groupby(range(len(rows)), key=lambda at: filled[at])
        return [self._run(shape, [rows[at] for at in group]) for shape, group in numbered]

    def unreadable(self, positions: Iterable[LanePosition], address: Address) -> list[Letter]:
        done = _applied(positions)
        return [
            letter_of_envelope(
                {**envelope, "key": None}, self._lineage, reason, pipeline=address.pipeline, sink=address.sink
            )
            for envelope, reason in self.bad
            if not _is_applied(envelope, done)
        ]

    def _run(self, shape: tuple[frozenset[str], tuple[str, ...] | None] | None, rows: Sequence[Row]) -> EnvelopeRun:
        if shape is None:
            names = tuple(rows[0].key or rows[0].before or ())
            return EnvelopeRun(Sent(names, None, has_new_rows=False), rows, self._lineage)
        columns, identity = shape
        return EnvelopeRun(Sent(tuple(sorted(columns)), identity), rows, self._lineage)


def _row(envelope: Mapping[str, Any]) -> Row:
    key, before, after = (parse_row(envelope[name]) for name in ("key", "before", "after"))
    unchanged = frozenset(envelope["unchanged"] or ())
    if before and unchanged:
        # Under `replica identity full` the old row has what the new one leaves out.
        after = {**{name: before[name] for name in unchanged if name in before}, **(after or {})}
        unchanged -= frozenset(before)
    if _TAGS[envelope["op"]] in (INSERT, UPDATE) and after is None:
        raise ValueError("there is no new row")
    return Row(envelope, key, before, after, unchanged)


def _applied(positions: Iterable[LanePosition]) -> dict[Table, Position]:
    """How far each table is as a whole; lanes cannot be told of changes that went through a transform."""
    done: dict[Table, Position] = {}
    for one in positions:
        if one.lanes == 1:
            done[one.schema, one.table] = one.position
    return done


def _is_applied(envelope: Mapping[str, Any], done: Mapping[Table, Position]) -> bool:
    position = done.get((envelope["schema"], envelope["table"]))
    return position is not None and Position(Lsn(envelope["commit_lsn"]), envelope["ordinal"]) < position
