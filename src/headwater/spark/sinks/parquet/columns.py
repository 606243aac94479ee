"""Changes as tables of columns that Parquet's readers understand, and where each table belongs. Pure.

A row has its table's columns, of a deleted row those that the server sent, and behind them `_op`, `_commit_lsn`, `_ordinal`,
`_xid`, `_committed_at`, `_unchanged` (the columns that an update left alone and the server did not send; they are NULL) and
`_old_key` (JSON, where an update changed the key). A column of the table's that bears one of these names, or that of the
folders, `date`, gets an underscore behind it. Times of day are text, for Spark reads no TIME; an infinite date or timestamp
is the largest or smallest that there is.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import DecodeError
from headwater.model import Change, Lsn, Op, Position
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.columnar import Group, Places, RejectedValue, decode_columns
from headwater.postgres.replication.messages import Relation
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Types, to_json
from headwater.spark.columns import spark_type, to_spark
from headwater.spark.frame import Chunk, Frame
from headwater.spark.letters import Letter, as_read, frame_of_rows, letters_at, letters_of_rows, without_misfits
from headwater.spark.sinks.lines import json_object, unplaced

Table: TypeAlias = tuple[str, str]

PLACE: Final = "date"
# A group of rows that came with their whole table; no message of the protocol's has this tag and rows.
_READ: Final = "R"
_OPS: Final = {"I": Op.INSERT, "U": Op.UPDATE, "D": Op.DELETE, "T": Op.TRUNCATE, _READ: Op.READ}
_OURS: Final = pa.schema(
    [
        ("_op", pa.string()),
        ("_commit_lsn", pa.int64()),
        ("_ordinal", pa.int32()),
        ("_xid", pa.int64()),
        ("_committed_at", pa.timestamp("us", tz="UTC")),
        ("_unchanged", pa.list_(pa.string())),
        ("_old_key", pa.string()),
    ]
)
_RESERVED: Final = frozenset((*_OURS.names, PLACE))
ENVELOPE_COLUMNS: Final = pa.schema(
    [
        ("commit_lsn", pa.int64()),
        ("ordinal", pa.int32()),
        ("xid", pa.int64()),
        ("committed_at", pa.timestamp("us", tz="UTC")),
        *((name, pa.string()) for name in ("op", "schema", "table", "key", "before", "after")),
        ("unchanged", pa.list_(pa.string())),
    ]
)
# The folder of changes that came through a transform, whatever their table.
ENVELOPES: Final = "changes"
# What may stand in the name of a folder: nothing that separates, hides or means something to readers of partitions.
_UNSAFE = re.compile(r"[^\w$ -]|\A_")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = 86_400_000_000
_TEXT_WIDTH: Final = 60


@dataclass(frozen=True, slots=True)
class Part:
    """Rows for one file: the folder under the sink's directory, and the rows in commit order."""

    folder: str
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class Sorted:
    """What a frame holds: rows to be written, rows that were before, and rows that cannot be."""

    parts: tuple[Part, ...]
    skipped: int
    letters: tuple[Letter, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is written: all changes before `low`, but of the tables in `behind` only those before a position of their own."""

    low: Position
    behind: Mapping[Table, Position] = field(default_factory=dict)

    def of(self, schema: str, table: str) -> Position:
        return self.behind.get((schema, table), self.low)


def sort_frame(frame: Frame, written: Bounds, *, pipeline: str, sink: str) -> Sorted:
    """The rows of a frame that are not written, by folder; a DecodeError means that some value is none of its type."""
    rows: dict[str, list[pa.Table]] = {}
    reasons: dict[Position, str] = {}
    skipped = 0
    groups = decode(frame.batch, frame.types)
    old_keys = _old_keys(groups, frame)
    for group in groups:
        low = written.of(group.relation.schema, group.relation.name)
        new = _not_before(low, group.places.commit_lsn, group.places.ordinal)
        skipped += int((~new).sum())
        refused = {row: reason for row, reason in _refused(group, frame.types) if new[row]}
        reasons |= {_position(group.places, row): reason for row, reason in refused.items()}
        new[list(refused)] = False
        if new.any():
            table = _table(group, frame.types, old_keys).filter(pa.array(new))
            rows.setdefault(_folder(group.relation), []).append(table)
    letters = letters_at(frame, reasons, pipeline=pipeline, sink=sink) if reasons else []
    return Sorted(tuple(_parts(rows)), skipped, tuple(letters))


def sort_chunk(chunk: Chunk, *, pipeline: str, sink: str) -> Sorted:
    """The rows of a table that is read as a whole."""
    whose = {"pipeline": pipeline, "sink": sink}
    try:
        group = _read_group(chunk, np.arange(chunk.rows.num_rows))
        letters: list[Letter] = []
    except DecodeError:
        _, found = without_misfits(frame_of_rows(chunk), **whose, check=decode)
        letters = [as_read(letter, chunk) for letter in found]
        misfits = [letter.position.ordinal - chunk.first_row for letter in letters]
        group = _read_group(chunk, np.setdiff1d(np.arange(chunk.rows.num_rows), misfits))
    reasons = dict(_refused(group, chunk.types))
    numbers = group.places.ordinal - chunk.first_row
    letters += letters_of_rows(chunk, {int(numbers[row]): reason for row, reason in reasons.items()}, **whose)
    fits = np.ones(len(group), np.bool_)
    fits[list(reasons)] = False
    table = _table(group, chunk.types, {}).filter(pa.array(fits))
    return Sorted(tuple(_parts({_folder(chunk.relation): [table]} if len(table) else {})), 0, tuple(letters))


def sort_envelopes(rows: Iterable[Sequence[Any]], written: Bounds) -> Sorted:
    """Rows of the DataFrame `changes` that are not written, with `committed_at` as microseconds."""
    columns = list(zip(*rows, strict=True)) or [()] * len(ENVELOPE_COLUMNS)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, ENVELOPE_COLUMNS, strict=True)]
    table = pa.Table.from_arrays(arrays, schema=ENVELOPE_COLUMNS)
    for name in ("commit_lsn", "ordinal", "committed_at"):
        if table[name].null_count:
            raise unplaced(name)
    lsn, ordinal = table["commit_lsn"].to_numpy(), table["ordinal"].to_numpy()
    new = _not_before(written.low, lsn, ordinal)
    for (schema, name), low in written.behind.items():
        own = pc.and_(pc.equal(table["schema"], schema), pc.equal(table["table"], name))
        new = np.where(pc.fill_null(own, False).to_numpy(), _not_before(low, lsn, ordinal), new)
    kept = table.filter(pa.array(new))
    parts = _parts({ENVELOPES: [kept]} if len(kept) else {}, prefix="")
    return Sorted(tuple(parts), int((~new).sum()), ())


def folder_name(name: str) -> str:
    """A name as a part of a folder's name, so that no two tables share one and none is hidden."""
    return _UNSAFE.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), name)


def column_name(name: str) -> str:
    """The name that a column of a table has in the files."""
    # Spark takes no notice of case, so neither may we.
    return f"{name}_" if name.lower().rstrip("_") in _RESERVED else name


def _read_group(chunk: Chunk, rows: npt.NDArray[np.int64]) -> Group:
    """Some rows of a chunk as a group, in the types of files."""
    count, arrays, rejected = len(rows), [], []
    for column, texts in zip(chunk.relation.columns, chunk.rows.columns, strict=True):
        texts = texts.take(pa.array(rows))
        array, bad = to_spark(texts, chunk.types, column.type_oid, column.typmod)
        arrays.append(array)
        rejected += [RejectedValue(row, column.name, texts[row].as_py(), is_old=False) for row in bad]
    moment = (chunk.read_at - _EPOCH) // timedelta(microseconds=1)
    places = Places(np.full(count, chunk.until), rows + chunk.first_row, np.zeros(count, np.int64), np.full(count, moment))
    after = pa.RecordBatch.from_arrays(arrays, names=[column.name for column in chunk.relation.columns])
    return Group(chunk.relation, _READ, None, places, None, after, {}, np.zeros(count, np.bool_), rejected, rows)


def decode(batch: Batch, types: Types) -> list[Group]:
    """The groups of a batch, in the types of files."""
    return decode_columns(batch, types, to_spark)


def _folder(relation: Relation) -> str:
    return f"{folder_name(relation.schema)}.{folder_name(relation.name)}"


def _table(group: Group, types: Types, old_keys: Mapping[Position, str]) -> pa.Table:
    """The group's rows with all columns of their table."""
    source = group.before if group.tag == "D" else group.after
    names, arrays = [], []
    for column in group.relation.columns:
        if source is not None and column.name in source.schema.names:
            array = source[column.name]
        else:
            array = pa.nulls(len(group), spark_type(types, column.type_oid, column.typmod))
        names.append(column_name(column.name))
        arrays.append(array)
    places = group.places
    op = np.full(len(group), str(_OPS[group.tag]), object)
    op[group.key_changed] = str(Op.UPDATE_KEY)
    keys = [old_keys.get(_position(places, row)) if moved else None for row, moved in enumerate(group.key_changed)]
    ours = [
        pa.array(op, pa.string()),
        pa.array(places.commit_lsn),
        pa.array(places.ordinal.astype(np.int32)),
        # A row that came with its whole table is of no transaction.
        pa.nulls(len(group), pa.int64()) if group.tag == _READ else pa.array(places.xid),
        pa.array(places.committed_at).cast(pa.timestamp("us", tz="UTC")),
        _unchanged(group),
        pa.array(keys, pa.string()),
    ]
    return pa.Table.from_arrays([*arrays, *ours], names=[*names, *_OURS.names])


def _unchanged(group: Group) -> pa.Array:
    """The names of the columns that are not there, for each row."""
    names, masks = list(group.unchanged), list(group.unchanged.values())
    if not names:
        return pa.array([[]] * len(group), pa.list_(pa.string()))
    marked = np.array(masks).T
    offsets = np.concatenate(([0], np.cumsum(marked.sum(axis=1)))).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.array(names, object)[np.nonzero(marked)[1]], pa.string()))


def _old_keys(groups: Sequence[Group], frame: Frame) -> Mapping[Position, str]:
    """The keys that updates have changed, as JSON. They are rare, so the row decoder may write them."""
    if not any(group.key_changed.any() for group in groups):
        return {}
    return {
        change.position: json_object(change.key or {})
        for change in decode_rows(frame.batch, frame.types, to_json)
        if isinstance(change, Change) and change.op is Op.UPDATE_KEY
    }


def _refused(group: Group, types: Types) -> Iterator[tuple[int, str]]:
    """The rows with a value that the column cannot hold, and why; of an update's old row nothing is written."""
    for value in group.rejected:
        if value.is_old == (group.tag == "D"):
            text = value.text if len(value.text) <= _TEXT_WIDTH else f"{value.text[: _TEXT_WIDTH - 1]}…"
            kind = _kind(group.relation, value.column, types)
            yield value.row, f"column {value.column!r} holds {text}, which {kind} in Parquet cannot"


def _kind(relation: Relation, name: str, types: Types) -> pa.DataType:
    column = next(column for column in relation.columns if column.name == name)
    return spark_type(types, column.type_oid, column.typmod)


def _parts(rows: Mapping[str, Sequence[pa.Table]], prefix: str = "_") -> Iterator[Part]:
    """The rows by folder and day, those of one shape together and in commit order."""
    place = [(f"{prefix}commit_lsn", "ascending"), (f"{prefix}ordinal", "ascending")]
    for folder, tables in rows.items():
        for same in _by_schema(tables):
            table = pa.concat_tables(same).sort_by(place)
            days = table[f"{prefix}committed_at"].cast(pa.int64()).to_numpy() // _DAY
            for day in np.unique(days).tolist():
                yield Part(f"{folder}/{PLACE}={_EPOCH + timedelta(days=day):%Y-%m-%d}", table.filter(pa.array(days == day)))


def _by_schema(tables: Sequence[pa.Table]) -> Iterator[list[pa.Table]]:
    """A table that was altered has rows of several shapes."""
    for schema in dict.fromkeys(table.schema for table in tables):
        yield [table for table in tables if table.schema == schema]


def _not_before(low: Position, commit_lsn: npt.NDArray[np.int64], ordinal: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    later: npt.NDArray[np.bool_] = (commit_lsn > low.commit_lsn) | (
        (commit_lsn == low.commit_lsn) & (ordinal >= low.ordinal)
    )
    return later


def _position(places: Places, row: int) -> Position:
    return Position(Lsn(int(places.commit_lsn[row])), int(places.ordinal[row]))
