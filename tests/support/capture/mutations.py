"""Mutated messages of pgoutput and batches of them, and both decoders of a batch in one form.

The changes that `row_changes` and `column_changes` give can be compared. What is required of mutated input is a function
that raises where it does not hold: `make test` tries some inputs and `make soak` many.
"""

import json
from collections.abc import Callable, Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from headwater.errors import DecodeError
from headwater.model import UNCHANGED, Change
from headwater.postgres.replication.batch import Batch, lay_out
from headwater.postgres.replication.columnar import Group, decode_columns
from headwater.postgres.replication.pgoutput import decode, decode_subtransaction
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Types
from tests.data.record import load, recordings
from tests.support.capture import pgoutput_writer as write
from tests.support.capture.recordings import TYPES

NUMERIC_8_2: Final = ((8 << 16) | 2) + 4
REFUSED: Final = "refused"

Columns = list[tuple[str, int, int, bool]]
Row = dict[str, Any]

# Name, type oid, typmod, and texts as the server writes them.
_COLUMNS: dict[str, tuple[int, int, st.SearchStrategy[str]]] = {
    "id": (20, -1, st.integers(-(2**63), 2**63 - 1).map(str)),
    "small": (21, -1, st.integers(-(2**15), 2**15 - 1).map(str)),
    "flag": (16, -1, st.sampled_from(["t", "f"])),
    "name": (25, -1, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)),
    "amount": (1700, -1, st.decimals(-(10**30), 10**30, allow_nan=False, places=5).map(str)),
    "price": (1700, NUMERIC_8_2, st.integers(-99999999, 99999999).map(lambda n: f"{Decimal(n).scaleb(-2):f}")),
    "at": (1184, -1, st.datetimes().map(lambda d: d.isoformat(" ") + "+00") | st.sampled_from(["infinity", "-infinity"])),
    "day": (1082, -1, st.dates().map(date.isoformat)),
    "raw": (17, -1, st.binary(max_size=8).map(lambda b: "\\x" + b.hex())),
    "doc": (3802, -1, st.sampled_from(['{"a": 1}', "null", "[1, 2]"])),
    "ref": (2950, -1, st.uuids().map(str)),
    "list": (1007, -1, st.lists(st.integers(0, 99)).map(lambda v: "{" + ",".join(map(str, v)) + "}")),
    "ratio": (701, -1, st.sampled_from(["0", "-1.5", "NaN", "Infinity", "1e+300"])),
}


@st.composite
def mutated_messages(draw: st.DrawFn) -> bytes:
    """A recorded message with bytes replaced, cut off, put in or doubled."""
    data = bytearray(draw(st.sampled_from(_SHORT)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["replace", "cut", "insert", "drop"])):
            case "replace" if data:
                data[at] = draw(st.integers(0, 255))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=8))
            case _:
                del data[at : at + draw(st.integers(1, 8))]
    return bytes(data)


_RECORDED = [message for scenario, version in recordings() if version == 18 for message in load(scenario.name, version)]
_SHORT = sorted({message for message in _RECORDED if len(message) < 600}, key=lambda message: (message[0], message))


def require_decode_error(data: bytes, *, streamed: bool) -> None:
    """Decode a message in each way; raises what is not a DecodeError."""
    decoders: list[Callable[[], object]] = [
        lambda: decode(data, streamed=streamed),
        lambda: decode_subtransaction(data),
    ]
    for decoder in decoders:
        try:
            decoder()
        except DecodeError:
            continue


@st.composite
def _tables(draw: st.DrawFn) -> Columns:
    names = draw(st.lists(st.sampled_from(sorted(_COLUMNS)), min_size=1, max_size=6, unique=True))
    return [(name, _COLUMNS[name][0], _COLUMNS[name][1], index == 0) for index, name in enumerate(names)]


def _values(draw: st.DrawFn, table: Columns, *, unchanged: bool = False, only_key: bool = False) -> list[Any]:
    def value(name: str, key: bool) -> Any:
        if only_key and not key:
            return None
        choices: st.SearchStrategy[Any] = _COLUMNS[name][2] if key else st.one_of(_COLUMNS[name][2], st.none())
        return draw(st.one_of(choices, st.just(UNCHANGED)) if unchanged else choices)

    return [value(name, key) for name, _, _, key in table]


@st.composite
def _changes(draw: st.DrawFn, oid: int, table: Columns) -> bytes:
    """One change of any kind to a table."""
    kind = draw(st.sampled_from(["insert", "update", "key", "full", "delete"]))
    if kind == "insert":
        return write.insert(oid, _values(draw, table))
    if kind == "delete":
        return write.delete(oid, _values(draw, table, only_key=True))
    new = _values(draw, table, unchanged=True)
    if kind == "update":
        return write.update(oid, new)
    return write.update(oid, new, _values(draw, table, only_key=kind == "key"), "K" if kind == "key" else "O")


@st.composite
def typed_streams(draw: st.DrawFn) -> list[bytes]:
    """Transactions of mixed changes to a few tables of all types, some of which change their shape on the way."""
    shapes = draw(st.lists(_tables(), min_size=1, max_size=3))
    messages = []
    for lsn in range(100, 100 * draw(st.integers(2, 5)), 100):
        messages.append(write.begin(lsn, micros=lsn * 1000, xid=lsn + 7))
        if lsn == 100:
            messages += [write.relation(oid, f"t{oid}", table) for oid, table in enumerate(shapes)]
        for _ in range(draw(st.integers(0, 8))):
            oid = draw(st.integers(0, len(shapes) - 1))
            match draw(st.sampled_from(["change"] * 5 + ["truncate", "reshape", "message"])):
                case "change":
                    messages.append(draw(_changes(oid, shapes[oid])))
                case "truncate":
                    messages.append(write.truncate(*range(len(shapes))))
                case "reshape":
                    shapes[oid] = draw(_tables())
                    messages.append(write.relation(oid, f"t{oid}", shapes[oid]))
                case _:
                    messages.append(write.message(lsn, "app", b"content"))
        messages.append(write.commit(lsn, lsn + 5))
    return messages


@st.composite
def mutated_batches(draw: st.DrawFn) -> Batch:
    """A batch in one message of which some bytes are others."""
    stream = draw(typed_streams())
    index = draw(st.integers(0, len(stream) - 1))
    broken = bytearray(stream[index])
    at = draw(st.integers(0, len(broken) - 1))
    broken[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    stream[index] = bytes(broken)
    return Batch(*lay_out(stream), {}, 0, None)


def require_same_outcome(batch: Batch) -> None:
    """Both decoders give the same changes, or both refuse.

    Every type is text here: what is no value of its type is a matter of the types, which check less in Arrow.
    """
    assert outcome(column_changes, batch, Types()) == outcome(row_changes, batch, Types())


def require_values_or_decode_error(batch: Batch) -> None:
    """The columnar decoder gives as many changes of each table as the row-wise one, or raises DecodeError."""
    rows = outcome(row_changes, batch, TYPES)
    try:
        groups = decode_columns(batch, TYPES)
    except DecodeError:
        return
    if isinstance(rows, list):
        tables = sorted(group.relation.name for group in groups for _ in range(len(group)))
        assert tables == sorted(row["table"] for row in rows)


def outcome(decoder: Callable[[Batch, Types], list[Row]], batch: Batch, types: Types) -> list[Row] | str:
    """The changes, without their order, for a mutated Begin may put its transaction anywhere; or that it was refused."""
    try:
        return sorted(decoder(batch, types), key=lambda row: (row["position"], row["xid"], row["op"], repr(row["after"])))
    except DecodeError:
        return REFUSED


def row_changes(batch: Batch, types: Types = TYPES) -> list[Row]:
    changes = (change for change in decode_rows(batch, types) if isinstance(change, Change))
    return [
        {
            "position": change.position,
            "xid": change.xid,
            "committed_at": np.datetime64(change.committed_at.replace(tzinfo=None), "us"),
            "op": change.op,
            "table": change.table,
            "before": None if change.before is None else {k: _normal(v) for k, v in change.before.items()},
            "after": None if change.after is None else {k: _normal(v) for k, v in change.after.items()},
            "unchanged": change.unchanged,
        }
        for change in changes
    ]


def column_changes(batch: Batch, types: Types = TYPES) -> list[Row]:
    rows = [row for group in decode_columns(batch, types) for row in _rows_of(group)]
    return sorted(rows, key=lambda row: row["position"])


def _rows_of(group: Group) -> Iterator[Row]:
    places = group.places
    for index in range(len(group)):
        unchanged = tuple(
            c.name for c in group.relation.columns if c.name in group.unchanged and group.unchanged[c.name][index]
        )
        after = _record(group.after, index)
        yield {
            "position": (places.commit_lsn[index], places.ordinal[index]),
            "xid": places.xid[index],
            "committed_at": np.datetime64(int(places.committed_at[index]), "us"),
            "op": "u_pk" if group.key_changed[index] else {"I": "c", "U": "u", "D": "d", "T": "t"}[group.tag],
            "table": group.relation.name,
            "before": _record(group.before, index),
            "after": after and {k: "UNCHANGED" if k in unchanged else v for k, v in after.items()},
            "unchanged": unchanged,
        }


def _record(records: pa.RecordBatch | None, index: int) -> Row | None:
    if records is None:
        return None
    return {name: _arrow_value(records.column(name), index) for name in records.schema.names}


def _arrow_value(array: "pa.Array[Any]", index: int) -> object:
    if (pa.types.is_timestamp(array.type) or pa.types.is_date32(array.type)) and array[index].is_valid:
        number = array.cast(pa.int64() if pa.types.is_timestamp(array.type) else pa.int32())[index].as_py()
        if number in (2**63 - 1, -(2**63)):
            return "infinity" if number > 0 else "-infinity"
    return _normal(array[index].as_py())


def _normal(value: object) -> object:
    """A value in the form that both ways of decoding share, by the stated rules of the types."""
    match value:
        case float():
            return repr(value)
        case UUID():
            return str(value)
        case list():
            return json.dumps(value, separators=(",", ":"))
        case Decimal():
            return f"{value:f}"
        case datetime():
            return value.replace(tzinfo=None)
        case _ if value is UNCHANGED:
            return "UNCHANGED"
        case _:
            return value
