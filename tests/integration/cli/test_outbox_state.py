"""`headwater outbox status`, `checkpoint` and `replay` against real servers."""

import json
import uuid
from contextlib import closing

import pytest

from headwater import outbox
from headwater.brokers.nats.access import NatsAccess
from headwater.outbox.checkpoint import CheckpointStore, prepare_outbox, take_checkpoint
from headwater.postgres.connect import connect_sync
from tests.support.brokers.nats_streams import stored


@pytest.fixture
def shop(database):
    prepare_outbox(database)
    with closing(connect_sync(database)) as connection:
        yield connection


@pytest.fixture
def file(tmp_path, database, nats):
    name = f"T{uuid.uuid4().hex[:12]}"
    path = tmp_path / "headwater.toml"
    path.write_text(
        f'name = "events"\n[source]\ntype = "outbox"\nurl = "{database}"\n'
        f'[[sinks]]\ntype = "nats"\nurl = "{nats.url}"\nstream = "{name}"\nsubject = "{name}.{{topic}}"\n'
    )
    return path, name


def _checkpoint(database):
    return CheckpointStore(database, "events", take_checkpoint(database, "events", "headwater.outbox_message"))


def test_an_outbox_that_nobody_has_delivered_from_says_so(shop, database, headwater):
    assert headwater("outbox", "status", "--url", database) == (0, "nobody has delivered from this outbox yet\n", "")


def test_a_database_without_an_outbox_is_told_how_to_get_one(database, headwater):
    code, _, errors = headwater("outbox", "status", "--url", database)
    assert (code, "headwater outbox init" in errors) == (1, True)


def test_a_checkpoint_is_shown_and_reset_and_the_run_that_had_it_is_fenced(shop, database, headwater):
    with closing(_checkpoint(database)) as store:
        code, output, _ = headwater("outbox", "checkpoint", "show", "events", "--url", database, "--json")
        assert (code, json.loads(output)["phase"]) == (0, "new")
        assert headwater("outbox", "checkpoint", "reset", "events", "--yes", "--url", database)[0] == 0
        with pytest.raises(Exception, match="not this run's any more"):
            store.find()
    code, output, _ = headwater("outbox", "status", "--url", database, "--json")
    assert [(one["phase"], one["snapshot"]) for one in json.loads(output)["pipelines"]] == [("new", None)]
    assert json.loads(output)["relays"] is None
    code, _, errors = headwater("outbox", "checkpoint", "show", "other", "--url", database)
    assert code == 2
    assert "there are: events" in errors


def test_messages_are_sent_again_by_time_topic_and_id_in_their_order(shop, database, nats, file, headwater):
    path, stream = file
    with shop.transaction():
        ids = [outbox.publish_sync(shop, f"t{n % 2}", "T", {"n": n}) for n in range(10)]
    since = ["--since", "2020-01-01T00:00:00Z", "--file", str(path)]
    assert headwater("outbox", "replay", *since, "--dry-run")[1] == "would be sent: 10; refused: 0\n"
    assert stored(NatsAccess(url=nats.url), stream) == []
    assert headwater("outbox", "replay", *since, "--topic", "t1")[:2] == (0, "sent: 5; refused: 0\n")
    found = stored(NatsAccess(url=nats.url), stream)
    assert [json.loads(message.body)["n"] for message in found] == [1, 3, 5, 7, 9]
    assert headwater("outbox", "replay", "--id", str(ids[4]), "--file", str(path))[:2] == (0, "sent: 1; refused: 0\n")
    assert json.loads(stored(NatsAccess(url=nats.url), stream)[-1].body) == {"n": 4}
    assert headwater("outbox", "replay", *since, "--until", "2020-01-02T00:00:00Z")[1] == "sent: 0; refused: 0\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "by --since or by --id"),
        (["--since", "yesterday"], "must be a time such as"),
        (["--since", "2026-01-01T00:00:00"], "does not say in which time zone"),
        (["--since", "2026-01-01T00:00:00Z", "--sink", "other"], "there are nats"),
    ],
)
def test_what_is_not_a_choice_is_refused(file, headwater, arguments, said):
    code, _, errors = headwater("outbox", "replay", *arguments, "--file", str(file[0]))
    assert (code, said in errors) == (2, True), errors


def test_a_pipeline_with_a_transform_and_one_of_emitted_messages_are_not_replayed(file, headwater):
    path, _ = file
    text = path.read_text()
    path.write_text(text + '[transform]\nfilter = "topic = 1"\n')
    assert "has a transform" in headwater("outbox", "replay", "--since", "2026-01-01T00:00:00Z", "--file", str(path))[2]
    path.write_text(text.replace('type = "outbox"\n', 'type = "outbox"\nemitted = true\n'))
    assert "are in no table" in headwater("outbox", "replay", "--since", "2026-01-01T00:00:00Z", "--file", str(path))[2]


def test_a_date_without_a_time_is_told_how_to_be_written(file, headwater):
    _, _, errors = headwater("outbox", "replay", "--since", "2026-11-16", "--file", str(file[0]))
    assert "write it as 2026-11-16T00:00:00Z" in errors
