"""User-made types are known by the time their values are decoded, also those made while capture runs."""

from headwater.capture import Capture, CatalogTypes
from headwater.model import Change
from headwater.postgres.replication import decode_columns, decode_rows
from tests.capturing import prepare, settings, take


def test_types_made_while_capture_runs_are_read_from_the_catalog(any_database):
    with prepare(any_database) as connection, Capture(settings(any_database)) as capture:
        types = CatalogTypes(any_database)
        connection.execute("insert into item values (1)")
        first = take(capture)
        types.of(first)
        connection.execute("create type pair as (x int, y text)")
        connection.execute("create domain positive as int check (value > 0)")
        connection.execute("alter table item add p pair, add d positive, add l pair[]")
        connection.execute("""insert into item values (2, 'v', (1, 'a'), 7, array[(2, 'b')::pair])""")
        batch = take(capture)
        (change,) = [c for c in decode_rows(batch, types.of(batch)) if isinstance(c, Change)]
        (group,) = decode_columns(batch, types.of(batch))
    assert change.after == {"id": 2, "v": "v", "p": {"x": 1, "y": "a"}, "d": 7, "l": [{"x": 2, "y": "b"}]}
    assert group.after.to_pylist() == [{"id": 2, "v": "v", "p": '{"x":1,"y":"a"}', "d": 7, "l": '[{"x":2,"y":"b"}]'}]


def test_a_type_that_is_gone_from_the_catalog_is_read_as_text(database):
    with prepare(database, "create type pair as (x int, y text)", "alter table item add p pair") as connection:
        connection.execute("insert into item values (1, 'v', (1, 'a'))")
        connection.execute("drop type pair cascade")
        with Capture(settings(database)) as capture:
            batch = take(capture)
            (change,) = [c for c in decode_rows(batch, CatalogTypes(database).of(batch)) if isinstance(c, Change)]
    assert change.after["p"] == "(1,a)"
