"""Pipelines that end in NATS JetStream: what arrives there, in which order, under which schemas, and what goes wrong."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from threading import Event, Thread

import pytest

from headwater.brokers.nats.access import NatsAccess
from headwater.brokers.nats.link import Link
from headwater.brokers.nats.streams import StreamLimits, call, ensure_stream, stream_info
from headwater.creek.names import Generation, Kind, Names
from headwater.creek.store import find_schema
from headwater.embedded import EmbeddedNats, NatsSettings
from headwater.errors import IdentityMissing, SinkError, SinkUnavailable
from headwater.postgres.connect import Connection, connect_sync
from headwater.postgres.replication.publication import find_publication
from headwater.spark.letters import find_letter, list_letters
from headwater.spark.pipeline import Pipeline, prepare
from headwater.spark.settings import (
    ChangesSettings,
    Encoding,
    NatsSinkSettings,
    PipelineSettings,
    SnapshotRule,
    TransformSettings,
)
from headwater.spark.sinks.build import build_sinks
from headwater.spark.sinks.nats import NatsSink
from headwater.spark.sinks.replay import replay
from tests.support.brokers.nats_streams import fresh_namespace, json_changes, known_stream, schemas, stored, wal, whole
from tests.support.servers.embedded import fresh_database, shared_root
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(300)

# More than one packet of a server with the usual limit.
LARGE = 3_000_000
QUICK = timedelta(seconds=2)


@pytest.fixture
def access(nats: EmbeddedNats) -> NatsAccess:
    return NatsAccess(url=nats.url)


@pytest.fixture
def source(database: str) -> Iterator[Connection]:
    with closing(connect_sync(database)) as connection:
        connection.execute("create table item (id int primary key, name text, amount numeric(10,2), free numeric)")
        connection.execute("alter table item alter column name set storage external")
        connection.execute("create table quiet (id int primary key, at timestamptz)")
        yield connection


@pytest.fixture
def settings(database, tmp_path, access, source):
    del source
    return pipeline_of(database, tmp_path, access)


def pipeline_of(database, tmp_path, access, name="shop", **sink):
    slot = f"{name}_{database.rpartition('_')[2][:16]}"
    sink = {"namespace": fresh_namespace(), **sink}
    return PipelineSettings(
        name=slot,
        source=ChangesSettings(
            url=database, tables=("public.*",), slot=slot, publication=name, snapshot=SnapshotRule.NEVER, lanes=2
        ),
        sinks=(NatsSinkSettings(name="nats", access=access, **sink),),
        checkpoint=str(tmp_path / f"checkpoint-{name}"),
        state_url=database,
    )


def with_source(settings, **changed):
    return replace(settings, source=replace(settings.source, **changed))


def with_sink(settings, **changed):
    return replace(settings, sinks=(replace(settings.sinks[0], **changed),))


def names_of(settings) -> Names:
    sink = settings.sinks[0]
    with closing(connect_sync(settings.source.url)) as connection:
        return Names(sink.namespace, connection.info.dbname, sink.generation)


def run_once(spark, settings) -> Pipeline:
    pipeline = Pipeline(spark, settings, build_sinks(settings), Event())
    pipeline.run(once=True)
    return pipeline


@contextmanager
def running(spark, settings):
    """The pipeline in a thread, with its slot made before, until the block ends; whatever it raises fails the test."""
    prepare(settings)
    stopping, failed = Event(), []
    pipeline = Pipeline(spark, settings, build_sinks(settings), stopping)

    def run():
        try:
            pipeline.run()
        except BaseException as exc:  # noqa: BLE001 - it is raised below
            failed.append(exc)

    thread = Thread(target=run)
    thread.start()
    try:
        yield pipeline
    finally:
        stopping.set()
        thread.join(60)
    assert not failed, failed


def rows_of(settings, table=None):
    return wal(settings.sinks[0].access, names_of(settings), table)


class FailingSink:
    """Behind another one: what that one has delivered is not confirmed, and comes again."""

    name = "fails"

    def open(self) -> None: ...

    def close(self) -> None: ...

    def write(self, batch, shape, span):
        raise SinkError(self.name, "not today")


@pytest.mark.parametrize("generation", Generation)
def test_every_change_arrives_in_order_once_with_its_schema_before_it(spark, settings, source, access, generation):
    settings = with_sink(settings, generation=generation)
    names = names_of(settings)
    prepare(settings)
    source.execute("insert into item select g, 'n' || g, g, null from generate_series(1, 500) g")
    with source.cursor().copy("copy item (id, name) from stdin") as copy:
        for number in range(501, 601):
            copy.write_row((number, "copied"))
    source.execute("update item set name = 'new' where id <= 10")
    source.execute("update item set id = -1 where id = 11")
    source.execute("delete from item where id = 12")
    source.execute("truncate item, quiet")
    source.execute("insert into item values (1, 'after', 1.5, null)")

    pipeline = run_once(spark, settings)

    item = rows_of(settings, "public.item")
    expected = ["c"] * 600 + ["u"] * 10 + ["u_pk", "d", "t", "c"]
    assert [str(message.op) for message in item] == expected
    assert [(m.after or {}).get("id") for m in item[:600]] == list(range(1, 601))
    assert [str(message.op) for message in rows_of(settings, "public.quiet")] == ["t"]
    everything = rows_of(settings)
    assert len({message.id for message in everything}) == len(everything) == 615
    places = [(message.source.lsn, message.ordinal) for message in item]
    assert places == sorted(places)
    assert item[611].before == {"id": 12} and item[611].after is None
    assert (item[610].before, item[610].after["id"]) == ({"id": 11}, -1)
    assert pipeline.report.sinks["nats"].changes == 615
    with closing(Link(access)) as link:
        streams = {kind: stream_info(link, names.stream(kind)) for kind in Kind}
        assert all(info is not None for info in streams.values())
    assert sorted(one.source for one in schemas(access, names)) == ["public.item", "public.quiet"]


def test_what_comes_again_is_stored_once_and_a_restart_publishes_no_schema_again(spark, settings, source, access):
    prepare(settings)
    source.execute("insert into item (id) select generate_series(1, 300)")
    with pytest.raises(SinkError, match="not today"):
        Pipeline(spark, settings, [*build_sinks(settings), FailingSink()], Event()).run(once=True)
    shutil.rmtree(settings.checkpoint)
    source.execute("insert into item (id) values (301)")

    pipeline = run_once(spark, settings)

    assert pipeline.report.sinks["nats"].skipped == 300
    assert [message.after["id"] for message in rows_of(settings, "public.item")] == list(range(1, 302))
    assert len(schemas(access, names_of(settings))) == 2


def test_schemas_are_kept_in_the_source_and_can_be_found_by_fingerprint(spark, settings, source):
    prepare(settings)
    source.execute("insert into item (id, free) values (1, 1.5)")
    run_once(spark, settings)

    (message,) = rows_of(settings, "public.item")
    found = find_schema(source, message.fingerprint)
    assert found is not None and found.source == "public.item"


def test_a_row_that_creek_could_not_hold_goes_under_the_widened_schema_and_the_plain_one_stays_last(
    spark, settings, source, access
):
    prepare(settings)
    source.execute("insert into item (id, amount) values (1, 1.25), (2, 'NaN'), (3, 2)")
    source.execute("insert into item (id, free) values (4, 12345.678)")
    run_once(spark, settings)

    messages = rows_of(settings, "public.item")
    assert [message.after["id"] for message in messages] == [1, 2, 3, 4]
    assert str(messages[1].after["amount"]) == "NaN"
    assert str(messages[3].after["free"]) == "12345.678"
    plain, wide = messages[0].fingerprint, messages[1].fingerprint
    assert [message.fingerprint for message in messages] == [plain, wide, plain, wide]
    published = [one.fingerprint for one in schemas(access, names_of(settings)) if one.source == "public.item"]
    assert published[-1] == plain and published.count(wide) == 1


def test_rows_above_the_servers_limit_arrive_in_packets(spark, settings, source, access):
    prepare(settings)
    source.execute("insert into item (id, name) values (1, 'small'), (2, repeat('x', %s)), (3, 'small')", [LARGE])
    run_once(spark, settings)
    names = names_of(settings)

    messages = rows_of(settings, "public.item")
    packets = stored(access, names.stream(Kind.WAL))

    assert [(message.after["id"], len(message.after["name"])) for message in messages] == [(1, 5), (2, LARGE), (3, 5)]
    assert len(packets) == 5
    assert [one.headers["Nats-Msg-Id"].rpartition("-")[2] for one in packets] == ["0", "0", "1", "2", "0"]


def test_a_column_that_the_server_did_not_send_is_named_and_not_taken_for_null(spark, settings, source):
    prepare(settings)
    source.execute("insert into item (id, name) values (1, repeat('x', 5000))")
    source.execute("update item set amount = 2")
    source.execute("alter table item replica identity full")
    source.execute("update item set amount = 3")
    run_once(spark, settings)

    first, second, third = rows_of(settings, "public.item")

    assert (first.unchanged, second.unchanged, third.unchanged) == ((), ("name",), ())
    assert second.after["name"] is None
    assert third.after["name"] == "x" * 5000


def test_tables_read_as_a_whole_come_as_reads_and_then_their_changes(spark, settings, source):
    settings = with_source(settings, snapshot=SnapshotRule.INITIAL)
    source.execute("insert into item (id, name) select g, 'n' || g from generate_series(1, 100) g")
    source.execute("insert into item (id, name) select g, repeat('x', %s) from generate_series(101, 102) g", [LARGE])
    run_once(spark, settings)
    source.execute("update item set name = 'later' where id = 1")
    run_once(spark, settings)

    *read, last = rows_of(settings, "public.item")

    assert {str(message.op) for message in read} == {"r"}
    assert sorted(message.after["id"] for message in read) == list(range(1, 103))
    assert {message.after["id"]: len(message.after["name"]) for message in read}[102] == LARGE
    assert len({message.id for message in read}) == 102
    assert (str(last.op), last.after["id"]) == ("u", 1)


def test_a_table_that_is_altered_has_its_new_schema_published_before_its_next_row(spark, settings, source, access):
    prepare(settings)
    source.execute("insert into item (id) values (1)")
    source.execute("alter table item add column more int")
    source.execute("insert into item (id, more) values (2, 7)")
    run_once(spark, settings)
    source.execute("alter table item drop column more")
    source.execute("insert into item (id) values (3)")
    run_once(spark, settings)

    first, second, third = rows_of(settings, "public.item")

    assert (first.after.keys(), third.after.keys()) == ({"id", "name", "amount", "free"},) * 2
    assert second.after["more"] == 7
    published = [one.fingerprint for one in schemas(access, names_of(settings)) if one.source == "public.item"]
    assert published[-1] == third.fingerprint
    assert {first.fingerprint, second.fingerprint} <= set(published)


def test_a_message_that_the_stream_refuses_becomes_a_letter_and_the_rest_arrives(spark, settings, source, access):
    names = names_of(settings)
    with closing(Link(access)) as link:
        ensure_stream(link, names.stream(Kind.WAL), [names.stream_subject(Kind.WAL)], "small")
        config = dict(known_stream(link, names.stream(Kind.WAL)).config)
        call(link, f"STREAM.UPDATE.{names.stream(Kind.WAL)}", {**config, "max_msg_size": 10_000})
    prepare(settings)
    source.execute("insert into item (id, name) values (1, 'a'), (2, repeat('x', 50000)), (3, 'c')")

    pipeline = run_once(spark, settings)

    assert [message.after["id"] for message in rows_of(settings, "public.item")] == [1, 3]
    assert pipeline.report.sinks["nats"].letters == 1
    (letter,) = list_letters(source, pipeline=settings.name)
    assert letter.key == {"id": 2} and "NATS refused it" in letter.reason
    stored_letter = find_letter(source, letter.id)
    assert stored_letter is not None
    sink, waiting = build_sinks(settings)[0], stored_letter.letter
    with pytest.raises(SinkError, match="still cannot be published"):
        replay(sink, waiting)
    with closing(Link(access)) as link:
        call(link, f"STREAM.UPDATE.{names.stream(Kind.WAL)}", {**config, "max_msg_size": -1})

    replay(sink, waiting)

    assert [message.after["id"] for message in rows_of(settings, "public.item")] == [1, 3, 2]
    assert rows_of(settings, "public.item")[2].id == letter.event_id
    source.execute("update item set name = 'later' where id = 2")
    run_once(spark, settings)
    with pytest.raises(SinkError, match="behind them this one would bring back what was before"):
        replay(sink, waiting)


def test_a_table_without_key_is_refused_before_it_is_published_and_its_updates_go_on(spark, settings, source):
    source.execute("create table log (at int)")

    with pytest.raises(IdentityMissing, match=r"public.log has no replica identity.*alter table public.log"):
        run_once(spark, settings)

    assert find_publication(source, "shop") is None
    source.execute("insert into log values (1); update log set at = 2")


def test_a_table_that_is_named_later_and_has_no_key_is_refused_before_it_is_published(spark, settings, source):
    settings = with_source(settings, tables=("public.item",))
    run_once(spark, settings)
    source.execute("create table log (at int)")

    with pytest.raises(IdentityMissing, match=r"public\.log"):
        run_once(spark, with_source(settings, tables=("public.item", "public.log")))

    source.execute("insert into log values (1); update log set at = 2")


def test_sql_functions_add_and_remove_tables_of_a_running_producer(spark, settings, source, access):
    settings = with_source(settings, tables=("public.item",))
    names = names_of(settings)
    with running(spark, settings):
        source.execute("insert into item (id) values (1)")
        eventually(lambda: rows_of(settings, "public.item"), seconds=60)
        source.execute('create table "Odd.Name" (id int primary key)')
        source.execute("""select _creek.add_table('shop', '"Odd.Name"')""")
        # The schema is there before anybody writes to the table.
        eventually(lambda: "public.Odd.Name" in [one.source for one in schemas(access, names)])
        source.execute('insert into "Odd.Name" select generate_series(1, 10)')
        odd = names.subject(Kind.WAL, "public", "Odd.Name")
        eventually(lambda: len(stored(access, names.stream(Kind.WAL), odd)) == 10, seconds=30)
        source.execute("""select _creek.remove_table('shop', '"Odd.Name"')""")
        source.execute('insert into "Odd.Name" values (11)')
        source.execute("insert into item (id) values (2)")
        eventually(lambda: len(rows_of(settings, "public.item")) == 2, seconds=30)
        source.execute("""select _creek.add_table('shop', '"Odd.Name"')""")
        source.execute('insert into "Odd.Name" values (12)')
        eventually(lambda: len(stored(access, names.stream(Kind.WAL), odd)) == 11, seconds=30)
    assert [m.after["id"] for m in rows_of(settings) if m.source.table == "Odd.Name"] == [*range(1, 11), 12]


def test_a_table_that_is_added_while_nothing_runs_is_followed_from_its_first_change(spark, settings, source):
    settings = with_source(settings, tables=("public.item",))
    run_once(spark, settings)
    source.execute("create table late (id int primary key)")
    source.execute("select _creek.add_table('shop', 'late')")
    source.execute("insert into late values (1)")
    source.execute("select _creek.remove_table('shop', 'late')")
    source.execute("insert into late values (2)")

    run_once(spark, settings)

    assert [message.after["id"] for message in rows_of(settings, "public.late")] == [1]


def test_with_an_initial_snapshot_a_table_that_is_added_is_read_as_a_whole_and_one_that_is_removed_stays_out(
    spark, settings, source
):
    settings = with_source(settings, tables=("public.item",), snapshot=SnapshotRule.INITIAL)
    source.execute("create table late (id int primary key); insert into late values (1), (2)")
    run_once(spark, settings)
    source.execute("select _creek.add_table('shop', 'late')")
    source.execute("insert into late values (3)")
    run_once(spark, settings)
    source.execute("select _creek.remove_table('shop', 'item'); insert into item (id) values (1)")
    source.execute("insert into late values (4)")
    run_once(spark, settings)

    assert [str(message.op) for message in rows_of(settings, "public.late")] == ["r", "r", "r", "c"]
    assert rows_of(settings, "public.item") == []
    publication = find_publication(source, "shop")
    assert publication is not None and len(publication.tables) == 1


def test_two_databases_share_the_streams_of_one_server(spark, settings, source, access, postgres18, tmp_path):
    with fresh_database(postgres18.url) as second, closing(connect_sync(second)) as other:
        other.execute("create table item (id int primary key, name text)")
        beside = pipeline_of(second, tmp_path, access, "beside", namespace=settings.sinks[0].namespace)
        for each in (settings, beside):
            prepare(each)
        source.execute("insert into item (id) select generate_series(1, 10)")
        other.execute("insert into item (id) select generate_series(1, 10)")
        for each in (settings, beside):
            run_once(spark, each)

        names = names_of(settings)
        for each in (settings, beside):
            assert [message.after["id"] for message in rows_of(each, "public.item")] == list(range(1, 11))
        with closing(Link(access)) as link:
            info = known_stream(link, names.stream(Kind.WAL))
    assert info.messages == 20
    assert sorted(info.subjects) == sorted(one.stream_subject(Kind.WAL) for one in (names, names_of_url(second, names)))


def names_of_url(url, names):
    return replace(names, database=url.rpartition("/")[2].partition("?")[0])


def test_settings_of_streams_are_applied_and_what_an_operator_set_stays(spark, settings, access):
    names = names_of(settings)
    with closing(Link(access)) as link:
        ensure_stream(link, names.stream(Kind.WAL), [names.stream_subject(Kind.WAL)], "", StreamLimits(max_bytes=10**9))
    run_once(spark, with_sink(settings, limits=StreamLimits(max_msgs=5000)))

    with closing(Link(access)) as link:
        config = known_stream(link, names.stream(Kind.WAL)).config
    assert (config["max_bytes"], config["max_msgs"], config["num_replicas"]) == (10**9, 5000, 1)


def test_a_stream_that_was_deleted_is_made_again_and_a_server_that_was_away_gets_everything(
    spark, database, tmp_path, source
):
    settings = NatsSettings(root=shared_root())
    with EmbeddedNats(settings) as nats:
        pipeline = pipeline_of(database, tmp_path, NatsAccess(url=nats.url, timeout=QUICK))
        names = names_of(pipeline)
        access = pipeline.sinks[0].access
        with running(spark, pipeline) as run:
            source.execute("insert into item (id) values (1)")
            eventually(lambda: rows_of(pipeline, "public.item"), seconds=60)
            with closing(Link(access)) as link:
                call(link, f"STREAM.DELETE.{names.stream(Kind.WAL)}", {})
            source.execute("insert into item (id) values (2)")
            eventually(lambda: stored(access, names.stream(Kind.WAL)), seconds=60)
            assert [message.after["id"] for message in rows_of(pipeline, "public.item")] == [2]
            eventually(lambda: str(run.report.phase) == "running", seconds=30)


def test_refused_credentials_are_said_and_not_tried_again(spark, settings, access, nats):
    wrong = NatsAccess(url=f"nats://somebody:else@127.0.0.1:{nats.port}")
    with pytest.raises(SinkError, match=r"sink 'nats'.*127\.0\.0\.1") as raised:
        run_once(spark, with_sink(settings, access=wrong))
    assert not raised.value.retryable
    assert "else" not in str(raised.value)


def test_a_server_that_is_away_is_said_to_be(spark, settings):
    nowhere = NatsAccess(url="nats://127.0.0.1:1", timeout=QUICK)
    prepare(settings)
    sink = build_sinks(with_sink(settings, access=nowhere))[0]
    assert isinstance(sink, NatsSink)
    with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1:1"):
        sink.open()
    assert "127.0.0.1:1" in sink.check()[0]


def test_json_and_cloudevents(spark, settings, source, access):
    settings = with_sink(settings, encoding=Encoding.JSON, cloudevents=True)
    names = names_of(settings)
    prepare(settings)
    source.execute("insert into item values (1, E'tab\\t \"quoted\"', 1.50, 7)")
    source.execute("update item set id = 2")
    source.execute("delete from item")
    run_once(spark, settings)

    (first, created), (_, moved), (_, deleted) = json_changes(access, names)

    assert created["op"] == "c" and created["before"] is None
    assert json.loads(json.dumps(created["after"])) == {"id": 1, "name": 'tab\t "quoted"', "amount": "1.50", "free": "7"}
    assert created["source"]["db"] == names.database and created["source"]["table"] == "item"
    assert (moved["op"], moved["before"], moved["after"]["id"]) == ("u", {"id": 1}, 2)
    assert (deleted["op"], deleted["before"], deleted["after"]) == ("d", {"id": 2}, None)
    assert first.subject == names.subject(Kind.WAL, "public", "item")
    assert first.headers["ce-specversion"] == "1.0"
    assert first.headers["ce-id"] == first.id
    assert first.headers["ce-type"] == "headwater.change.c"
    assert first.headers["ce-subject"] == "public.item"
    assert first.headers["ce-datacontenttype"] == "application/json"
    assert first.headers["ce-time"].endswith("Z")
    with closing(Link(access)) as link:
        assert stream_info(link, names.stream(Kind.SCHEMA)) is None


def test_json_takes_what_a_transform_has_made_and_what_is_no_json_becomes_a_letter(spark, settings, source, access):
    transform = TransformSettings(
        mask={"public.item.name": "***"},
        sql="select commit_lsn, ordinal, xid, committed_at, op, schema, table, key, before, "
        "if(get_json_object(after, '$.id') = 3, 'oops', after) as after, unchanged from changes",
    )
    settings = replace(with_sink(settings, encoding=Encoding.JSON), transform=transform)
    prepare(settings)
    source.execute("insert into item (id, name) values (1, 'secret'), (2, 'secret'), (3, 'secret')")
    run_once(spark, settings)

    found = [body["after"] for _, body in json_changes(access, names_of(settings))]

    assert [(one["id"], one["name"]) for one in found] == [(1, "***"), (2, "***")]
    (letter,) = list_letters(source, pipeline=settings.name)
    assert letter.reason == "after is not a JSON object after the transform"


def test_cloudevents_headers_stand_beside_creeks_wire(spark, settings, source, access):
    settings = with_sink(settings, cloudevents=True)
    prepare(settings)
    source.execute("insert into item (id) values (1)")
    run_once(spark, settings)

    (message,) = whole(stored(access, names_of(settings).stream(Kind.WAL)))

    assert message.headers["ce-datacontenttype"] == "application/avro"
    assert rows_of(settings, "public.item")[0].after["id"] == 1
