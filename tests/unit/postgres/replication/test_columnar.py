"""The columnar decoder gives what the row-wise one gives, and fails as it does."""

import json
import os
from datetime import date, datetime
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.errors import DecodeError
from headwater.model import UNCHANGED, Change
from headwater.postgres.replication.batch import Batch, lay_out
from headwater.postgres.replication.columnar import Group, decode_columns
from headwater.postgres.replication.rows import decode_rows
from tests import pgoutput_writer as write
from tests.data.record import load, recordings
from tests.recorded import TYPES, batches

LONG = bool(os.environ.get("HEADWATER_LONG"))
NUMERIC_8_2 = ((8 << 16) | 2) + 4
# Name, type oid, typmod, and texts as the server writes them.
COLUMNS = {
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
def tables(draw) -> list[tuple[str, int, int, bool]]:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=6, unique=True))
    return [(name, COLUMNS[name][0], COLUMNS[name][1], index == 0) for index, name in enumerate(names)]


def _values(draw, table, *, unchanged=False, only_key=False):
    def value(name, key):
        if only_key and not key:
            return None
        choices = COLUMNS[name][2] if key else st.one_of(COLUMNS[name][2], st.none())
        return draw(st.one_of(choices, st.just(UNCHANGED)) if unchanged and not key else choices)

    return [value(name, key) for name, _, _, key in table]


@st.composite
def changes(draw, oid: int, table: list[tuple[str, int, int, bool]]) -> bytes:
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
def streams(draw) -> list[bytes]:
    """Transactions of mixed changes to a few tables, some of which change their shape on the way."""
    shapes = draw(st.lists(tables(), min_size=1, max_size=3))
    messages = []
    for lsn in range(100, 100 * draw(st.integers(2, 5)), 100):
        messages.append(write.begin(lsn, micros=lsn * 1000, xid=lsn + 7))
        if lsn == 100:
            messages += [write.relation(oid, f"t{oid}", table) for oid, table in enumerate(shapes)]
        for _ in range(draw(st.integers(0, 8))):
            oid = draw(st.integers(0, len(shapes) - 1))
            match draw(st.sampled_from(["change"] * 5 + ["truncate", "reshape", "message"])):
                case "change":
                    messages.append(draw(changes(oid, shapes[oid])))
                case "truncate":
                    messages.append(write.truncate(*range(len(shapes))))
                case "reshape":
                    shapes[oid] = draw(tables())
                    messages.append(write.relation(oid, f"t{oid}", shapes[oid]))
                case _:
                    messages.append(write.message(lsn, "app", b"content"))
        messages.append(write.commit(lsn, lsn + 5))
    return messages


def _by_rows(batch: Batch) -> list[dict[str, object]]:
    changes = (change for change in decode_rows(batch, TYPES) if isinstance(change, Change))
    return [
        {
            "position": change.position,
            "xid": change.xid,
            "committed_at": change.committed_at,
            "op": {"c": "I", "u": "U", "u_pk": "U", "d": "D", "t": "T"}[change.op],
            "table": change.table,
            "before": None if change.before is None else {k: _normal(v) for k, v in change.before.items()},
            "after": None if change.after is None else {k: _normal(v) for k, v in change.after.items()},
            "unchanged": change.unchanged,
        }
        for change in changes
    ]


def _by_columns(batch: Batch) -> list[dict[str, object]]:
    rows = [row for group in decode_columns(batch, TYPES) for row in _group_rows(group)]
    return sorted(rows, key=lambda row: row["position"])


def _group_rows(group: Group):
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
            "op": group.tag,
            "table": group.relation.name,
            "before": _record(group.before, index),
            "after": after and {k: "UNCHANGED" if k in unchanged else v for k, v in after.items()},
            "unchanged": unchanged,
        }


def _record(records: pa.RecordBatch | None, index: int):
    if records is None:
        return None
    return {name: _arrow_value(records.column(name), index) for name in records.schema.names}


def _arrow_value(array: pa.Array, index: int) -> object:
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


def _assert_same(batch):
    rows, columns = _by_rows(batch), _by_columns(batch)
    for row in rows:
        row["committed_at"] = np.datetime64(row["committed_at"].replace(tzinfo=None), "us")
    assert columns == rows


@settings(max_examples=2_000 if LONG else 150, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.timeout(900 if LONG else 60)
@given(streams(), st.sampled_from([100, 1_000, 1 << 20]))
def test_columns_hold_the_same_values_as_rows(stream, batch_bytes):
    for batch in batches(stream, batch_bytes):
        _assert_same(batch)


@pytest.mark.parametrize(
    ("scenario", "version"), [(s.name, v) for s, v in recordings() if s.name not in ("prepared", "schema")]
)
def test_columns_hold_the_same_values_as_rows_for_every_recording(scenario, version):
    for batch in batches(load(scenario, version)):
        _assert_same(batch)


def test_a_table_that_changed_its_shape_gives_a_group_for_each_shape():
    groups = [group for batch in batches(load("schema", 18)) for group in decode_columns(batch, TYPES)]
    shapes = [group.after.schema.names for group in groups if group.relation.name == "t" and group.tag == "I"]
    assert shapes == [["id", "a"], ["id", "a", "b"], ["id", "c", "b"], ["id", "c"], ["id", "c"], ["other"]]


def test_a_value_that_arrow_cannot_hold_is_reported_with_row_column_and_text():
    table = [("id", 20, -1, True), ("price", 1700, NUMERIC_8_2, False)]
    stream = [write.begin(1), write.relation(1, "t", table), write.insert(1, ["1", "1.50"]), write.insert(1, ["2", "NaN"])]
    (batch,) = batches([*stream, write.commit(1, 2)])
    (group,) = decode_columns(batch, TYPES)
    (rejected,) = group.rejected
    assert (rejected.row, rejected.column, rejected.text) == (1, "price", "NaN")
    assert group.after.column("price").to_pylist() == [Decimal("1.50"), None]


def test_text_that_is_not_utf8_is_escaped_alike_by_rows_and_columns():
    broken = write.insert(1, ["aé!"]).replace("é".encode(), b"\xe9\xff")
    stream = [
        write.begin(1),
        write.relation(1, "t", [("n", 25, -1, True)]),
        broken,
        write.insert(1, ["fine ü"]),
        write.commit(1, 2),
    ]
    (batch,) = batches(stream)
    (group,) = decode_columns(batch, TYPES)
    assert group.after.column("n").to_pylist() == ["a\\351\\377!", "fine ü"]
    _assert_same(batch)


def test_an_empty_batch_has_no_groups():
    assert decode_columns(Batch(*lay_out([]), {}, 0, None), TYPES) == []


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([write.insert(1, ["1"])], "before the Begin"),
        ([write.begin(1), write.insert(1, ["1"])], "never described"),
        ([write.begin(1)[:-1]], "bytes long"),
        (
            [write.begin(1), write.relation(1, "t", [("id", 20, -1, True)]), write.insert(1, ["1", "2"])],
            "columns of its table",
        ),
        ([write.begin(1), write.relation(1, "t", [("id", 20, -1, True)]), write.insert(1, ["x"])], "malformed"),
        ([write.begin(1), write.relation(1, "t", [("n", 25, -1, True)]), write.insert(1, ["ab"])[:-1]], "mid field"),
        ([write.begin(1), write.relation(1, "t", [("n", 25, -1, True)]), write.insert(1, ["ab"]) + b"!"], "left over"),
    ],
)
def test_malformed_messages_raise_decode_error_and_say_what_is_wrong(messages, reason):
    with pytest.raises(DecodeError, match=reason):
        decode_columns(Batch(*lay_out(messages), {}, 0, None), TYPES)


@settings(max_examples=20_000 if LONG else 250, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.timeout(900 if LONG else 60)
@given(streams(), st.data())
def test_mutated_batches_decode_or_raise_decode_error_and_nothing_else(stream, data):
    """Also, whatever one way of decoding takes for a message, the other does not silently read in another way."""
    index = data.draw(st.integers(0, len(stream) - 1))
    broken = bytearray(stream[index])
    at = data.draw(st.integers(0, len(broken) - 1))
    broken[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    stream[index] = bytes(broken)
    batch = Batch(*lay_out(stream), {}, 0, None)
    try:
        rows = _by_rows(batch)
    except DecodeError:
        rows = None
    try:
        columns = _by_columns(batch)
    except DecodeError:
        return
    if rows is not None:
        # Without their order: a mutated Begin may put its transaction anywhere.
        assert sorted((r["op"], r["table"]) for r in columns) == sorted((r["op"], r["table"]) for r in rows)
