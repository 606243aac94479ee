"""Envelopes: what the row decoder gives, with every value in JSON."""

import json
from json.encoder import encode_basestring
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema

from headwater.errors import DecodeError, SettingsError
from headwater.model import UNCHANGED, Change
from headwater.postgres.replication.batch import Batch
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types import Types, to_json
from headwater.spark.settings import LaneRule
from headwater.spark.shape import ENVELOPE
from headwater.spark.sources.envelope import SCHEMA, to_envelopes
from headwater.spark.sources.lanes import split
from headwater.spark.sources.protect import Protection
from tests.data.record import load, recordings
from tests.support.capture import pgoutput_writer as write
from tests.support.capture.change_streams import streams
from tests.support.capture.recordings import TYPES, batches

NO_PROTECTION = Protection()


def _object(row: Any) -> str | None:
    """A row of fragments as a JSON object, without what the server left out."""
    if row is None:
        return None
    members = (
        f"{encode_basestring(name)}:{'null' if fragment is None else fragment}"
        for name, fragment in row.items()
        if fragment is not UNCHANGED
    )
    return "{" + ",".join(members) + "}"


def _expected(batch: Batch, types: Types = TYPES) -> list[dict[str, Any]]:
    changes = (change for change in decode_rows(batch, types, to_json) if isinstance(change, Change))
    return [
        {
            "commit_lsn": int(change.position.commit_lsn),
            "ordinal": change.position.ordinal,
            "xid": change.xid,
            "committed_at": change.committed_at,
            "op": str(change.op),
            "schema": change.schema,
            "table": change.table,
            "key": _object(change.key),
            "before": _object(change.before),
            "after": _object(change.after),
            "unchanged": list(change.unchanged),
        }
        for change in changes
    ]


def _assert_as_rows(batch: Batch) -> None:
    found = to_envelopes(batch, TYPES, NO_PROTECTION)
    assert found.schema == SCHEMA
    assert found.to_pylist() == _expected(batch)
    for row in found.to_pylist():
        for name in ("key", "before", "after"):
            assert row[name] is None or isinstance(json.loads(row[name]), dict)


@given(streams(), st.sampled_from([1, 200, 1 << 20]))
def test_an_envelope_holds_what_the_row_decoder_gives(stream, size):
    for batch in batches(stream, size):
        if batch.changes:
            _assert_as_rows(batch)


@given(streams(), st.sampled_from(LaneRule))
def test_the_envelopes_of_a_lane_hold_what_the_row_decoder_gives(stream, rule):
    for laned in split(batches(stream), 3, rule):
        _assert_as_rows(laned.batch)


@pytest.mark.parametrize(
    ("scenario", "version"), [(s.name, v) for s, v in recordings() if s.name not in ("prepared", "schema")]
)
def test_the_envelopes_of_every_recording_hold_what_the_row_decoder_gives(scenario, version):
    for batch in batches(load(scenario, version)):
        if batch.changes:
            _assert_as_rows(batch)


def test_the_columns_are_those_that_spark_was_told():
    assert to_arrow_schema(ENVELOPE, timezone="UTC") == SCHEMA


COLUMNS = [("id", 23, -1, True), ("phone", 25, -1, False), ("mail", 25, -1, False), ("big", 25, -1, False)]


def _batch(*changes: bytes) -> Batch:
    (batch,) = batches([write.begin(1), write.relation(1, "person", COLUMNS), *changes, write.commit(1, 2)])
    return batch


def test_an_unchanged_column_is_named_and_left_out_of_the_new_row():
    (row,) = to_envelopes(_batch(write.update(1, ["1", None, "m", UNCHANGED])), TYPES, NO_PROTECTION).to_pylist()
    assert json.loads(row["after"]) == {"id": 1, "phone": None, "mail": "m"}
    assert row["unchanged"] == ["big"]


def test_rows_with_other_columns_unchanged_keep_their_order():
    changes = [
        write.update(1, ["1", "p", "m", UNCHANGED]),
        write.update(1, ["2", UNCHANGED, "m", "b"]),
        write.update(1, ["3", "p", "m", "b"]),
        write.update(1, ["4", UNCHANGED, "m", UNCHANGED]),
        write.insert(1, ["5", "p", "m", "b"]),
    ]
    rows = to_envelopes(_batch(*changes), TYPES, NO_PROTECTION).to_pylist()
    assert [json.loads(row["after"])["id"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["unchanged"] for row in rows] == [["big"], ["phone"], [], ["phone", "big"], []]


def test_masked_and_hashed_columns_leave_the_key_and_both_rows_only_so():
    full = write.relation(1, "person", [(name, oid, typmod, True) for name, oid, typmod, _ in COLUMNS], "f")
    changes = [
        write.insert(1, ["1", "+49 1", "a@b", "x"]),
        write.update(1, ["1", None, "a@b", UNCHANGED], ["1", "+49 1", "a@b", "x"], "O"),
        write.delete(1, ["1", None, "a@b", "x"], "O"),
    ]
    (batch,) = batches([write.begin(1), full, *changes, write.commit(1, 2)])
    protection = Protection({"public.person.phone": 'hidden "number"'}, frozenset({"public.person.mail"}), "salt")
    found = to_envelopes(batch, TYPES, protection)
    # The SHA-256 of "salta@b".
    hashed = "11e9132f813610b7d6694eeaab04e88b87fdafbc83843f2963ed386737850f98"
    text = json.dumps(found.to_pylist(), default=str)
    assert "+49" not in text
    assert "a@b" not in text
    insert, update, delete = (json.loads(row["after"] or row["before"]) for row in found.to_pylist())
    assert insert["phone"] == 'hidden "number"'
    assert update["phone"] is None
    assert insert["mail"] == update["mail"] == delete["mail"] == hashed
    assert (insert["id"], insert["big"]) == (1, "x")


def test_a_column_of_the_same_name_in_another_table_is_not_masked():
    (row,) = to_envelopes(
        _batch(write.insert(1, ["1", "p", "m", "b"])), TYPES, Protection({"public.other.phone": "-"})
    ).to_pylist()
    assert json.loads(row["after"])["phone"] == "p"


def test_a_mask_on_a_column_that_holds_no_text_is_refused_by_name():
    with pytest.raises(SettingsError, match=r"column public\.person\.id is not of a type that holds text"):
        to_envelopes(_batch(write.insert(1, ["1", "p", "m", "b"])), TYPES, Protection({"public.person.id": "-"}))


def test_a_value_that_is_none_of_its_type_is_named_with_its_place():
    with pytest.raises(DecodeError, match=r"0/1.*column 'id' of public\.person"):
        to_envelopes(_batch(write.insert(1, ["one", "p", "m", "b"])), TYPES, NO_PROTECTION)


def test_names_with_quotes_are_escaped():
    relation = write.relation(1, 'the "table"', [('a "b"', 25, -1, True)])
    (batch,) = batches([write.begin(1), relation, write.insert(1, ["v"]), write.commit(1, 2)])
    (row,) = to_envelopes(batch, TYPES, NO_PROTECTION).to_pylist()
    assert row["table"] == 'the "table"'
    assert json.loads(row["after"]) == json.loads(row["key"]) == {'a "b"': "v"}
