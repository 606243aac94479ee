"""Changes as JSON in Debezium's envelope, by columns. Pure.

`key` stands beside `before` and `after`, since there is no other place for it here. A column that the server did not send is
missing from `after`, and named by the header of unchanged columns. A changed key is an update with the old one in `before`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater import __version__
from headwater.model import Op
from headwater.postgres.replication.columnar import Ints

_MICROS: Final = 1000
# Debezium knows no operation for it.
_DEBEZIUM_OPS: Final = {str(Op.UPDATE_KEY): str(Op.UPDATE)}


@dataclass(frozen=True, slots=True)
class JsonMessages:
    """Messages of one table in the order of the stream; `rows` are the places of their changes in what was given."""

    schema: str
    table: str
    rows: Ints
    commit_lsn: Ints
    ordinal: Ints
    committed_at: Ints
    ops: pa.StringArray
    payloads: pa.Array
    unchanged: pa.StringArray | None
    keys: pa.StringArray

    def __len__(self) -> int:
        return len(self.payloads)


def to_json_messages(changes: pa.RecordBatch, *, database: str, name: str, sent_at: int) -> Iterator[JsonMessages]:
    """The rows of a DataFrame `changes`, by table. `sent_at` is in microseconds of Unix time; `name` is the source's."""
    for schema, table, rows in _by_table(changes):
        part = changes if len(rows) == changes.num_rows else changes.take(pa.array(rows))
        yield JsonMessages(
            schema,
            table,
            rows,
            part["commit_lsn"].to_numpy(),
            part["ordinal"].to_numpy().astype(np.int64),
            part["committed_at"].cast(pa.int64()).to_numpy(),
            part["op"],
            _payloads(part, {"db": database, "schema": schema, "table": table}, name, sent_at),
            _unchanged(part["unchanged"]),
            part["key"],
        )


def _by_table(changes: pa.RecordBatch) -> Iterator[tuple[str, str, Ints]]:
    """The tables, each with the places of its changes in order."""
    # No name has a zero byte in it.
    names = pc.binary_join_element_wise(changes["schema"], changes["table"], "\0").dictionary_encode()
    which = names.indices.to_numpy()
    for code, name in enumerate(names.dictionary.to_pylist()):
        schema, _, table = name.partition("\0")
        yield schema, table, np.flatnonzero(which == code)


def _payloads(part: pa.RecordBatch, place: dict[str, str], name: str, sent_at: int) -> pa.Array:
    committed = part["committed_at"].cast(pa.int64())
    ops = part["op"]
    for ours, theirs in _DEBEZIUM_OPS.items():
        ops = pc.if_else(pc.equal(ops, ours), theirs, ops)
    head = {"version": __version__, "connector": "postgresql", "name": name}
    is_read = pc.if_else(pc.equal(part["op"], str(Op.READ)), "true", "false")
    pieces: list[object] = [
        *('{"before":', part["before"], ',"after":', part["after"], ',"key":', part["key"]),
        *(f',"source":{json.dumps(head)[:-1]}, "ts_ms":', _text(pc.divide(committed, _MICROS))),
        *(',"ts_us":', _text(committed), ',"snapshot":"', is_read, f'",{json.dumps(place, ensure_ascii=False)[1:-1]}'),
        *(',"txId":', _text(part["xid"]), ',"lsn":', _text(part["commit_lsn"]), ',"ordinal":', _text(part["ordinal"])),
        *('},"op":"', ops, f'","ts_ms":{sent_at // _MICROS},"ts_us":{sent_at}}}'),
    ]
    joined = pc.binary_join_element_wise(*pieces, "", null_handling="replace", null_replacement="null")
    return joined.cast(pa.binary())


def _text(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string())


def _unchanged(names: pa.Array) -> pa.StringArray | None:
    """The value of the header for each row that has such columns."""
    if not pc.any(pc.greater(pc.list_value_length(names), 0)).as_py():
        return None
    listed = [",".join(quote(name, safe="") for name in each) if each else None for each in names.to_pylist()]
    return pa.array(listed, pa.string())
