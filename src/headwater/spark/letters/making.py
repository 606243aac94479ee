"""Letters made from frames and envelopes, and frames made from letters again. Pure; nothing here is a pickle."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from headwater.errors import DecodeError, HeadwaterError
from headwater.model import UNCHANGED, Change, Lineage, Lsn, Position, Row
from headwater.postgres.replication.batch import Batch, lay_out, relations_in
from headwater.postgres.replication.columnar import decode_columns
from headwater.postgres.replication.cut import Index
from headwater.postgres.replication.messages import Begin, Relation
from headwater.postgres.replication.pgoutput import expect, parse_relation
from headwater.postgres.replication.rows import Convert, decode_rows
from headwater.postgres.types import PgType, Types, to_json
from headwater.spark.frame import Frame
from headwater.spark.letters.letter import Letter

# A row of the DataFrame `changes` by its columns; `key`, `before` and `after` are JSON texts.
Envelope: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Addressee:
    """Whose letter it is."""

    pipeline: str
    sink: str


def letter_of_message(frame: Frame, index: int, reason: str, *, pipeline: str, sink: str) -> Letter:
    """The letter of the change that a message of a frame is; of a truncate, that of its first table."""
    return _Messages(frame).letter(index, 0, reason, Addressee(pipeline, sink))


def letter_at(frame: Frame, position: Position, reason: str, *, pipeline: str, sink: str) -> Letter:
    """The letter of the change at a position of a frame."""
    return letters_at(frame, {position: reason}, pipeline=pipeline, sink=sink)[0]


def letters_at(frame: Frame, reasons: Mapping[Position, str], *, pipeline: str, sink: str) -> list[Letter]:
    """The letters of many changes of a frame."""
    messages, to = _Messages(frame), Addressee(pipeline, sink)
    return [messages.letter(*messages.find(position), reason, to) for position, reason in reasons.items()]


def letter_of_envelope(envelope: Envelope, lineage: Lineage, reason: str, *, pipeline: str, sink: str) -> Letter:
    """The letter of a row of the DataFrame `changes` that is a change."""
    position = Position(Lsn(envelope["commit_lsn"]), envelope["ordinal"])
    committed_at: datetime = envelope["committed_at"]
    key = _json_or_text(envelope["key"])
    plain = {**envelope, "committed_at": committed_at.isoformat(), "unchanged": list(envelope["unchanged"] or ())}
    return Letter(
        pipeline=pipeline,
        sink=sink,
        event_id=lineage.event_id(position),
        schema=envelope["schema"],
        table=envelope["table"],
        op=envelope["op"],
        position=position,
        # A row that came with its whole table is of no transaction.
        xid=envelope["xid"] or 0,
        committed_at=committed_at,
        key=key if isinstance(key, dict) else None,
        reason=reason,
        envelope=plain,
    )


def frame_of(letter: Letter) -> Frame:
    """A frame of just the letter's change; one that came behind a transform has none, and raises."""
    if letter.message is None or letter.relation is None:
        raise HeadwaterError(f"the letter of {letter.event_id} holds an envelope and not what the server sent")
    data, bounds = lay_out([letter.message])
    batch = Batch(
        data,
        bounds,
        relations={parse_relation(letter.relation).oid: letter.relation},
        changes=1,
        end=None,
        begin=Begin(letter.position.commit_lsn, letter.committed_at, letter.xid),
        first_ordinal=letter.position.ordinal,
    )
    return Frame(0, None, batch, letter.own_types, lineage_of(letter.event_id))


def row_of(letter: Letter) -> dict[str, Any]:
    """Key, old row, new row and what was not sent, also of a row with values that are none of their type."""
    if letter.envelope is not None:
        parts = {name: _json_or_text(letter.envelope[name]) for name in ("key", "before", "after")}
        return {**parts, "unchanged": letter.envelope["unchanged"]}
    frame = frame_of(letter)
    (change,) = (c for c in decode_rows(frame.batch, frame.types, leniently(to_json)) if isinstance(c, Change))
    row = {"key": change.key, "before": change.before, "after": change.after}
    return {**{name: _parsed(part) for name, part in row.items()}, "unchanged": list(change.unchanged)}


def lineage_of(event_id: str) -> Lineage:
    """The lineage that an event id tells of, good for naming this event; only a database's name may have dots in it."""
    rest, slot, _, _ = event_id.rsplit(".", 3)
    system_identifier, timeline, database = rest.split(".", 2)
    return Lineage(system_identifier, int(timeline), (), database, slot)


def key_of(change: Change) -> dict[str, Any] | None:
    """The key as letters have it, of a change that was decoded with `to_json`."""
    return _parsed(change.key)


def without_misfits(
    frame: Frame, *, pipeline: str, sink: str, check: Callable[[Batch, Types], object] = decode_columns
) -> tuple[Frame, list[Letter]]:
    """The frame without the changes that have a value which is none of its type at all, and the letters of those.

    The decoders refuse a whole batch for such a value: call this when one did. `check` is the decoder that is used.
    """
    messages = _Messages(frame)
    misfits = messages.misfits(check)
    letters = [messages.letter(index, 0, reason, Addressee(pipeline, sink)) for index, reason in misfits.items()]
    keep = np.ones(len(frame.batch), np.bool_)
    keep[list(misfits)] = False
    return replace(frame, batch=messages.only(keep)), letters


class _Messages:
    """A frame's messages one by one."""

    def __init__(self, frame: Frame) -> None:
        self._frame, self._batch, self._index = frame, frame.batch, Index.of(frame.batch)
        ordinals = frame.batch.ordinals
        self._ordinals = self._index.ordinal if ordinals is None else ordinals

    def find(self, position: Position) -> tuple[int, int]:
        """The message of the change at a position, and which of its changes it is."""
        first, end = self._ordinals, self._ordinals + self._index.steps
        at = self._index.commit_lsn == position.commit_lsn
        (found,) = np.flatnonzero(at & (first <= position.ordinal) & (position.ordinal < end))
        return int(found), position.ordinal - int(first[found])

    def misfits(self, check: Callable[[Batch, Types], object]) -> dict[int, str]:
        """The messages that a decoder refuses, each with the reason, found by halving."""
        is_change = self._index.steps > 0
        check(self.only(~is_change), self._frame.types)
        found: dict[int, str] = {}
        left = [np.flatnonzero(is_change)]
        while left:
            part = left.pop()
            keep = ~is_change
            keep[part] = True
            try:
                check(self.only(keep), self._frame.types)
            except DecodeError as error:
                if len(part) == 1:
                    found[int(part[0])] = error.reason.partition(";")[0]
                else:
                    left += np.array_split(part, 2)
        return dict(sorted(found.items()))

    def letter(self, index: int, step: int, reason: str, to: Addressee) -> Letter:
        batch = self.one_change(index, step)
        # Keys are wanted also of a row that has a value which does not decode.
        (change,) = (c for c in decode_rows(batch, self._frame.types, leniently(to_json)) if isinstance(c, Change))
        relation = next(iter(batch.relations.values()))
        key, new_key = _parsed(change.key), None
        if change.op == "u_pk" and change.after is not None:
            new_key = _parsed({name: change.after[name] for name in change.key or {}})
        return Letter(
            pipeline=to.pipeline,
            sink=to.sink,
            event_id=self._frame.lineage.event_id(change.position),
            schema=change.schema,
            table=change.table,
            op=str(change.op),
            position=change.position,
            xid=change.xid,
            committed_at=change.committed_at,
            key=key,
            reason=reason,
            relation=relation,
            message=batch.data,
            new_key=new_key,
            own_types=_used_types(parse_relation(relation), self._frame.own_types),
        )

    def one_change(self, index: int, step: int = 0) -> Batch:
        """A batch of one change, without the id of a stream block."""
        message = bytes(self._batch.message(index))
        message = message[:1] + message[1 + self._batch.xid_bytes :]
        if message[:1] == b"T":
            # A truncate of several tables is several changes, and only one of them is meant.
            oid = message[6 + 4 * step : 10 + 4 * step]
            message = b"T" + (1).to_bytes(4) + message[5:6] + oid
        else:
            oid = message[1:5]
        data, bounds = lay_out([message])
        relation = self._relation(int.from_bytes(oid), index)
        return Batch(
            data,
            bounds,
            relations={int.from_bytes(oid): relation},
            changes=1,
            end=None,
            begin=self._begin(index),
            first_ordinal=int(self._ordinals[index]) + step,
        )

    def only(self, keep: npt.NDArray[np.bool_]) -> Batch:
        """Some of the messages, which keep their ordinals."""
        data, bounds = lay_out([self._batch.message(i) for i in np.flatnonzero(keep).tolist()])
        changes = int(self._index.steps[keep].sum())
        return replace(self._batch, data=data, bounds=bounds, changes=changes, ordinals=self._ordinals[keep])

    def _relation(self, oid: int, index: int) -> bytes:
        """The table as it was described last before a message."""
        batch = self._batch
        head = (batch.data, batch.bounds[: index + 1], self._index.tags[:index])
        return relations_in(*head, batch.xid_bytes).get(oid) or batch.relations[oid]

    def _begin(self, index: int) -> Begin:
        begins = np.flatnonzero(self._index.tags[:index] == ord("B"))
        begin = expect(Begin, self._batch.message(int(begins[-1]))) if len(begins) else self._batch.begin
        if begin is None:
            raise DecodeError("a change comes before the Begin of its transaction")
        return begin


def leniently(convert: Convert) -> Convert:
    """As `convert`, but what is no value of its type stays the server's text, as a JSON string."""

    def make(types: Types, oid: int) -> Callable[[str], object]:
        read = convert(types, oid)

        def attempt(text: str) -> object:
            try:
                return read(text)
            except DecodeError:
                return json.dumps(text, ensure_ascii=False)

        return attempt

    return make


def _parsed(row: Row | None) -> dict[str, Any] | None:
    """A row of JSON fragments as values, without what was not sent."""
    if row is None:
        return None
    return {name: None if v is None else json.loads(str(v)) for name, v in row.items() if v is not UNCHANGED}


def _json_or_text(text: str | None) -> Any:
    """What a transform has written, which may not be JSON."""
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return text


def _used_types(relation: Relation, known: Iterable[PgType]) -> tuple[PgType, ...]:
    """Those of the types that the columns of a relation are of, or that these are made of."""
    by_oid = {type_.oid: type_ for type_ in known}
    used: dict[int, PgType] = {}
    wanted = [column.type_oid for column in relation.columns]
    while wanted:
        oid = wanted.pop()
        if oid in by_oid and oid not in used:
            used[oid] = type_ = by_oid[oid]
            wanted += [type_.element, type_.base, *(field.oid for field in type_.fields)]
    return tuple(used[oid] for oid in sorted(used))
