"""Rows and streams for the Avro encoder, and what is required of their encoding: fastavro reads back every value.

Each requirement is a function that raises where it does not hold: `make test` tries some inputs and `make soak` many.
"""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from headwater.creek.encode import MAGIC, Encoded, encode_batch, encode_rows
from headwater.creek.names import Generation
from headwater.creek.schema import row_record, row_schema
from headwater.model import UNCHANGED, Change, Lsn
from headwater.postgres.replication.rows import decode_rows
from headwater.postgres.types.literals import join_array
from tests.support.capture.recordings import batches
from tests.support.creek import avro_reference as reference
from tests.support.creek.avro_reference import (
    NUMERIC_10_5,
    NUMERIC_12_2,
    NUMERIC_38_10,
    NUMERIC_100_50,
    TYPES,
    relation,
)

SENT_AT = 1_700_000_000_500_000

_CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
_INSTANTS = st.sampled_from(["infinity", "-infinity", "0044-03-15 00:00:00 BC", "294276-12-31 23:59:59.999999"])


def _decimal(precision: int, scale: int) -> st.SearchStrategy[str]:
    digits = st.integers(-(10**precision) + 1, 10**precision - 1)
    shown = digits.map(lambda n: ("-" if n < 0 else "", str(abs(n)).rjust(scale + 1, "0")))
    return shown.map(lambda part: f"{part[0]}{part[1][:-scale]}.{part[1][-scale:]}") | st.just("NaN")


def _array(elements: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def shown(values: Sequence[str | None]) -> str:
        return join_array(values, ",", str) if values else "{}"

    plain = st.lists(elements | st.none(), max_size=5).map(shown) | st.lists(elements, max_size=5).map(shown)
    return plain | st.just("{{a},{b}}")


_TEXTS: dict[str, tuple[str, int, st.SearchStrategy[str]]] = {
    "flag": ("bool", -1, st.sampled_from("tf")),
    "small": ("int2", -1, st.integers(-(2**15), 2**15 - 1).map(str)),
    "big": ("int8", -1, st.integers(-(2**63), 2**63 - 1).map(str)),
    "f": (
        "float8",
        -1,
        st.floats().map(lambda f: {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(f), repr(f))),
    ),
    "t": ("text", -1, st.text(_CHARACTERS, max_size=200)),
    "b": ("bytea", -1, st.binary(max_size=5).map(lambda raw: "\\x" + raw.hex())),
    "u": ("uuid", -1, st.uuids().map(str)),
    "j": ("jsonb", -1, st.dictionaries(st.text("abc", max_size=3), st.integers(-9, 9) | st.text("xyz")).map(json.dumps)),
    "n12": ("numeric", NUMERIC_12_2, _decimal(12, 2)),
    "n38": ("numeric", NUMERIC_38_10, _decimal(38, 10)),
    "n100": ("numeric", NUMERIC_100_50, _decimal(100, 50)),
    "n": ("numeric", -1, st.sampled_from(["1", "1.50", "NaN", "Infinity", "-1e5"])),
    "day": ("date", -1, st.dates().map(str) | st.sampled_from(["infinity", "-infinity", "5874897-12-31", "4713-01-01 BC"])),
    "at": ("timestamp", -1, st.datetimes().map(lambda d: d.isoformat(" ")) | _INSTANTS),
    "clock": ("time", -1, st.times().map(str) | st.just("24:00:00")),
    "ns": ("_numeric", NUMERIC_10_5, _array(_decimal(10, 5))),
    "ts": ("_text", -1, _array(st.text(_CHARACTERS, max_size=5))),
    "days": ("_date", -1, _array(st.dates().map(str) | st.sampled_from(["infinity", "-infinity"]))),
    "is": ("_int4", -1, _array(st.integers(-9, 9).map(str))),
}
WIDE = relation("wide", ("id", "int4", True), *((name, type_, False, typmod) for name, (type_, typmod, _) in _TEXTS.items()))
WIDE_ROWS = st.fixed_dictionaries(
    {"id": st.integers(-(2**31), 2**31 - 1).map(str), **{name: st.none() | texts for name, (_, _, texts) in _TEXTS.items()}}
)


def require_same_as_fastavro(rows: Sequence[dict[str, str | None]]) -> None:
    """Encode rows of the table WIDE as vectors, and compare each with what fastavro writes and reads."""
    names = [column.name for column in WIDE.columns]
    columns = {name: pa.array([row[name] for row in rows], pa.string()) for name in names}
    given_rows = pa.RecordBatch.from_pydict(columns)
    record = row_record(WIDE, TYPES)
    expected = [reference.row_value(record, row) for row in rows]
    plain, misfits = encode_rows(given_rows, WIDE, TYPES)
    widened, none = encode_rows(given_rows, WIDE, TYPES, widened=True)
    assert not none.any()
    assert plain.is_null().to_pylist() == misfits.tolist()
    for data, schema in ((plain, row_schema(WIDE, TYPES)), (widened, row_schema(WIDE, TYPES, widened=True))):
        for datum, value in zip(data.to_pylist(), expected, strict=True):
            if datum is None:
                assert any(isinstance(value[field.name], str) for field in record.fields if field.type.can_misfit)
                continue
            # As text, in which NaN is NaN and -0 is not 0; arrays may be in blocks of another form, and nothing else.
            assert repr(reference.read(schema.text, datum)) == repr(value)
            if not any(isinstance(each, list) for each in value.values()):
                assert datum == reference.write(schema.text, value)


def require_told_in_order(messages: list[bytes], generation: Generation) -> None:
    """Encode the batches of a stream, and compare the messages with its changes, one by one and in their order."""
    for batch in batches(messages):
        changes = [each for each in decode_rows(batch, TYPES) if isinstance(each, Change)]
        found = encode_batch(batch, TYPES, database="d", generation=generation, sent_at=SENT_AT, previous=Lsn(0))
        told = []
        for each in found:
            places = list(zip(each.places.commit_lsn.tolist(), each.places.ordinal.tolist(), strict=True))
            assert sorted(places) == places
            told += list(zip(places, values(each), strict=True))
        told.sort(key=lambda pair: pair[0])
        assert [place for place, _ in told] == [tuple(map(int, change.position)) for change in changes]
        for (_, value), change in zip(told, changes, strict=True):
            assert value["source"]["lsn"] == str(change.position.commit_lsn)
            assert (value["source"]["table"], value["source"]["tx_id"]) == (change.table, change.xid)
            after = None if change.after is None else {k: None if v is UNCHANGED else v for k, v in change.after.items()}
            assert value["after"] == after
            assert value["op"] == str(change.op) or (value["op"], str(change.op)) == ("u_pk", "u")


def values(each: Encoded) -> list[dict[str, Any]]:
    """The messages as read under the schema that each of them names."""
    schemas = {schema.fingerprint: schema for schema in (each.schema, each.widened) if schema is not None}
    found = []
    for payload in each.payloads.to_pylist():
        assert payload[:2] == MAGIC
        schema = schemas[payload[2:10]]
        value = reference.read(schema.text, payload[10:])
        assert value["fingerprint"] == schema.name
        found.append(value)
    return found
