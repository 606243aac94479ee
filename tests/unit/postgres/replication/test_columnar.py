"""The columnar decoder gives what the row-wise one gives, and fails as it does."""

from decimal import Decimal
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import DecodeError
from headwater.model import UNCHANGED
from headwater.postgres.replication import columnar
from headwater.postgres.replication.batch import Batch, lay_out
from headwater.postgres.replication.columnar import Group, decode_columns
from headwater.postgres.replication.pgoutput import parse_relation
from tests.data.record import load, recordings
from tests.support.capture import pgoutput_writer as write
from tests.support.capture.mutations import (
    NUMERIC_8_2,
    column_changes,
    mutated_batches,
    require_same_outcome,
    require_values_or_decode_error,
    row_changes,
    typed_streams,
)
from tests.support.capture.recordings import TYPES, batches


def _assert_same(batch):
    assert column_changes(batch) == row_changes(batch)


@given(typed_streams(), st.sampled_from([100, 1_000, 1 << 20]))
def test_columns_hold_the_same_values_as_rows(stream, batch_bytes):
    for batch in batches(stream, batch_bytes):
        _assert_same(batch)


@pytest.mark.parametrize(
    ("scenario", "version"), [(s.name, v) for s, v in recordings() if s.name not in ("prepared", "schema")]
)
def test_columns_hold_the_same_values_as_rows_for_every_recording(scenario, version):
    for batch in batches(load(scenario, version)):
        _assert_same(batch)


def after_of(group: Group) -> pa.RecordBatch:
    assert group.after is not None
    return group.after


def test_a_table_that_changed_its_shape_gives_a_group_for_each_shape():
    groups = [group for batch in batches(load("schema", 18)) for group in decode_columns(batch, TYPES)]
    shapes = [after_of(group).schema.names for group in groups if group.relation.name == "t" and group.tag == "I"]
    assert shapes == [["id", "a"], ["id", "a", "b"], ["id", "c", "b"], ["id", "c"], ["id", "c"], ["other"]]


def test_a_value_that_arrow_cannot_hold_is_reported_with_row_column_and_text():
    table = [("id", 20, -1, True), ("price", 1700, NUMERIC_8_2, False)]
    stream = [write.begin(1), write.relation(1, "t", table), write.insert(1, ["1", "1.50"]), write.insert(1, ["2", "NaN"])]
    (batch,) = batches([*stream, write.commit(1, 2)])
    (group,) = decode_columns(batch, TYPES)
    (rejected,) = group.rejected
    assert (rejected.row, rejected.column, rejected.text) == (1, "price", "NaN")
    assert after_of(group).column("price").to_pylist() == [Decimal("1.50"), None]


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
    assert after_of(group).column("n").to_pylist() == ["a\\351\\377!", "fine ü"]
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
        row_changes(batch)
    with pytest.raises(DecodeError) as by_columns:
        column_changes(batch)
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
    assert [(row["op"], row["after"], row["unchanged"]) for row in column_changes(batch)] == [
        ("u", {"id": "long", "sub": "1", "v": "UNCHANGED"}, ("v",)),
        ("u_pk", {"id": "long", "sub": "2", "v": "x"}, ()),
        ("u_pk", {"id": "long", "sub": None, "v": "x"}, ()),
        ("u", {"id": "long", "sub": "2", "v": "y"}, ()),
    ]
    _assert_same(batch)


def test_relation_messages_are_parsed_once_however_many_tables_there_are(monkeypatch):
    parsed = Mock(wraps=parse_relation)
    monkeypatch.setattr(columnar, "parse_relation", parsed)
    tables = range(1, 201)
    described = [message for oid in tables for message in (write.relation(oid, f"t{oid}", ID), write.insert(oid, ["1"]))]
    (batch,) = batches([write.begin(1), *described, write.commit(1, 2)])
    looked_at = Mock(wraps=np.flatnonzero)
    monkeypatch.setattr(np, "flatnonzero", looked_at)
    assert len(decode_columns(batch, TYPES)) == len(tables)
    assert parsed.call_count == len(tables)
    assert looked_at.call_count < 10


@given(mutated_batches())
def test_mutated_batches_decode_to_the_same_changes_or_are_refused_both_ways(batch: Batch) -> None:
    require_same_outcome(batch)


@given(mutated_batches())
def test_mutated_values_decode_or_raise_decode_error_and_nothing_else(batch: Batch) -> None:
    require_values_or_decode_error(batch)
