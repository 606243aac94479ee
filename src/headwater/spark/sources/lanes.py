"""A range of changes split into lanes: what keeps its order, and may be worked on beside the others. Pure.

Which lane a change falls into depends on its bytes and the number of lanes alone, so a range that is read again, on another
machine or with other cores, is split the same way. By table, a lane has whole tables. By key, it has the rows of some keys;
a range with a truncate, a changed key or changed columns in it then stays in one lane, since those concern more than one.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from headwater.errors import DecodeError
from headwater.model import Lsn, SnapshotRead
from headwater.postgres.replication.batch import Batch, lay_out, relations_in, tags_of
from headwater.postgres.replication.cut import Index, big_endian
from headwater.postgres.replication.messages import Relation, Truncate
from headwater.postgres.replication.pgoutput import decode, parse_relation
from headwater.spark.rules import LaneRule

Ints = npt.NDArray[np.int64]

# Odd numbers with bits all over, to spread tables and bytes of keys. They can never change: logged ranges depend on them.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.uint64(0xFF51AFD7ED558CCD)
# `replica identity full`: the stream marks every column as key, and does not tell which row an update was.
_FULL = "f"
_NO_LANE = -1
# Where a Begin message has the id of its transaction.
_XID_AT = 17


@dataclass(frozen=True, slots=True)
class Laned:
    """What falls into one lane of one batch; `key_lane` as in `Frame`."""

    lane: int
    key_lane: tuple[int, int] | None
    batch: Batch


def split(batches: Sequence[Batch], lanes: int, rule: LaneRule, dropped: frozenset[int] = frozenset()) -> Iterator[Laned]:
    """The batches of one range by lane, without the tables of some oids; those of a lane come in their order.

    In key lanes, tables whose rows have no key come behind the others.
    """
    kept = (without(batch, dropped) for batch in batches)
    indexes = [Index.of(batch) for batch in kept if batch is not None and batch.changes]
    if rule is LaneRule.TABLE:
        for index in indexes:
            yield from _split_by_table(index, lanes)
    elif any(map(_has_barrier, indexes)) or _has_new_shape(indexes):
        for index in indexes:
            yield Laned(0, None, index.batch)
    else:
        # One after the other, so that the order within a lane does not depend on how the range came.
        for index in indexes:
            yield from _split_by_key(index, lanes)
        for index in indexes:
            yield from _split_keyless(index, lanes)


def lanes_of(batch: Batch, lanes: int) -> Ints:
    """The key lane of each row message; -1 for other messages and for tables that go as a whole."""
    index = Index.of(batch)
    found = np.full(len(index.tags), _NO_LANE, np.int64)
    for relation, messages in by_relation(index):
        if relation.identity != _FULL and any(column.key for column in relation.columns):
            found[messages] = _spread(_key_hash(index, relation, messages), lanes)
    return found


def inserts_of(batch: Batch, table: tuple[str, str]) -> Batch | None:
    """The batch with the rows that were inserted into one table, and no other change; None when there are none."""
    index = Index.of(batch)
    mine = [oid for oid, names in tables_in(batch).items() if table in names]
    rows, oids = _rows(index)
    everything = frozenset(_truncated_tables(index))
    return _kept(index, rows[np.isin(oids, mine) & (index.tags[rows] == ord("I"))], lambda _message: everything)


def split_by_column(batches: Sequence[Batch], lanes: int, column: str) -> Iterator[Laned]:
    """Batches of inserts into one table, by lane: rows that are the same in a column are in one lane, in their order."""
    for index in map(Index.of, batches):
        lane_of = np.full(len(index.tags), _NO_LANE, np.int64)
        for relation, messages in by_relation(index):
            keyed = replace(relation, columns=tuple(replace(one, key=one.name == column) for one in relation.columns))
            lane_of[messages] = _spread(_key_hash(index, keyed, messages), lanes)
        yield from _pick(index, lane_of, lanes, keyed=True)


def transactions_in(batch: Batch) -> list[tuple[Lsn, int]]:
    """The commit and the 32-bit id of each transaction that a batch has changes of."""
    index = Index.of(batch)
    begins = np.flatnonzero(index.tags == ord("B"))
    lead = 0 if batch.begin is None else batch.begin.xid
    xids = np.concatenate(([lead], big_endian(batch.data, batch.bounds[begins] + _XID_AT, 4)))
    changes = np.flatnonzero(index.steps)
    transactions, first = np.unique(np.cumsum(index.tags == ord("B"))[changes], return_index=True)
    commits = index.commit_lsn[changes[first]]
    return [(Lsn(lsn), xid) for lsn, xid in zip(commits.tolist(), xids[transactions].tolist(), strict=True)]


def self_contained(batch: Batch) -> Batch:
    """The batch with no more descriptions of tables than it needs, ready to travel."""
    index = Index.of(batch)
    oids = set(np.unique(_rows(index)[1]).tolist())
    for at in np.flatnonzero(index.tags == ord("T")).tolist():
        oids.update(_truncated(index, at))
    return replace(batch, relations={oid: message for oid, message in batch.relations.items() if oid in oids})


def by_relation(index: Index) -> Iterator[tuple[Relation, Ints]]:
    """The row messages of each table, parted where the table is described anew."""
    batch, (rows, oids) = index.batch, _rows(index)
    described = np.flatnonzero(index.tags == ord("R"))
    for oid in np.unique(oids).tolist():
        mine = rows[oids == oid]
        relation = batch.relations.get(oid)
        edges = [
            (int(at), b"R" + bytes(batch.message(int(at))[1 + batch.xid_bytes :]))
            for at in described
            if int.from_bytes(batch.message(int(at))[1 + batch.xid_bytes :][:4]) == oid
        ]
        parts = np.split(mine, np.searchsorted(mine, [at for at, _ in edges]))
        for message, part in zip([relation, *(message for _, message in edges)], parts, strict=True):
            if len(part):
                if message is None:
                    raise DecodeError(f"relation {oid} was never described")
                yield parse_relation(message), part


def tables_in(batch: Batch) -> dict[int, set[tuple[str, str]]]:
    """The tables that a batch describes, by oid, with the names that they have on the way."""
    sent = relations_in(batch.data, batch.bounds, tags_of(batch.data, batch.bounds), batch.xid_bytes)
    found: dict[int, set[tuple[str, str]]] = {}
    for message in (*batch.relations.values(), *sent.values()):
        oid, name = _named(message)
        found.setdefault(oid, set()).add(name)
    return found


def without(batch: Batch, oids: frozenset[int]) -> Batch | None:
    """The batch without some tables; None when nothing is left of it."""
    if not oids:
        return batch
    index = Index.of(batch)
    rows, of = _rows(index)
    return _kept(index, rows[~np.isin(of, list(oids))], lambda _message: oids)


def unseen(batch: Batch, oids: frozenset[int], read: SnapshotRead) -> Batch | None:
    """The batch without what transactions did to some tables that a snapshot of these holds already."""
    index = Index.of(batch)
    begins = np.flatnonzero(index.tags == ord("B"))
    lead = (0, 0) if batch.begin is None else (int(batch.begin.commit_lsn), batch.begin.xid)
    commits = [lead[0], *index.commit_lsn[begins].tolist()]
    xids = [lead[1], *big_endian(batch.data, batch.bounds[begins] + _XID_AT, 4).tolist()]
    seen = np.array([commit > 0 and read.holds(xid, Lsn(commit)) for commit, xid in zip(commits, xids, strict=True)])
    if not oids or not seen.any():
        return batch
    is_seen = seen[np.cumsum(index.tags == ord("B"))]
    rows, of = _rows(index)
    none: frozenset[int] = frozenset()
    return _kept(index, rows[~(is_seen[rows] & np.isin(of, list(oids)))], lambda at: oids if is_seen[at] else none)


def _kept(index: Index, rows: Ints, dropped: Callable[[int], frozenset[int]]) -> Batch | None:
    """The batch with some of its rows, and of a truncate what is not `dropped` there."""
    lane_of = np.full(len(index.tags), _NO_LANE, np.int64)
    lane_of[rows] = 0
    return next((laned.batch for laned in _pick(index, lane_of, 1, keyed=False, dropped=dropped)), None)


# A server describes a table again and again.
@lru_cache(maxsize=4096)
def _named(message: bytes) -> tuple[int, tuple[str, str]]:
    relation = parse_relation(message)
    return relation.oid, (relation.schema, relation.name)


def _drops_nothing(_message: int) -> frozenset[int]:
    return frozenset()


def _split_by_table(index: Index, lanes: int) -> Iterator[Laned]:
    yield from _pick(index, _table_lanes(index, lanes), lanes, keyed=False)


def _table_lanes(index: Index, lanes: int) -> Ints:
    """The lane of each row message by the name of its table; -1 for other messages."""
    found = np.full(len(index.tags), _NO_LANE, np.int64)
    for relation, messages in by_relation(index):
        found[messages] = _table_lane(relation, lanes)
    return found


def _table_lane(relation: Relation, lanes: int) -> int:
    """By the name, not the oid: a table that takes the place of another has to come after it."""
    return int(_spread(np.array([_table_hash(relation)]), lanes)[0])


def _table_hash(relation: Relation) -> np.uint64:
    name = f"{relation.schema}\0{relation.name}".encode()
    return np.uint64(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest()))


def _split_by_key(index: Index, lanes: int) -> Iterator[Laned]:
    yield from _pick(index, lanes_of(index.batch, lanes), lanes, keyed=True)


def _split_keyless(index: Index, lanes: int) -> Iterator[Laned]:
    """The tables whose rows have no key, each whole."""
    lane_of = _table_lanes(index, lanes)
    lane_of[lanes_of(index.batch, lanes) != _NO_LANE] = _NO_LANE
    yield from _pick(index, lane_of, lanes, keyed=False)


def _pick(
    index: Index, lane_of: Ints, lanes: int, *, keyed: bool, dropped: Callable[[int], frozenset[int]] = _drops_nothing
) -> Iterator[Laned]:
    """A batch for each lane that has something; `lane_of` is -1 for messages that are in none.

    `dropped` gives, for a truncate, the tables that it is to leave alone.
    """
    truncates = [] if keyed else [int(at) for at in np.flatnonzero(index.tags == ord("T"))]
    parted: dict[int, dict[int, list[tuple[int, bytes]]]] = {}
    for at in truncates:
        by_lane = _truncates_by_lane(index, at, lanes, dropped(at))
        if len(by_lane) == 1 and not dropped(at):
            (lane_of[at],) = by_lane
        else:
            parted[at] = by_lane
    used = set(np.unique(lane_of[lane_of != _NO_LANE]).tolist()).union(*parted.values())
    for lane in sorted(used):
        key_lane = (lane, lanes) if keyed else None
        is_whole = len(used) == 1 and not parted and index.batch.changes == int(index.steps[lane_of != _NO_LANE].sum())
        yield Laned(lane, key_lane, index.batch if is_whole else _filtered(index, lane_of == lane, lane, parted))


def _filtered(
    index: Index, mine: npt.NDArray[np.bool_], lane: int, truncates: dict[int, dict[int, list[tuple[int, bytes]]]]
) -> Batch:
    """The batch with only some of its row changes, their transactions, and what describes tables."""
    batch, tags = index.batch, index.tags
    mine = mine.copy()
    for at, by_lane in truncates.items():
        mine[at] = lane in by_lane
    # A transaction keeps its Begin and Commit when something of it stays.
    transaction = np.cumsum(tags == ord("B"))
    stays = np.isin(transaction, np.unique(transaction[mine]))
    kept = mine | ((tags == ord("R")) | (tags == ord("Y"))) | (((tags == ord("B")) | (tags == ord("C"))) & stays)
    messages: list[bytes | memoryview] = []
    ordinals: list[int] = []
    if not truncates:
        picked = np.flatnonzero(kept)
        data, bounds = _gather(batch, picked)
        return replace(
            batch, data=data, bounds=bounds, changes=int(index.steps[picked].sum()), ordinals=index.ordinal[picked]
        )
    for at in np.flatnonzero(kept).tolist():
        parts = truncates[at][lane] if at in truncates else [(int(index.ordinal[at]), batch.message(at))]
        for ordinal, message in parts:
            messages.append(message)
            ordinals.append(ordinal)
    data, bounds = lay_out(messages)
    mine[list(truncates)] = False
    parted = sum(len(by_lane[lane]) for by_lane in truncates.values() if lane in by_lane)
    changes = int(index.steps[mine].sum()) + parted
    return replace(batch, data=data, bounds=bounds, changes=changes, ordinals=np.array(ordinals, np.int64))


def _gather(batch: Batch, picked: Ints) -> tuple[bytes, Ints]:
    """The bytes of some messages end to end, and their bounds."""
    starts, sizes = batch.bounds[picked], batch.bounds[picked + 1] - batch.bounds[picked]
    bounds = np.zeros(len(picked) + 1, np.int64)
    np.cumsum(sizes, out=bounds[1:])
    raw = np.frombuffer(batch.data, np.uint8)
    return raw[_ragged(starts, sizes)].tobytes(), bounds


def _truncates_by_lane(index: Index, at: int, lanes: int, dropped: frozenset[int]) -> dict[int, list[tuple[int, bytes]]]:
    """A truncate as one of its own for each of its tables, with its ordinal, by lane."""
    message, xid = index.batch.message(at), index.batch.xid_bytes
    options = bytes(message[1 + xid + 4 : 1 + xid + 5])
    described = _described_before(index, at)
    found: dict[int, list[tuple[int, bytes]]] = {}
    for step, oid in enumerate(_truncated(index, at)):
        if oid in dropped:
            continue
        lane = _table_lane(parse_relation(described[oid]), lanes) if lanes > 1 else 0
        alone = bytes(message[: 1 + xid]) + (1).to_bytes(4) + options + oid.to_bytes(4)
        found.setdefault(lane, []).append((int(index.ordinal[at]) + step, alone))
    return found


def _truncated_tables(index: Index) -> set[int]:
    """All tables that a batch truncates."""
    return {oid for at in np.flatnonzero(index.tags == ord("T")).tolist() for oid in _truncated(index, at)}


def _described_before(index: Index, at: int) -> dict[int, bytes]:
    """The tables as they are known at a message."""
    batch = index.batch
    head = (batch.data[: batch.bounds[at]], batch.bounds[: at + 1], index.tags[:at])
    return {**batch.relations, **relations_in(*head, batch.xid_bytes)}


def _truncated(index: Index, at: int) -> Sequence[int]:
    """The tables of a truncate."""
    message = decode(index.batch.message(at), streamed=index.batch.streamed)
    if not isinstance(message, Truncate):
        raise DecodeError("a truncate was expected", message_type="T")
    return message.relation_oids


def _has_barrier(index: Index) -> bool:
    """Whether something in there concerns more than one key: a truncate, or an update that comes with an old key."""
    if (index.tags == ord("T")).any():
        return True
    updates = np.flatnonzero(index.tags == ord("U"))
    kinds = np.frombuffer(index.batch.data, np.uint8)[index.batch.bounds[updates] + 1 + index.batch.xid_bytes + 4]
    return bool((kinds == ord("K")).any())


def _has_new_shape(indexes: Sequence[Index]) -> bool:
    """Whether a table gets another key on the way, so that a row would be in two lanes, or other columns, which have to be
    there before rows have them. By the rows, for a reconnected server describes tables again that are as they were."""
    shapes: dict[str, tuple[object, ...]] = {}
    for index in indexes:
        for relation, _ in by_relation(index):
            shape = (relation.oid, relation.identity == _FULL, relation.columns)
            if shapes.setdefault(relation.table, shape) != shape:
                return True
    return False


def _rows(index: Index) -> tuple[Ints, Ints]:
    """The messages that are row changes, and the tables that they are of."""
    tags, batch = index.tags, index.batch
    rows = np.flatnonzero((tags == ord("I")) | (tags == ord("U")) | (tags == ord("D")))
    return rows, big_endian(batch.data, batch.bounds[rows] + 1 + batch.xid_bytes, 4)


def _key_hash(index: Index, relation: Relation, messages: Ints) -> npt.NDArray[np.uint64]:
    """A number for the key of each row message, from its text alone."""
    batch = index.batch
    raw = np.frombuffer(batch.data, np.uint8)
    # Behind the tag, the oid and the kind of row, which is the new one or the old key, and the number of columns.
    at = batch.bounds[messages] + 1 + batch.xid_bytes + 4 + 1 + 2
    found = np.full(len(messages), _table_hash(relation))
    last = max(number for number, column in enumerate(relation.columns) if column.key)
    for column in relation.columns[: last + 1]:
        sent = raw[at] == ord("t")
        size = np.where(sent, big_endian(batch.data, np.where(sent, at + 1, 0), 4), 0)
        if column.key:
            found = (found * _SPREAD) ^ _text_hash(raw, at + 5, size)
        at = at + np.where(sent, 5 + size, 1)
    return found


def _text_hash(raw: npt.NDArray[np.uint8], start: Ints, size: Ints) -> npt.NDArray[np.uint64]:
    """A polynomial in the bytes of each text, modulo 2**64."""
    total = int(size.sum())
    found = size.astype(np.uint64)
    if not total:
        return found
    powers = np.cumprod(np.full(int(size.max()), _STEP))
    filled = np.flatnonzero(size)
    starts, sizes = start[filled], size[filled]
    places = np.arange(total) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    terms = (raw[_ragged(starts, sizes)].astype(np.uint64) + np.uint64(1)) * powers[places]
    found[filled] += np.add.reduceat(terms, np.cumsum(sizes) - sizes)
    return found


def _ragged(starts: Ints, sizes: Ints) -> Ints:
    """The places of all bytes of runs that begin at `starts`."""
    places: Ints = np.arange(int(sizes.sum())) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
    return places


def _spread(numbers: npt.NDArray[np.uint64], lanes: int) -> Ints:
    """A lane for each number, by its well mixed upper bits."""
    mixed = (numbers ^ (numbers >> np.uint64(33))) * _SPREAD
    found: Ints = ((mixed >> np.uint64(33)) % np.uint64(lanes)).astype(np.int64)
    return found
