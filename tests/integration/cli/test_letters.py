"""`headwater letters` against a real state database, and sinks of each kind."""

import io
import json
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import psycopg
import pyarrow.parquet as pq
import pytest

from headwater.cli.app import run
from headwater.cli.lines import json_line
from headwater.postgres.connect import connect_sync
from headwater.spark.letters import letter_at, list_letters, prepare_letters, save_letters, supersede
from headwater.spark.settings import PostgresSinkSettings
from headwater.spark.sinks.postgres import PostgresSink
from tests.conformance.sink_frames import Delivery, capture
from tests.support.servers.embedded import fresh_database
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(60)

FILE = """
name = "shop"
[source]
url = "{source}"
tables = ["item"]
slot = "hw"
publication = "pub"
[[sinks]]
type = "postgres"
name = "replica"
url = "{target}"
[[sinks]]
type = "parquet"
name = "files"
path = "{path}"
[[sinks]]
type = "console"
name = "console"
[[sinks]]
type = "noop"
name = "nowhere"
"""


@dataclass(frozen=True)
class Shop:
    """A pipeline that has run: its file, its databases, and the changes of its table."""

    file: Path
    source: str
    target: str
    files: Path
    delivery: Delivery

    def keep(self, sink: str, *numbers: int, reason: str = "it does not fit", pipeline: str = "shop") -> list[int]:
        """Letters of some changes; returns their ids."""
        places = [self.delivery.changes[n].position for n in numbers]
        frames = [self.delivery.frame_at(place) for place in places]
        made = [
            letter_at(frame, place, reason, pipeline=pipeline, sink=sink)
            for frame, place in zip(frames, places, strict=True)
        ]
        with closing(connect_sync(self.source)) as state:
            save_letters(state, made)
            ids = {letter.event_id: letter.id for letter in list_letters(state, sink=sink, pipeline=pipeline)}
        return [ids[letter.event_id] for letter in made]

    def states(self) -> dict[int, str]:
        with closing(connect_sync(self.source)) as state:
            return {letter.id: letter.state for letter in list_letters(state)}

    def rows(self) -> list[tuple[object, ...]]:
        with psycopg.connect(self.target) as connection:
            return connection.execute("select id, v from item order by id").fetchall()


@pytest.fixture
def shop(tmp_path, database, postgres18):
    statements = [
        "insert into item values (1, 'first')",
        "update item set v = 'second' where id = 1",
        "insert into item values (2, 'two')",
    ]
    delivery = capture(
        database, statements, tables=("item",), setup=("create table item (id int primary key, v text, note text)",)
    )
    prepare_letters(database)
    with fresh_database(postgres18.url) as target:
        file = tmp_path / "headwater.toml"
        file.write_text(FILE.format(source=database, target=target, path=tmp_path / "files"))
        sink = PostgresSink(
            PostgresSinkSettings(name="replica", url=target),
            pipeline="shop",
            source_url=database,
            state_url=database,
            tables=("item",),
        )
        with closing(sink):
            sink.open()
        yield Shop(file, database, target, tmp_path / "files", delivery)


@pytest.fixture
def letters(headwater, shop):
    """Run `headwater letters` on the file of the shop."""
    return lambda command, *arguments: headwater("letters", command, *arguments, "--file", str(shop.file))


def test_letters_are_listed_with_what_they_are_about(letters, shop):
    (id,) = shop.keep("files", 1)

    code, output, errors = letters("list")

    assert (code, errors) == (0, "")
    header, line = output.splitlines()
    assert header.split()[:6] == ["id", "state", "sink", "table", "op", "position"]
    assert line.split()[:5] == [str(id), "open", "files", "public.item", "u"]
    assert line.endswith('{"id": 1}  it does not fit')


def test_a_list_can_be_narrowed_and_read_by_programs(letters, headwater, shop):
    shop.keep("files", 0, 1)
    shop.keep("console", 2)
    shop.keep("files", 2, pipeline="elsewhere")

    def keys(*arguments: str) -> list[object]:
        code, output, errors = letters("list", "--json", *arguments)
        assert (code, errors) == (0, "")
        return [letter["key"] for letter in json.loads(output)]

    assert keys() == [{"id": 2}, {"id": 1}, {"id": 1}]
    assert keys("--sink", "files") == [{"id": 1}, {"id": 1}]
    assert keys("--table", "public.item", "--sink", "console") == [{"id": 2}]
    assert keys("--pipeline", "elsewhere") == [{"id": 2}]
    assert keys("--state", "replayed") == []
    code, output, _ = headwater("letters", "list", "--json", "--url", shop.source)
    assert (code, len(json.loads(output))) == (0, 4)


def test_nothing_to_list_is_said(letters):
    assert letters("list") == (0, "no dead letters\n", "")


def test_a_letter_is_shown_with_its_row_and_its_reason(letters, shop):
    (id,) = shop.keep("files", 1, reason="column 'v' is too odd")

    code, output, errors = letters("show", str(id))
    shown = json.loads(letters("show", str(id), "--json")[1])

    assert (code, errors) == (0, "")
    assert "column 'v' is too odd" in output
    assert '{"id": 1, "v": "second", "note": null}' in output
    change = shop.delivery.changes[1]
    assert shown["after"] == {"id": 1, "v": "second", "note": None}
    assert shown["event_id"] == shop.delivery.frames[0].lineage.event_id(change.position)
    assert (shown["position"], shown["state"], shown["op"]) == (str(change.position), "open", "u")


def test_a_letter_of_the_postgres_sink_is_applied(letters, shop):
    (id,) = shop.keep("replica", 0)

    code, output, errors = letters("replay", str(id))

    assert (code, output, errors) == (0, "", f"letter {id}: replayed\n")
    assert shop.rows() == [(1, "first")]
    assert shop.states() == {id: "replayed"}


def test_a_letter_of_the_parquet_sink_is_added_once(letters, shop):
    (id,) = shop.keep("files", 2)

    assert letters("replay", str(id))[0] == 0
    again = letters("replay", str(id))

    (file,) = shop.files.glob("public.item/*/*")
    assert pq.ParquetFile(file).read().select(["id", "v", "_op"]).to_pylist() == [{"id": 2, "v": "two", "_op": "c"}]
    assert again[0] == 1
    assert f"letter {id}: it was replayed before" in again[2]


def test_a_letter_of_the_console_sink_is_printed(letters, shop):
    (id,) = shop.keep("console", 2)

    code, output, _ = letters("replay", str(id))

    assert (code, output) == (0, json_line(shop.delivery.changes[2], shop.delivery.frames[0].lineage) + "\n")


def test_all_open_letters_go_in_the_order_of_their_changes(letters, shop):
    newer, older = shop.keep("replica", 1, 0)

    code, _, errors = letters("replay", "--all")

    assert (code, errors) == (0, f"letter {older}: replayed\nletter {newer}: replayed\n")
    assert shop.rows() == [(1, "second")]


def test_named_letters_go_in_the_order_of_their_changes_too(letters, shop):
    newer, older = shop.keep("replica", 1, 0)

    assert letters("replay", str(newer), str(older))[0] == 0

    assert shop.rows() == [(1, "second")]


def test_a_letter_that_was_superseded_is_refused_and_brings_nothing_back(letters, shop):
    (id,) = shop.keep("replica", 0)
    with closing(connect_sync(shop.source)) as state:
        supersede(state, [id])
    with psycopg.connect(shop.target) as target:
        target.execute("insert into item values (1, 'newer')")

    code, _, errors = letters("replay", str(id))

    assert code == 1
    assert "a later change of the same row was delivered since, and replaying this one would bring back" in errors
    assert shop.rows() == [(1, "newer")]
    assert shop.states() == {id: "superseded"}


def test_a_letter_that_is_superseded_while_the_replay_waits_for_it_is_refused(letters, shop):
    """The sink has the letter in hand, and writes the later change before it lets go."""
    (id,) = shop.keep("replica", 0)
    results = []
    with closing(connect_sync(shop.source)) as state:
        with state.transaction():
            supersede(state, [id])
            replaying = Thread(target=lambda: results.append(run(["letters", "replay", str(id), "--file", str(shop.file)])))
            replaying.start()
            eventually(lambda: state.execute("select from pg_locks where not granted").fetchone() is not None)
            with psycopg.connect(shop.target) as target:
                target.execute("insert into item values (1, 'newer')")
        replaying.join()

    assert results == [1]
    assert shop.rows() == [(1, "newer")]


def test_a_row_is_not_put_over_a_newer_one_by_replaying_letters_in_the_wrong_order(letters, shop):
    newer, older = shop.keep("replica", 1, 0)

    code, _, errors = letters("replay", str(newer))

    assert code == 1
    assert f"letter {older} is older and of the same row; replay or drop it first" in errors
    assert (shop.rows(), shop.states()) == ([], {newer: "open", older: "open"})
    assert letters("drop", str(older), "--yes")[0] == 0
    assert letters("replay", str(newer))[0] == 0
    assert shop.rows() == [(1, "second")]


def test_one_that_fails_again_stays_open_and_the_others_go_on(letters, shop):
    bad, good = shop.keep("replica", 0, 2)
    with psycopg.connect(shop.target) as target:
        target.execute("alter table item add check (v <> 'first')")

    code, _, errors = letters("replay", "--all")

    assert code == 1
    assert f"letter {good}: replayed" in errors
    assert "1 of the letters stay as they are" in errors
    assert shop.states() == {bad: "open", good: "replayed"}
    assert shop.rows() == [(2, "two")]


@pytest.mark.parametrize(("answer", "code", "is_left"), [("y\n", 0, False), ("n\n", 1, True), ("", 1, True)])
def test_letters_are_dropped_only_after_a_yes(letters, shop, monkeypatch, answer, code, is_left):
    (id,) = shop.keep("files", 0)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))

    done, _, errors = letters("drop", str(id))

    assert done == code
    assert "Drop 1 letters, 1 of them open?" in errors
    assert (id in shop.states()) is is_left


def test_letters_that_are_not_there_are_named(letters):
    for command in (("show", "7"), ("drop", "7", "--yes"), ("replay", "7")):
        code, _, errors = letters(*command)
        assert code == 1
        assert "there is no letter 7; `headwater letters list` shows which there are" in errors


def test_a_letter_of_another_pipeline_or_of_no_sink_is_refused(letters, shop):
    (foreign,) = shop.keep("files", 0, pipeline="elsewhere")
    (orphan,) = shop.keep("gone", 0)
    (pointless,) = shop.keep("nowhere", 0)

    code, _, errors = letters("replay", str(foreign), str(orphan), str(pointless))

    assert code == 1
    assert "it is of pipeline 'elsewhere'; name the file of that one with --file" in errors
    assert "pipeline 'shop' has no sink 'gone' any more" in errors
    assert "it takes every change, so there is nothing to replay" in errors


@pytest.mark.parametrize("arguments", [("replay",), ("replay", "1", "--all"), ("list", "--state", "lost")])
def test_wrong_usage_is_refused(letters, arguments):
    assert letters(*arguments)[0] == 2


def test_a_database_without_the_state_of_a_pipeline_is_said(headwater, shop):
    code, _, errors = headwater("letters", "list", "--url", shop.target)

    assert code == 2
    assert "does not hold the state of a pipeline that has run" in errors


def test_a_file_and_a_url_together_are_refused(letters, shop):
    code, _, errors = letters("list", "--url", shop.source)

    assert code == 2
    assert "name a pipeline file or a URL, not both" in errors
