"""Frames as logs: decoded once, cut at what the target has, and put in order by table."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from psycopg import sql

from headwater.model import Lineage, Lsn, Position
from headwater.postgres.replication.columnar import Group, as_sent, decode_columns
from headwater.postgres.replication.messages import Relation, RelationColumn
from headwater.postgres.types import Types, to_json
from headwater.spark.frame import Frame, Layout, LayoutColumn
from headwater.spark.letters import Letter, letters_at
from headwater.spark.sinks.postgres.box import Refusal
from headwater.spark.sinks.postgres.log import Arrays, Log, Mask, Part, gather, is_before
from headwater.spark.sinks.postgres.positions import timeline_before
from headwater.spark.sinks.postgres.session import Address
from headwater.spark.sinks.postgres.statements import LanePosition, Reached, Table
from headwater.spark.sinks.postgres.target import Fit, Sent
from headwater.spark.sources.lanes import lanes_of

# A whole table is the only one of its lanes.
_WHOLE = (0, 1)
# `replica identity full`, and none: the server sends the whole old row, or never any.
_NO_IDENTITY = "fn"


@dataclass(frozen=True, slots=True)
class WireRun:
    """Changes of one table between two changes of its shape."""

    relation: Relation
    parts: tuple[Part, ...]
    frames: Sequence[Frame]

    def __len__(self) -> int:
        return sum(len(part.rows) for part in self.parts)

    @property
    def sent(self) -> Sent:
        return sent_of(self.relation)

    @property
    def layout(self) -> Layout:
        """As the catalog told it, or if it did not, as far as the stream does."""
        own = self.frames[self.parts[0].origin]
        told = next((layout for relation, layout in own.layouts if relation == self.relation), None)
        return told or layout_of(self.relation, own.types)

    @property
    def start(self) -> Position:
        return Position(*_first(self.parts[0]))

    def log(self, fit: Fit) -> Log:
        return gather(self.parts, fit.names, fit.key)

    def keys(self, log: Log, columns: Arrays) -> list[str]:
        types = self.frames[0].types
        columns_by_name = {column.name: column for column in self.relation.columns}
        keys = [columns_by_name[log.columns[number]] for number in log.key]
        write = [to_json(types, column.type_oid) for column in keys]
        return [
            json.dumps({c.name: _json(w, text) for c, w, text in zip(keys, write, row, strict=True)}, sort_keys=True)
            for row in zip(*(column.to_pylist() for column in columns), strict=True)
        ]

    def key_of(self, log: Log, key: Mapping[str, Any]) -> str | None:
        names = [log.columns[number] for number in log.key]
        if not all(name in key for name in names):
            return None
        return json.dumps({name: key[name] for name in names}, sort_keys=True)

    def letters(self, refused: Sequence[Refusal], address: Address) -> list[Letter]:
        reasons: dict[int, dict[Position, str]] = {}
        for one in refused:
            reasons.setdefault(int(one.log.origins[0]), {})[one.position] = one.reason
        whose = {"pipeline": address.pipeline, "sink": address.sink}
        found = [one for number, by in reasons.items() for one in letters_at(self.frames[number], by, **whose)]
        moved = {one.position: one for one in refused if one.log.moved[0]}
        return [self._about(one, moved[one.position]) if one.position in moved else one for one in found]

    def _about(self, letter: Letter, refusal: Refusal) -> Letter:
        """A change of the key: what is left to be done is the new row, unless the old one has yet to go."""
        new_key: dict[str, Any] = json.loads(self.keys(refusal.log, refusal.log.key_values)[0])
        return replace(letter, new_key=new_key) if refusal.moves else replace(letter, key=new_key, new_key=None)


class Frames:
    """The frames of a task, decoded."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._frames = [frame for frame in frames if len(frame.batch)]
        self._groups = [
            (number, group)
            for number, frame in enumerate(self._frames)
            for group in decode_columns(frame.batch, frame.types, as_sent)
        ]

    @cached_property
    def tables(self) -> list[Table]:
        return list(dict.fromkeys((group.relation.schema, group.relation.name) for _, group in self._groups))

    @property
    def changes(self) -> int:
        return sum(len(group) for _, group in self._groups)

    @property
    def has_key_lanes(self) -> bool:
        return any(frame.key_lane is not None for frame in self._frames)

    @property
    def locks(self) -> list[str]:
        return sorted({f"lane {frame.lane}" for frame in self._frames})

    def unreadable(self, _positions: Iterable[LanePosition], _address: Address) -> list[Letter]:
        return []

    @property
    def lineages(self) -> list[Lineage]:
        return list(dict.fromkeys(frame.lineage for frame in self._frames))

    def reached(self, end: Position) -> list[Reached]:
        """The lanes that are further on when all is applied."""
        found: dict[Reached, None] = {}
        for number, group in self._groups:
            frame = self._frames[number]
            lane, lanes = frame.key_lane or _WHOLE
            system, timeline = frame.lineage.system_identifier, timeline_before(frame.lineage, end.commit_lsn)
            one = Reached(group.relation.schema, group.relation.name, lanes, lane, system, timeline)
            found[one] = None
        return list(found)

    def runs(self, table: Table, positions: Iterable[LanePosition]) -> list[WireRun]:
        """What is not applied yet of a table's changes, in order."""
        known = [position for position in positions if (position.schema, position.table) == table]
        parts = []
        for number, group in self._groups:
            if (group.relation.schema, group.relation.name) == table:
                rows = np.flatnonzero(~self._is_applied(self._frames[number], group, known))
                if len(rows):
                    parts.append(Part(group, rows, number))
        return [WireRun(run[0].group.relation, tuple(run), self._frames) for run in _by_shape(parts)]

    def _is_applied(self, frame: Frame, group: Group, known: Sequence[LanePosition]) -> Mask:
        own = {_WHOLE, frame.key_lane}
        base = max((one.position for one in known if (one.lane, one.lanes) in own), default=None)
        applied = np.zeros(len(group), np.bool_) if base is None else is_before(group.places, base)
        others: dict[int, dict[int, Position]] = {}
        for one in known:
            if (one.lane, one.lanes) not in own and (base is None or one.position > base):
                others.setdefault(one.lanes, {})[one.lane] = one.position
        for lanes, by_lane in others.items():
            if applied.all() or not is_before(group.places, max(by_lane.values())).any():
                continue
            lane_of = lanes_of(frame.batch, lanes)[group.messages]
            for lane, position in by_lane.items():
                applied |= (lane_of == lane) & is_before(group.places, position)
        return applied


def sent_of(relation: Relation) -> Sent:
    """What the source sends of a table."""
    columns = relation.columns
    identity = None
    if relation.identity not in _NO_IDENTITY:
        # Without a key none of the table's rows can change: it only gets new ones.
        identity = tuple(column.name for column in columns if column.key) or None
    return Sent(tuple(column.name for column in columns), identity)


def layout_of(relation: Relation, types: Types) -> Layout:
    """What a Relation message tells by itself."""
    columns = tuple(LayoutColumn(None, c.name, c.type_oid, c.typmod, _own_name(c, types)) for c in relation.columns)
    return Layout(relation.oid, columns)


def _own_name(column: RelationColumn, types: Types) -> str:
    """The name of a type of the user's own; others have the same number everywhere."""
    found = types.get(column.type_oid)
    if found is None or column.type_oid in Types.builtin():
        return ""
    return sql.Identifier(found.schema, found.name).as_string()


def _json(write: Callable[[str], str], text: str | None) -> object:
    return None if text is None else json.loads(write(text))


def _by_shape(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """The parts in order, apart where the table looks different, or is another one."""
    run: list[Part] = []
    for part in sorted(parts, key=_first):
        if run and _shape(part.group.relation) != _shape(run[0].group.relation):
            yield run
            run = []
        run.append(part)
    if run:
        yield run


def _first(part: Part) -> tuple[Lsn, int]:
    row = part.rows[0]
    return Lsn(int(part.group.places.commit_lsn[row])), int(part.group.places.ordinal[row])


def _shape(relation: Relation) -> tuple[object, ...]:
    return relation.oid, relation.identity, relation.columns
