"""Which form the types of PostgreSQL have on the wire."""

import pytest

from headwater.creek.types import ColumnType, Form, column_type
from headwater.postgres.types import Kind, PgType
from tests.support.creek.avro_reference import NUMERIC_10_5, OIDS, TYPES

SUPPORTED = {
    "bool": Form.BOOLEAN,
    "char": Form.STRING,
    "varchar": Form.STRING,
    "bpchar": Form.STRING,
    "text": Form.STRING,
    "date": Form.DATE,
    "float4": Form.FLOAT,
    "float8": Form.DOUBLE,
    "int2": Form.INT,
    "int4": Form.INT,
    "int8": Form.LONG,
    "json": Form.JSON,
    "jsonb": Form.JSON,
    "time": Form.TIME,
    "timestamp": Form.TIMESTAMP,
    "timestamptz": Form.TIMESTAMP,
    "uuid": Form.UUID,
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_creeks_types_and_their_arrays_have_a_form_of_their_own(name):
    assert column_type(TYPES, OIDS[name]) == ColumnType(name, SUPPORTED[name], OIDS[name])
    array = column_type(TYPES, OIDS["_" + name])
    assert array == ColumnType("_" + name, SUPPORTED[name], OIDS[name], is_array=True)
    assert array.can_misfit


def test_all_other_types_are_text():
    ours = {*SUPPORTED, *("_" + name for name in SUPPORTED), "numeric", "_numeric"}
    others = {type_.name: column_type(TYPES, type_.oid) for type_ in TYPES.values() if type_.name not in ours}
    assert {"bytea", "inet", "interval", "int4range", "_bytea", "xml", "oid", "money", "int2vector"} <= set(others)
    assert {(each.pg_type, each.form, each.is_array, each.can_misfit) for each in others.values()} == {
        ("text", Form.STRING, False, False)
    }


def test_types_of_users_are_text_even_if_they_stand_on_creeks():
    own = [
        PgType(oid=90001, schema="public", name="amount", kind=Kind.DOMAIN, base=OIDS["int4"]),
        PgType(oid=90002, schema="public", name="mood", kind=Kind.ENUM),
        PgType(oid=90003, schema="public", name="_amount", kind=Kind.ARRAY, element=90001),
        PgType(oid=90004, schema="public", name="int4"),
    ]
    types = TYPES.extended(own)
    for oid in (90001, 90002, 90003, 90004, 99999):
        assert column_type(types, oid) == ColumnType("text", Form.STRING, oid)


@pytest.mark.parametrize(
    ("precision", "scale", "form"),
    [
        (10, 5, Form.DECIMAL),
        (10, 0, Form.DECIMAL),
        (1000, 1000, Form.DECIMAL),
        (1, 0, Form.DECIMAL),
        (5, -2, Form.NUMERIC),
        (3, 5, Form.NUMERIC),
    ],
)
def test_a_numeric_with_a_scale_that_is_none_in_avro_is_bytes(precision, scale, form):
    typmod = ((precision << 16) | (scale & 0x7FF)) + 4
    found = column_type(TYPES, OIDS["numeric"], typmod)
    expected = (precision, scale) if form is Form.DECIMAL else (0, 0)
    assert (found.form, found.precision, found.scale) == (form, *expected)
    assert found.can_misfit


def test_a_numeric_without_limits_is_bytes_that_hold_nothing():
    assert column_type(TYPES, OIDS["numeric"]).form is Form.NUMERIC
    assert column_type(TYPES, OIDS["_numeric"]).form is Form.NUMERIC
    array = column_type(TYPES, OIDS["_numeric"], NUMERIC_10_5)
    assert (array.form, array.precision, array.scale, array.is_array) == (Form.DECIMAL, 10, 5, True)


def test_only_forms_without_room_for_all_values_can_misfit():
    scalars = {name: column_type(TYPES, OIDS[name]).can_misfit for name in (*SUPPORTED, "numeric")}
    assert {name for name, can in scalars.items() if can} == {"timestamp", "timestamptz", "numeric"}
