"""The options of a stream: checked before anything starts, each error with what to write instead."""

import pytest

from headwater.errors import SettingsError
from headwater.spark.settings import MIB, LaneRule
from headwater.spark.shape import Shape
from headwater.spark.sources.options import parse_options
from headwater.spark.sources.protect import Protection

LEAST = {"url": "postgresql://me:secret@localhost/shop", "slot": "shop"}


def test_url_and_slot_are_enough():
    options = parse_options(LEAST)
    assert (options.publication, options.tables, options.shape) == ("shop", (), Shape.ENVELOPE)
    assert (options.lanes, options.lane_by) == (4, LaneRule.TABLE)
    assert (options.max_rows, options.max_bytes, options.streaming) == (None, 16 * MIB, True)
    assert options.protection == Protection()


def test_names_are_known_in_any_case_as_spark_hands_them_on():
    given = {**LEAST, "LANEBY": "key", "maxrowspertrigger": "7", "spilldirectory": "/tmp"}
    options = parse_options(given)
    assert (options.lane_by, options.max_rows, options.spill_directory) == (LaneRule.KEY, 7, "/tmp")


def test_a_list_of_tables_may_have_blanks_and_quoted_commas():
    options = parse_options({**LEAST, "tables": ' orders, sales.*,"a, b" , public."x""y",'})
    assert options.tables == ("orders", "sales.*", '"a, b"', 'public."x""y"')


def test_the_table_of_shape_table_is_made_sure_to_be_published():
    options = parse_options({**LEAST, "shape": "table", "table": "public.orders"})
    assert (options.table, options.tables) == ("public.orders", ("public.orders",))


def test_what_is_to_be_protected():
    options = parse_options({**LEAST, "mask": '{"a.b.c": "-"}', "hash": "a.b.d,a.b.e", "salt": "s"})
    assert options.protection == Protection({"a.b.c": "-"}, frozenset({"a.b.d", "a.b.e"}), "s")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"slot": None}, "needs the option 'slot'"),
        ({"url": ""}, "needs the option 'url'"),
        ({"slot": "My Slot"}, "cannot be a slot's name"),
        ({"lane": "4"}, "no option 'lane'; did you mean 'lanes'"),
        ({"laneby_": "key"}, "did you mean 'laneBy'"),
        ({"maxRowsPerTriger": "4"}, "did you mean 'maxRowsPerTrigger'"),
        ({"zzz": "4"}, "no option 'zzz'; there are url, slot"),
        ({"lanes": "0"}, "option `lanes` is '0', and has to be a whole number, between 1 and 256"),
        ({"lanes": "257"}, "between 1 and 256"),
        ({"lanes": "many"}, "has to be a whole number"),
        ({"laneBy": "row"}, "option `laneBy` is 'row', and has to be one of table, key"),
        ({"shape": "rows"}, "one of envelope, table, wire"),
        ({"shape": "table"}, "go together"),
        ({"table": "orders"}, "go together"),
        ({"maxRowsPerTrigger": "-1"}, "at least 0"),
        ({"maxBytesPerTrigger": "1"}, "between 65536 and 67108864"),
        ({"maxBytesPerTrigger": "1000000000"}, "between 65536 and 67108864"),
        ({"streaming": "perhaps"}, "option `streaming` is 'perhaps', and has to be true or false"),
        ({"mask": "{"}, "option `mask` is a JSON object"),
        ({"mask": '["a.b.c"]'}, "option `mask` is a JSON object"),
        ({"mask": '{"a.b.c": 5}'}, "option `mask` is a JSON object of texts"),
        ({"mask": '{"phone": "-"}'}, "'phone' names no column; write it as schema.table.column"),
        ({"hash": "b.c"}, "'b.c' names no column"),
        ({"shape": "wire", "hash": "a.b.c"}, "work on shape `envelope` alone"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_option_is_refused_and_says_what_is_right(given, said):
    merged = {name: value for name, value in {**LEAST, **given}.items() if value is not None}
    with pytest.raises(SettingsError) as caught:
        parse_options(merged)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_password_is_not_shown():
    assert "secret" not in repr(parse_options({**LEAST, "salt": "secret", "hash": "a.b.c"}))
