"""`headwater tables` and `headwater snapshot` against a real state database; the pipeline itself need not run for it."""

import json
from contextlib import closing
from threading import Thread

import pytest

from headwater.capture.tables import Progress, Reading, TableStore, prepare_tables
from headwater.errors import SourceError
from headwater.model import Lsn
from headwater.postgres.connect import connect_sync
from headwater.spark.feed import build_feed
from headwater.spark.settings import ChangesSettings, NoopSinkSettings, PipelineSettings
from tests.support.waiting import eventually


@pytest.fixture
def source(database):
    with closing(connect_sync(database)) as connection:
        for table in ("orders", "customers", "refunds"):
            connection.execute(f"create table {table} (id int primary key)")
        connection.execute("create view report as select * from orders")
        connection.execute('create table "Order Items" (id int primary key)')
        yield connection


@pytest.fixture
def file(source, database, tmp_path):
    path = tmp_path / "shop.toml"
    path.write_text(
        f'name = "shop"\n[source]\nurl = "{database}"\ntables = ["orders", "customers"]\n[[sinks]]\ntype = "noop"\n'
    )
    return f"--file={path}"


@pytest.fixture
def store(database):
    prepare_tables(database)
    with closing(TableStore(database, "shop")) as store:
        store.enlist([("public", "orders"), ("public", "customers")], "streaming", "initial")
        yield store


def _states(store):
    return {table.name: (table.state, table.is_added) for table in store.tables()}


def test_a_pipeline_that_has_not_run_has_no_tables_yet(headwater, file):
    assert headwater("tables", file) == (0, "pipeline shop has not run yet, so nothing is known of its tables\n", "")


def test_tables_are_listed_with_their_state_and_trouble(headwater, file, store):
    store.request(("public", "orders"))
    store.save_progress("a", [Progress(("public", "orders"), 2, 5, 1000)])
    store.save_error(("public", "customers"), "it is locked")
    code, out, _ = headwater("tables", file)
    assert code == 0
    assert out.splitlines()[1:] == [
        "public.customers  followed                    it is locked",
        "public.orders     being read (2 of 5 pieces)",
    ]
    code, out, _ = headwater("tables", "list", "--json", file)
    assert [(table["name"], table["state"], table["pieces_done"]) for table in json.loads(out)] == [
        ("customers", "streaming", 0),
        ("orders", "wanted", 2),
    ]


def test_a_table_is_added_and_taken_out_by_name_or_pattern(headwater, file, store):
    assert headwater("tables", "add", "refunds", '"Order Items"', file)[0] == 0
    assert _states(store)["refunds"] == ("wanted", True)
    assert _states(store)["Order Items"] == ("wanted", True)
    code, out, _ = headwater("tables", "remove", "public.re*", file)
    assert (code, out) == (0, "public.refunds: taken out\n")
    assert _states(store)["refunds"] == ("left", True)


def test_a_table_is_asked_for_again_and_only_one_that_the_pipeline_has(headwater, file, store):
    before = next(table.request for table in store.tables() if table.name == "orders")
    assert headwater("snapshot", "orders", file)[:2] == (0, "public.orders: will be read as a whole\n")
    (orders,) = [table for table in store.tables() if table.name == "orders"]
    assert (orders.state, orders.request) == ("wanted", before + 1)
    code, out, err = headwater("snapshot", "refunds", file)
    assert (code, out) == (2, "")
    assert err == "error: pipeline shop has no table public.refunds; add it with `headwater tables add public.refunds`\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("tables", "add", "ordres"), 1, "table ordres does not exist; did you mean public.orders?"),
        (("tables", "add", "report"), 2, "public.report has no changes in the WAL: it is a view, or unlogged; name a table"),
        (("tables", "remove", "nothing"), 2, "pipeline shop has no table nothing; `headwater tables` lists them"),
        (("tables", "add", "a.b.c.d"), 2, "not a table name"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(headwater, file, store, arguments, code, said):
    found, out, err = headwater(*arguments, file)
    assert (found, out) == (code, "")
    assert said in err
    assert len(err.splitlines()) == 1


def test_waiting_tells_what_is_in_the_way_and_ends_when_the_rows_are_there(headwater, file, store, database):
    answers = []
    waiting = Thread(target=lambda: answers.append(headwater("tables", "add", "refunds", "--wait", file)))
    waiting.start()
    with closing(TableStore(database, "shop")) as other:
        eventually(lambda: _states(other).get("refunds") == ("wanted", True))
        other.save_error(("public", "refunds"), "another session has locked it")
        other.save_progress("a", [Progress(("public", "refunds"), 1, 2, 10)])
        assert waiting.is_alive()
        (refunds,) = [table for table in other.tables() if table.name == "refunds"]
        other.save_loaded(Reading("a", [refunds.key], [refunds.request], [None], "3:4:", Lsn(5)))
    waiting.join(timeout=15)
    ((code, out, err),) = answers
    assert (code, out) == (0, "public.refunds: added\n")
    assert "pipeline shop does not run; waiting until it does" in err


def test_a_request_that_comes_while_its_table_is_read_is_not_taken_for_done(store):
    (orders,) = [table for table in store.tables() if table.name == "orders"]
    store.request(orders.key)
    store.save_loaded(Reading("a", [orders.key], [orders.request], [None], "3:4:", Lsn(5)))
    assert _states(store)["orders"][0] == "wanted"


def test_a_run_that_ends_with_a_table_unread_says_so(store, database, tmp_path):
    settings = PipelineSettings(
        name="shop",
        source=ChangesSettings(url=database, tables=("orders",), slot="shop", publication="shop"),
        sinks=(NoopSinkSettings(name="noop"),),
        checkpoint=str(tmp_path),
        state_url=database,
    )
    build_feed(settings).require_all_read()
    store.request(("public", "orders"))
    store.save_error(("public", "orders"), "role x may not read it")
    with pytest.raises(SourceError, match=r"table public\.orders could not be read: role x may not read it"):
        build_feed(settings).require_all_read()
