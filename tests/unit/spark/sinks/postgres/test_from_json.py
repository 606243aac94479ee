"""JSON values become the texts that they were before."""

import json

import pytest

from headwater.postgres.types import Field, Kind, PgType, Types, to_json
from headwater.spark.sinks.postgres.from_json import parse_row, to_literal

POINT = PgType(oid=90001, schema="public", name="spot", kind=Kind.COMPOSITE, fields=(Field("x", 701), Field("label", 25)))
SPOTS = PgType(oid=90002, schema="public", name="_spot", kind=Kind.ARRAY, element=90001)
TYPES = Types.builtin().extended([POINT, SPOTS])


@pytest.mark.parametrize(
    ("oid", "text"),
    [
        (16, "t"),
        (20, "-9223372036854775808"),
        (701, "1e+300"),
        (701, "0.1"),
        (701, "NaN"),
        (1700, "12345678901234567890.000000000000000001"),
        (25, 'a "quoted" \\ text\n'),
        (17, "\\x00ff"),
        (3802, '{"a": [1, null]}'),
        (3802, "null"),
        (114, '"text"'),
        (1007, "{1,NULL,3}"),
        (1007, "{{1,2},{3,4}}"),
        (1007, "[0:1]={1,2}"),
        (1009, '{"",NULL,"NULL","a,b","c\\"d","e\\\\f"}'),
        (3807, '{"{\\"a\\": 1}",NULL}'),
        (22, "1 2 3"),
        (90001, '(1.5,"a, b")'),
        (90001, "(,)"),
        (90002, '{"(1,x)",NULL}'),
    ],
)
def test_what_was_written_as_json_reads_as_the_text_that_it_was(oid, text):
    row = parse_row('{"v":' + to_json(TYPES, oid)(text) + "}")

    assert row is not None
    assert to_literal(TYPES, oid)(row["v"]) == text


def test_a_number_keeps_its_digits():
    row = parse_row('{"v": 0.10000000000000000000001}')

    assert row is not None
    assert to_literal(TYPES, 1700)(row["v"]) == "0.10000000000000000000001"


def test_objects_of_a_transform_go_into_json_columns():
    assert json.loads(to_literal(TYPES, 3802)({"a": [1, "x"]})) == {"a": [1, "x"]}


@pytest.mark.parametrize("text", ["", "[1]", "3", "{"])
def test_what_is_no_object_is_no_row(text):
    with pytest.raises(ValueError):
        parse_row(text)
