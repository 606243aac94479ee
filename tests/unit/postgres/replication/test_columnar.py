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
from headwater.postgres.replication import columnar
from headwater.postgres.replication.batch import Batch, lay_out
from headwater.postgres.replication.columnar import Group, decode_columns
from headwater.postgres.replication.pgoutput import parse_relation
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Types
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
        return draw(st.one_of(choices, st.just(UNCHANGED)) if unchanged else choices)

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


def _by_rows(batch: Batch, types: Types = TYPES) -> list[dict[str, object]]:
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


def _by_columns(batch: Batch, types: Types = TYPES) -> list[dict[str, object]]:
    rows = [row for group in decode_columns(batch, types) for row in _group_rows(group)]
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
            "op": "u_pk" if group.key_changed[index] else {"I": "c", "U": "u", "D": "d", "T": "t"}[group.tag],
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
    assert _by_columns(batch) == _by_rows(batch)


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
        ([write.begin(1)[:-1]], "mid field"),
        (
            [write.begin(1), write.relation(1, "t", [("id", 20, -1, True)]), write.insert(1, ["1", "2"])],
            "columns of public.t",
        ),
        ([write.begin(1), write.relation(1, "t", [("id", 20, -1, True)]), write.insert(1, ["x"])], "no valid int8"),
        (
            [write.begin(1), write.relation(1, "t", [("n", 25, -1, True)]), write.insert(1, ["ab"])[:-1]],
            "leaves the message",
        ),
        ([write.begin(1), write.relation(1, "t", [("n", 25, -1, True)]), write.insert(1, ["ab"]) + b"!"], "left over"),
    ],
)
def test_malformed_messages_raise_decode_error_and_say_what_is_wrong(messages, reason):
    with pytest.raises(DecodeError, match=reason):
        decode_columns(Batch(*lay_out(messages), {}, 0, None), TYPES)


ID = [("id", 20, -1, True)]
INSERT = write.insert(1, ["1"])


@pytest.mark.parametrize(
    "broken",
    [
        b"Y" + INSERT[1:],
        b"?" + INSERT[1:],
        write.stream_stop(),
        b"Y\0\0",
        write.message(5, "p", b"abc")[:-1],
        b"O" + bytes(8) + b"name",
        write.relation(2, "u", ID)[:-3],
        write.relation(2, "u", ID + ID),
        write.begin(1, micros=2**62),
        write.begin(1, micros=-1),
        write.begin(2**63),
        write.commit(1, 2, micros=2**62),
        write.commit(1, 2**63),
        write.commit(2**63, 2),
        write.commit(1, 2) + INSERT[:1],
        write.update(1, ["1"], [UNCHANGED]),
        write.delete(1, [UNCHANGED]),
    ],
)
def test_what_rows_refuse_columns_refuse_with_the_same_words(broken):
    batch = Batch(*lay_out([write.begin(1), write.relation(1, "t", ID), INSERT, broken]), {}, 0, None)
    with pytest.raises(DecodeError) as by_rows:
        _by_rows(batch)
    with pytest.raises(DecodeError) as by_columns:
        _by_columns(batch)
    assert str(by_columns.value) == str(by_rows.value)
    assert by_columns.value.lsn == 1


def test_a_change_between_transactions_is_refused():
    batch = Batch(*lay_out([write.begin(1), write.relation(1, "t", ID), write.commit(1, 2), INSERT]), {}, 0, None)
    with pytest.raises(DecodeError, match="before the Begin"):
        decode_columns(batch, TYPES)


def test_a_value_that_does_not_fit_is_reported_with_position_table_and_column():
    table = [*ID, ("price", 1700, NUMERIC_8_2, False)]
    first = [write.begin(1), write.relation(1, "t", table), write.insert(1, ["1", "1.50"]), write.commit(1, 2)]
    stream = [*first, write.begin(0x1_0000_0002), write.insert(1, ["2", "x"]), write.commit(0x1_0000_0002, 5)]
    (batch,) = batches(stream)
    with pytest.raises(
        DecodeError, match=r"'I' at 1/2: column 'price' of public.t: 'x' is no valid numeric; report"
    ) as raised:
        decode_columns(batch, TYPES)
    assert raised.value.lsn == 0x1_0000_0002


def test_a_toasted_key_that_stayed_is_taken_from_the_old_key_and_is_no_key_change():
    table = [("id", 25, -1, True), ("sub", 25, -1, True), ("v", 25, -1, False)]
    stream = [
        write.begin(1),
        write.relation(1, "t", table),
        write.update(1, [UNCHANGED, "1", UNCHANGED], ["long", "1", None]),
        write.update(1, [UNCHANGED, "2", "x"], ["long", "1", None]),
        write.update(1, [UNCHANGED, None, "x"], ["long", "1", None]),
        write.update(1, [UNCHANGED, "2", UNCHANGED], ["long", "1", "y"], "O"),
        write.commit(1, 2),
    ]
    (batch,) = batches(stream)
    assert [(row["op"], row["after"], row["unchanged"]) for row in _by_columns(batch)] == [
        ("u", {"id": "long", "sub": "1", "v": "UNCHANGED"}, ("v",)),
        ("u_pk", {"id": "long", "sub": "2", "v": "x"}, ()),
        ("u_pk", {"id": "long", "sub": None, "v": "x"}, ()),
        ("u", {"id": "long", "sub": "2", "v": "y"}, ()),
    ]
    _assert_same(batch)


def test_relation_messages_are_parsed_once_however_many_tables_there_are(monkeypatch):
    parsed = []
    monkeypatch.setattr(columnar, "parse_relation", lambda message: parsed.append(message) or parse_relation(message))
    tables = range(1, 201)
    described = [message for oid in tables for message in (write.relation(oid, f"t{oid}", ID), write.insert(oid, ["1"]))]
    (batch,) = batches([write.begin(1), *described, write.commit(1, 2)])
    looked_at = []
    original = np.flatnonzero
    monkeypatch.setattr(columnar.np, "flatnonzero", lambda mask: looked_at.append(1) or original(mask))
    assert len(decode_columns(batch, TYPES)) == len(tables)
    assert len(parsed) == len(tables)
    assert len(looked_at) < 10


def _mutated(stream: list[bytes], data: st.DataObject) -> Batch:
    index = data.draw(st.integers(0, len(stream) - 1))
    broken = bytearray(stream[index])
    at = data.draw(st.integers(0, len(broken) - 1))
    broken[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    stream[index] = bytes(broken)
    return Batch(*lay_out(stream), {}, 0, None)


def _outcome(decode, batch: Batch, types: Types):
    """The changes, without their order, for a mutated Begin may put its transaction anywhere; or that it was refused."""
    try:
        return sorted(decode(batch, types), key=lambda row: (row["position"], row["xid"], row["op"], repr(row["after"])))
    except DecodeError:
        return "refused"


@settings(max_examples=20_000 if LONG else 250, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.timeout(900 if LONG else 60)
@given(streams(), st.data())
def test_mutated_batches_decode_to_the_same_changes_or_are_refused_both_ways(stream, data):
    """Every type is text here: what is no value of its type is a matter of the types, which check less in Arrow."""
    batch = _mutated(stream, data)
    assert _outcome(_by_columns, batch, Types()) == _outcome(_by_rows, batch, Types())


@settings(max_examples=20_000 if LONG else 250, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.timeout(900 if LONG else 60)
@given(streams(), st.data())
def test_mutated_values_decode_or_raise_decode_error_and_nothing_else(stream, data):
    batch = _mutated(stream, data)
    rows = _outcome(_by_rows, batch, TYPES)
    try:
        groups = decode_columns(batch, TYPES)
    except DecodeError:
        return
    if rows != "refused":
        tables = sorted(group.relation.name for group in groups for _ in range(len(group)))
        assert tables == sorted(row["table"] for row in rows)
