"""Creek's messages to frames, in tasks: decoded by the schemas that they name, under the names of their targets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import assert_never
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.creek.consumer.mapping import TableMapping, Target
from headwater.creek.decode.shape import Schema
from headwater.model import Lineage
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.messages import Relation
from headwater.postgres.replication.protocol import POSTGRES_EPOCH
from headwater.spark.frame import Frame
from headwater.spark.sources.creek import rows
from headwater.spark.sources.creek.messages import Ints, Messages
from headwater.spark.sources.creek.offset import Mark
from headwater.spark.sources.creek.reading import ChangeKind, MessageReader, Part, Unreadable
from headwater.spark.sources.creek.relation import relation_message, relation_of

_MICROSECOND = timedelta(microseconds=1)
# 2000-01-01, PostgreSQL's epoch, in microseconds of Unix time.
_EPOCH_MICROS = (POSTGRES_EPOCH - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND


@dataclass(frozen=True, slots=True)
class CreekFrame(Frame):
    """Changes of one table behind one sequence of the stream and up to another.

    The position of a change is its place in the stream; `lsns` has the commit position at the source, of each change. With a
    `failure` the table cannot go on, for this reason.
    """

    table: TableMapping = field(kw_only=True)
    generation: int = field(kw_only=True)
    start: Mark = field(kw_only=True)
    end: Mark = field(kw_only=True)
    lsns: Ints = field(kw_only=True)
    unreadable: tuple[Unreadable, ...] = field(default=(), kw_only=True)
    failure: str | None = field(default=None, kw_only=True)

    def lsns_of(self, messages: Ints) -> Ints:
        """The commit positions of changes, by the numbers of their messages: each has a Begin of its own in front of it."""
        return self.lsns[messages // 2]


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one table, with the schemas that they name, or why there are none, and where they stand."""

    table: TableMapping
    generation: int
    start: Mark
    end: Mark
    messages: Messages
    schemas: Mapping[bytes, str]
    failure: str | None = None


def frames_of(run: Run, lane: int, lineage: Lineage) -> Iterator[CreekFrame]:
    """The messages as frames, apart where the table is described anew; the last one has what cannot be read."""
    parts, bad = _decoded(run) if run.failure is None else ([], [])
    for relation, mine in _by_relation(parts):
        batch, lsns = _batch(relation, mine, run.messages)
        yield _frame(run, lane, lineage, batch, lsns)
    if bad or run.failure is not None:
        nothing = Batch(b"", np.zeros(1, np.int64), {}, 0, None)
        yield _frame(run, lane, lineage, nothing, np.zeros(0, np.int64), tuple(bad))


def _frame(  # noqa: PLR0913 - what a frame is made of
    run: Run, lane: int, lineage: Lineage, batch: Batch, lsns: Ints, unreadable: tuple[Unreadable, ...] = ()
) -> CreekFrame:
    return CreekFrame(
        lane,
        None,
        batch,
        (),
        lineage,
        table=run.table,
        generation=run.generation,
        start=run.start,
        end=run.end,
        lsns=lsns,
        unreadable=unreadable,
        failure=run.failure,
    )


def _decoded(run: Run) -> tuple[list[tuple[Relation, Part]], list[Unreadable]]:
    """The messages by schema and kind, in no order, and those that are none."""
    messages = run.messages
    fingerprints = messages.fingerprints
    parts: list[tuple[Relation, Part]] = []
    bad: list[Unreadable] = []
    for fingerprint in np.unique(fingerprints):
        numbers = np.flatnonzero(fingerprints == fingerprint)
        text = run.schemas.get(fingerprint.tobytes())
        if text is None:
            bad += [Unreadable(*messages.at(number), "it is no message of Creek's") for number in numbers.tolist()]
            continue
        relation, reader = _reader(text, run.table.target)
        mine, others = reader.read(messages, numbers)
        parts += [(relation, part) for part in mine]
        bad += others
    return parts, sorted(bad, key=lambda one: one.sequence)


# As many as a worker meets at a time: tables in some versions.
@lru_cache(maxsize=256)
def _reader(schema_text: str, target: Target) -> tuple[Relation, MessageReader]:
    schema = Schema(schema_text)
    return relation_of(schema, target), MessageReader(schema)


def _by_relation(parts: Sequence[tuple[Relation, Part]]) -> Iterator[tuple[Relation, list[Part]]]:
    """The parts of each way that the table looks, in the order of the stream: it may look one way, another, and back."""
    relations = list(dict.fromkeys(relation for relation, _ in parts))
    if len(relations) < 2:
        if relations:
            yield relations[0], [part for _, part in parts]
        return
    owners = np.concatenate([np.full(len(part.numbers), relations.index(relation)) for relation, part in parts])
    numbers = np.concatenate([part.numbers for _, part in parts])
    order = np.argsort(numbers)
    for edge in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1):
        first, last = int(numbers[edge[0]]), int(numbers[edge[-1]])
        relation = relations[int(owners[edge[0]])]
        mine = (part.between(first, last) for other, part in parts if other == relation)
        yield relation, [part for part in mine if len(part.numbers)]


def _batch(relation: Relation, parts: Sequence[Part], messages: Messages) -> tuple[Batch, Ints]:
    numbers = np.concatenate([part.numbers for part in parts])
    order = np.argsort(numbers)
    bodies = pa.concat_arrays([_bodies(relation, part, messages) for part in parts])
    at, xids, lsns = (np.concatenate(column) for column in zip(*(part.facts for part in parts), strict=True))
    if (np.diff(order) != 1).any():
        bodies = bodies.take(pa.array(order))
        at, xids, lsns, numbers = at[order], xids[order], lsns[order], numbers[order]
    begins = rows.begins(messages.sequences[numbers], np.maximum(at - _EPOCH_MICROS, 0), xids & 0xFFFFFFFF)
    sizes = np.full(2 * len(numbers), rows.BEGIN_BYTES, np.int64)
    sizes[1::2] = pc.binary_length(bodies).to_numpy(zero_copy_only=False)
    bounds = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    batch = Batch(
        _contents(pc.binary_join_element_wise(begins, bodies, pa.scalar(b"", pa.binary()))),
        bounds,
        relations={relation.oid: relation_message(relation)},
        changes=len(numbers),
        end=None,
        # A message is a transaction to whoever takes frames: its place in the stream tells it from all others.
        ordinals=np.zeros(len(sizes), np.int64),
    )
    return batch, lsns


def _contents(texts: pa.Array) -> bytes:
    """All values of an array end to end."""
    _, offsets, data = texts.buffers()
    first, last = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]].tolist()
    found: bytes = data[first:last].to_pybytes()
    return found


def _bodies(relation: Relation, part: Part, messages: Messages) -> pa.Array:
    """The messages of one kind, as the server writes such."""
    match part.kind:
        case ChangeKind.TRUNCATE:
            return pa.array([rows.truncate(relation)] * len(part.numbers), pa.binary())
        case ChangeKind.DELETE:
            return rows.deletes(relation, part.old)
        case ChangeKind.INSERT:
            return rows.inserts(relation, part.new)
        case ChangeKind.UPDATE:
            return rows.updates(relation, part.new, _unchanged(relation, part, messages))
        case ChangeKind.MOVE:
            return rows.moves(relation, part.old, part.new, _unchanged(relation, part, messages))
        case _:
            assert_never(part.kind)


def _unchanged(relation: Relation, part: Part, messages: Messages) -> dict[int, rows.Mask]:
    """By column, the changes that leave it alone without telling what it holds."""
    if not messages.unchanged:
        return {}
    columns = {column.name: number for number, column in enumerate(relation.columns)}
    masks: dict[int, rows.Mask] = {}
    for place, sequence in enumerate(messages.sequences[part.numbers].tolist()):
        for name in messages.unchanged.get(sequence, "").split(","):
            number = columns.get(unquote(name))
            if number is not None:
                masks.setdefault(number, np.zeros(len(part.numbers), np.bool_))[place] = True
    return masks
