"""User-made types are known by the time their values are decoded, also those made while capture runs."""

from unittest.mock import patch

import pytest

from headwater.capture import Capture, CatalogTypes, catalog_types
from headwater.errors import ConnectionLost
from headwater.model import Change
from headwater.postgres.catalog import load_types
from headwater.postgres.replication import decode_columns, decode_rows
from headwater.postgres.replication.batch import Batch
from tests.support.capture.captured_database import prepare, row_after, settings, take


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
    assert group.after is not None
    assert group.after.to_pylist() == [{"id": 2, "v": "v", "p": '{"x":1,"y":"a"}', "d": 7, "l": '[{"x":2,"y":"b"}]'}]


def test_an_altered_composite_is_text_at_first_and_has_its_new_fields_after_a_while(any_database):
    now = [0.0]
    prepared = prepare(any_database, "create type address as (street text, n int)", "alter table item add a address")
    with prepared as connection, Capture(settings(any_database)) as capture:
        types = CatalogTypes(any_database, clock=lambda: now[0])

        def written(value: str) -> list[object]:
            connection.execute("insert into item select max(id) + 1, 'v', %s::address from item", [value])
            batch = take(capture)
            rows = [c.after["a"] for c in decode_rows(batch, types.of(batch)) if isinstance(c, Change) and c.after]
            (group,) = decode_columns(batch, types.of(batch))
            assert group.after is not None
            return [*rows, *group.after.column("a").to_pylist()]

        connection.execute("insert into item values (1, 'v', ('High St', 1))")
        take(capture)
        assert written("(High St,1)") == [{"street": "High St", "n": 1}, '{"street":"High St","n":1}']
        connection.execute("alter type address drop attribute n")
        connection.execute("alter type address add attribute town text")
        assert written("(High St,Leeds)") == ['("High St",Leeds)', '"(\\"High St\\",Leeds)"']
        now[0] += 60
        assert written("(High St,Leeds)")[0] == {"street": "High St", "town": "Leeds"}
        connection.execute("alter type address rename attribute town to city")
        now[0] += 60
        assert written("(High St,Leeds)")[0] == {"street": "High St", "city": "Leeds"}


def test_a_table_that_is_described_again_has_its_types_read_again(database):
    with prepare(database, "create type pair as (x int)", "alter table item add p pair") as connection:
        with Capture(settings(database)) as capture:
            types = CatalogTypes(database, clock=lambda: 0.0)
            connection.execute("insert into item values (1, 'v', row(1))")
            types.of(take(capture))
            connection.execute("alter type pair rename attribute x to y")
            connection.execute("alter table item add other int")
            connection.execute("insert into item values (2, 'v', row(1))")
            batch = take(capture)
            (change,) = [c for c in decode_rows(batch, types.of(batch)) if isinstance(c, Change)]
    assert row_after(change)["p"] == {"y": 1}


def test_types_are_waited_for_when_the_server_is_away_for_a_moment(database):
    batch = _batch_with_own_type(database)
    waits: list[float] = []
    failures: list[int] = []

    def fail_twice(connection, oids):
        if len(failures) < 2:
            failures.append(1)
            connection.execute("select pg_terminate_backend(pg_backend_pid())")
        return load_types(connection, oids)

    with patch.object(catalog_types, "load_types", fail_twice):
        types = CatalogTypes(database, wait=waits.append).of(batch)
    assert len(waits) == 2
    assert "pair" in {type_.name for type_ in types.values()}


def test_a_server_that_stays_away_is_an_error_only_for_types_that_are_not_known(database):
    batch, now = _batch_with_own_type(database), [0.0]
    waits: list[float] = []
    types = CatalogTypes(database, wait=waits.append, clock=lambda: now[0])
    known = types.of(batch)
    away = patch.object(catalog_types, "load_types", side_effect=ConnectionLost("the server is away"))
    now[0] += 60
    with away:
        assert types.of(batch) is known
        with pytest.raises(ConnectionLost, match="is away"):
            CatalogTypes(database, wait=waits.append).of(batch)
    assert 2 < len(waits) < 20


def _batch_with_own_type(url: str) -> Batch:
    with prepare(url, "create type pair as (x int)", "alter table item add p pair") as connection:
        connection.execute("insert into item values (1, 'v', row(1))")
        with Capture(settings(url)) as capture:
            return take(capture)


def test_a_type_that_is_gone_from_the_catalog_is_read_as_text(database):
    with prepare(database, "create type pair as (x int, y text)", "alter table item add p pair") as connection:
        connection.execute("insert into item values (1, 'v', (1, 'a'))")
        connection.execute("drop type pair cascade")
        with Capture(settings(database)) as capture:
            batch = take(capture)
            (change,) = [c for c in decode_rows(batch, CatalogTypes(database).of(batch)) if isinstance(c, Change)]
    assert row_after(change)["p"] == "(1,a)"
