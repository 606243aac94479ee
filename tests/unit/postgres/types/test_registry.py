"""The set of types: what is known from the start, what a catalog adds, and how a domain is seen through."""

import pickle

import pytest

from headwater.postgres.types import Field, Kind, PgType, Types, to_json, to_python

NUMERIC = 1700


def domain(oid: int, base: int, base_typmod: int = -1) -> PgType:
    return PgType(oid=oid, schema="public", name=f"d{oid}", kind=Kind.DOMAIN, base=base, base_typmod=base_typmod)


def test_every_builtin_type_is_known_by_its_oid():
    types = Types.builtin()
    assert (types[16].name, types[20].name, types[1184].name) == ("bool", "int8", "timestamptz")
    assert types[1007] == PgType(oid=1007, schema="pg_catalog", name="_int4", kind=Kind.ARRAY, element=23)
    assert (types[3904].kind, types[3904].element) == (Kind.RANGE, 23)
    assert (types[4451].kind, types[4451].element) == (Kind.MULTIRANGE, 3904)


def test_elements_of_builtin_types_are_builtin_types_but_for_cstring():
    types = Types.builtin()
    assert {type_.name for type_ in types.values() if type_.element and type_.element not in types} == {"_cstring"}


def test_only_boxes_are_parted_by_something_else_than_a_comma():
    types = Types.builtin()
    assert {type_.name for type_ in types.values() if type_.delimiter != ","} == {"box", "_box"}


def test_domain_over_domain_stands_for_the_type_below_with_its_typmod():
    types = Types.builtin().extended([domain(1, 2), domain(2, NUMERIC, 655366)])
    type_, typmod = types.resolve(1)
    assert (type_.name, typmod) == ("numeric", 655366)


def test_typmod_of_the_column_wins_over_the_domains():
    types = Types.builtin().extended([domain(1, NUMERIC, 655366)])
    assert types.resolve(1, 786438)[1] == 786438


def test_unknown_oid_and_domain_over_unknown_oid_stay_text():
    types = Types.builtin().extended([domain(1, 999_999)])
    for oid in (999_999, 1):
        assert types.resolve(oid)[0].name == ""
        assert to_python(types, oid)("{any thing}") == "{any thing}"
        assert to_json(types, oid)('say "x"') == r'"say \"x\""'


def test_extended_makes_a_new_value_in_which_the_given_types_win():
    types = Types.builtin()
    renamed = PgType(oid=16, schema="public", name="other")
    extended = types.extended([renamed, domain(1, 16)])
    assert (types[16].name, extended[16]) == ("bool", renamed)
    assert 1 in extended
    assert 1 not in types


def test_type_of_an_extension_with_a_builtins_name_is_not_taken_for_it():
    types = Types.builtin().extended([PgType(oid=50_000, schema="ext", name="int4")])
    assert to_python(types, 50_000)("ten") == "ten"


def test_converter_is_compiled_once_for_a_set_of_types():
    types = Types.builtin()
    assert to_python(types, 1007) is to_python(types, 1007)
    assert to_python(types, 1007) is not to_python(types.extended([]), 1007)


def test_types_pickle_without_what_was_compiled():
    composite = PgType(oid=7, schema="public", name="pair", kind=Kind.COMPOSITE, fields=(Field("a", 23), Field("b", 25)))
    types = Types.builtin().extended([composite])
    to_python(types, 7)
    copy = pickle.loads(pickle.dumps(types))
    assert copy == types
    assert to_python(copy, 7)("(1,x)") == {"a": 1, "b": "x"}


def test_asking_for_an_unknown_oid_by_index_is_a_key_error():
    with pytest.raises(KeyError):
        Types.builtin()[999_999]
