"""Schemas and their fingerprints: Creek's own, widened ones, and tables whose names Avro does not take."""

import json

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.creek.fingerprint import canonical, fingerprint_bytes, fingerprint_of, fingerprint_text
from headwater.creek.names import Generation
from headwater.creek.schema import (
    INFINITY,
    NEGATIVE_INFINITY,
    avro_names,
    can_misfit,
    row_record,
    row_schema,
    wal_schema,
)
from tests.support.creek.avro_reference import NUMERIC_10_5, TYPES, relation

OTHER = relation("other", ("id", "int4", True), ("data", "text", False))
_SCALARS = (
    "bool bpchar varchar bpchar date float4 float8 int2 int4 int8 json jsonb text time timestamp timestamptz uuid numeric"
)
# The second column is a `char`, which is short for bpchar(1).
_NAMES = _SCALARS.replace("bool bpchar", "bool char", 1).split()
TYPES_TABLE = relation(
    "types",
    *(
        (name, type_, type_ == "uuid", NUMERIC_10_5 if type_ == "numeric" else -1)
        for name, type_ in zip(_NAMES, _SCALARS.split(), strict=True)
    ),
    *(
        (f"{name}arr", f"_{type_}", False, NUMERIC_10_5 if type_ == "numeric" else -1)
        for name, type_ in zip(_NAMES, _SCALARS.split(), strict=True)
    ),
)


@pytest.mark.parametrize(
    ("table", "generation", "fingerprint"),
    [
        (OTHER, Generation.ONE, "9oTzOV2QDOA="),
        (OTHER, Generation.TWO, "-Gm1kvajdms="),
        (TYPES_TABLE, Generation.ONE, "5M3FmSIYmLU="),
        (TYPES_TABLE, Generation.TWO, "donjMWaiP14="),
    ],
)
def test_fingerprints_of_changes_are_creeks(table, generation, fingerprint):
    schema = wal_schema(table, TYPES, generation)
    assert schema.name == fingerprint
    assert fingerprint_bytes(fingerprint) == schema.fingerprint == fingerprint_of(schema.text)


def test_the_fingerprint_of_a_snapshots_rows_is_creeks():
    assert row_schema(OTHER, TYPES).name == "tehSZhnhMvI="


def test_the_canonical_text_has_the_length_of_creeks():
    assert [len(canonical(wal_schema(OTHER, TYPES, generation).text)) for generation in Generation] == [888, 852]


def test_the_text_of_a_schema_of_changes_has_keys_in_the_order_of_creeks_library():
    text = wal_schema(OTHER, TYPES, Generation.TWO).text
    assert text.startswith('{"name":"publish_message","type":"record","fields":[{"name":"fingerprint","type":"string"},')
    assert text.endswith(
        '{"name":"before","type":["null",{"name":"before.other","type":"record","fields":['
        '{"name":"id","type":"int","pgKey":true,"pgType":"int4"}]}]},'
        '{"name":"after","type":["null",{"name":"after.other","type":"record","fields":['
        '{"name":"id","type":"int","pgKey":true,"pgType":"int4"},'
        '{"name":"data","type":["null","string"],"pgKey":false,"pgType":"text"}]}]}]}'
    )


def test_the_text_of_a_schema_of_rows_has_keys_in_creeks_own_order():
    assert row_schema(OTHER, TYPES).text == (
        '{"type":"record","name":"other","fields":[{"name":"id","type":"int","pgType":"int4","pgKey":true},'
        '{"name":"data","type":["null","string"],"pgType":"text","pgKey":false}]}'
    )


def test_only_generation_one_tells_the_transaction_before():
    for generation, expected in ((Generation.ONE, True), (Generation.TWO, False)):
        source = json.loads(wal_schema(OTHER, TYPES, generation).text)["fields"][1]["type"]
        names = [field["name"] for field in source["fields"]]
        assert ("last_lsn" in names) is expected
        assert names[-1] == "lsn"


def test_the_enum_of_infinities_is_defined_where_it_is_used_first_in_each_record():
    table = relation("t", ("at", "timestamptz", True), ("days", "_date", False), ("day", "date", False))
    before, after = (field["type"][1] for field in json.loads(wal_schema(table, TYPES, Generation.ONE).text)["fields"][-2:])
    enums = [
        {"name": f"{name}.infinity_modifier", "type": "enum", "symbols": [INFINITY, NEGATIVE_INFINITY]}
        for name in ("before", "after")
    ]
    moment, day = {"type": "long", "logicalType": "timestamp-micros"}, {"type": "int", "logicalType": "date"}
    assert [field["type"] for field in before["fields"]] == [[moment, enums[0]]]
    assert [field["type"] for field in after["fields"]] == [
        [moment, enums[1]],
        ["null", {"type": "array", "items": [day, "after.infinity_modifier"]}],
        ["null", day, "after.infinity_modifier"],
    ]


@pytest.mark.parametrize(
    ("identity", "keys", "nullable"),
    [("d", [True, False], [False, True]), ("i", [True, False], [True, True]), ("n", [False, False], [True, True])],
)
def test_only_the_key_of_a_default_identity_is_never_null(identity, keys, nullable):
    table = relation("t", ("id", "int4", identity != "n"), ("v", "text", False), identity=identity)
    fields = row_record(table, TYPES).fields
    assert [field.is_key for field in fields] == keys
    assert [field.is_nullable for field in fields] == nullable


def test_under_a_full_identity_every_column_is_of_the_key_and_may_be_null():
    table = relation("t", ("id", "int4", True), ("v", "text", True), identity="f")
    schema = json.loads(wal_schema(table, TYPES, Generation.ONE).text)
    before = schema["fields"][-2]["type"][1]
    assert [(field["type"], field["pgKey"]) for field in before["fields"]] == [
        (["null", "int"], True),
        (["null", "string"], True),
    ]


def test_a_table_without_key_has_an_empty_record_of_old_rows():
    schema = json.loads(wal_schema(relation("t", ("v", "text", False)), TYPES, Generation.ONE).text)
    assert schema["fields"][-2]["type"][1]["fields"] == []


def test_a_decimal_has_no_scale_of_zero_and_a_numeric_without_limits_is_bytes():
    table = relation("t", ("a", "numeric", False, (10 << 16) + 4), ("b", "numeric", False), ("c", "_numeric", False))
    fields = json.loads(row_schema(table, TYPES).text)["fields"]
    assert [field["type"][1] for field in fields] == [
        {"type": "bytes", "logicalType": "decimal", "precision": 10},
        "bytes",
        {"type": "array", "items": "bytes"},
    ]


def test_a_widened_schema_has_a_string_at_the_end_of_what_may_not_fit_and_another_fingerprint():
    table = relation(
        "t",
        ("id", "numeric", True, NUMERIC_10_5),
        ("at", "timestamp", True),
        ("day", "date", False),
        ("tags", "_text", False),
        ("note", "text", False),
        ("raw", "bytea", False),
    )
    plain, widened = (json.loads(row_schema(table, TYPES, widened=wide).text)["fields"] for wide in (False, True))
    assert can_misfit(table, TYPES) == ("id", "at", "tags")
    assert [field["type"] for field in widened] == [
        [plain[0]["type"], "string"],
        [*plain[1]["type"], "string"],
        plain[2]["type"],
        [*plain[3]["type"], "string"],
        plain[4]["type"],
        plain[5]["type"],
    ]
    assert row_schema(table, TYPES, widened=True).fingerprint != row_schema(table, TYPES).fingerprint
    one, other = (wal_schema(table, TYPES, Generation.ONE, widened=wide) for wide in (False, True))
    assert one.fingerprint != other.fingerprint


def test_a_table_in_which_everything_fits_has_one_schema_only():
    assert can_misfit(OTHER, TYPES) == ()
    assert wal_schema(OTHER, TYPES, Generation.ONE, widened=True) == wal_schema(OTHER, TYPES, Generation.ONE)


def test_names_that_avro_does_not_take_are_replaced_and_told_beside():
    table = relation("Order Items", ("ID", "int4", True), ("unit price", "text", False), ("1st", "text", False))
    record = json.loads(row_schema(table, TYPES).text)
    assert (record["name"], record["pgName"]) == ("Order_x20_Items", "Order Items")
    assert [(field["name"], field.get("pgName")) for field in record["fields"]] == [
        ("ID", None),
        ("unit_x20_price", "unit price"),
        ("_x31_st", "1st"),
    ]
    after = json.loads(wal_schema(table, TYPES, Generation.ONE).text)["fields"][-1]["type"][1]
    assert (after["name"], after["pgName"]) == ("after.Order_x20_Items", "Order Items")


def test_names_stay_apart_from_each_other():
    assert avro_names(["a b", "a_x20_b", "a_x20_b_"]) == ["a_x20_b__", "a_x20_b", "a_x20_b_"]
    assert avro_names(["ä", "日"]) == ["_xC3__xA4_", "_xE6__x97__xA5_"]


def test_a_table_with_the_name_of_the_enum_gets_another():
    table = relation("infinity_modifier", ("day", "date", True))
    for schema in (wal_schema(table, TYPES, Generation.ONE), row_schema(table, TYPES)):
        fastavro.parse_schema(json.loads(schema.text))
    assert json.loads(row_schema(table, TYPES).text)["pgName"] == "infinity_modifier"


NAME = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=12)


@given(st.lists(NAME, unique=True, max_size=8), NAME)
def test_any_names_make_a_schema_that_avro_takes_and_that_tells_them(columns, table):
    made = relation(table, *((name, "date", index == 0) for index, name in enumerate(columns)))
    for generation in Generation:
        fastavro.parse_schema(json.loads(wal_schema(made, TYPES, generation, widened=True).text))
    record = json.loads(row_schema(made, TYPES).text)
    assert record.get("pgName", record["name"]) == table
    assert [field.get("pgName", field["name"]) for field in record["fields"]] == columns
    assert len({field["name"] for field in record["fields"]}) == len(columns)


def test_the_canonical_form_keeps_logical_types_and_drops_all_other_attributes():
    schema = {
        "type": "record",
        "name": "r",
        "namespace": "n",
        "doc": "text",
        "fields": [
            {"name": "a", "type": {"type": "long", "logicalType": "timestamp-micros"}, "pgKey": True},
            {"name": "b", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 0}},
            {"name": "c", "type": {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}},
            {"name": "d", "type": {"type": "enum", "name": "e", "symbols": ["x", "y"]}},
            {"name": "e", "type": ["null", "e", {"type": "array", "items": {"type": "string"}}]},
        ],
    }
    assert canonical(schema) == canonical(json.dumps(schema, indent=2))
    assert canonical(schema) == (
        '{"name":"n.r","type":"record","fields":[{"name":"a","type":{"type":"long","logicalType":"timestamp-micros"}},'
        '{"name":"b","type":{"type":"bytes","logicalType":"decimal","precision":4}},{"name":"c","type":"bytes"},'
        '{"name":"d","type":{"name":"n.e","type":"enum","symbols":["x","y"]}},'
        '{"name":"e","type":["null","n.e",{"type":"array","items":"string"}]}]}'
    )


def test_the_checksum_is_that_of_the_avro_specification():
    """Where no logical types are, the canonical form is the specification's own, whose fingerprints fastavro computes."""
    for schema in ('"int"', '"string"', '{"type":"record","name":"r","fields":[{"name":"a","type":["null","long"]}]}'):
        known = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(json.loads(schema)), "CRC-64-AVRO")
        assert fingerprint_of(schema) == bytes.fromhex(known)[::-1]


@pytest.mark.parametrize("text", ["", "9oTzOV2QDOA", "9oTzOV2QDOA==", "9oTzOV2QDO", "not base64!!", "9oTzOV2QDOB="])
def test_a_text_that_is_no_fingerprint_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        fingerprint_bytes(text)


@given(st.binary(min_size=8, max_size=8))
def test_a_fingerprint_comes_back_from_its_text(fingerprint):
    assert fingerprint_bytes(fingerprint_text(fingerprint)) == fingerprint
