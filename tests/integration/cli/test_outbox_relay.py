"""`headwater outbox relay`, `dead`, `revive` and `release` against real servers; and that a table has one kind of relay."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import uuid
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest

from headwater import outbox
from headwater.brokers.nats.access import NatsAccess
from headwater.errors import OutboxError
from headwater.outbox import Event
from headwater.outbox.checkpoint import prepare_outbox, take_checkpoint
from headwater.outbox.statements import list_relays
from headwater.postgres.connect import connect_sync
from headwater.postgres.statements import fetch_sync
from tests.support.brokers.nats_streams import stored
from tests.support.servers.embedded import fresh_database
from tests.support.servers.tcp_proxy import Proxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def shop(database):
    prepare_outbox(database)
    with closing(connect_sync(database)) as connection:
        yield connection


@pytest.fixture
def stream():
    return f"T{uuid.uuid4().hex[:12]}"


@pytest.fixture
def file(tmp_path, database, nats, stream):
    """Writes the file of a relay to the embedded NATS, or to what stands before it."""

    def write(url=None, relay="", **broker):
        keys = {"url": url or nats.url, "stream": stream, "subject": f"{stream}.{{topic}}", **broker}
        path = tmp_path / "relay.toml"
        lines = [f"{name} = {json.dumps(value)}" for name, value in keys.items()]
        path.write_text("\n".join([f'url = "{database}"', "[broker]", 'type = "nats"', *lines, "[relay]", relay, ""]))
        return path

    return write


def write_events(connection, count, topic="orders"):
    with connection.transaction():
        return list(map(str, outbox.publish_many_sync(connection, [Event(topic, "Counted", n) for n in range(count)])))


def statuses(connection):
    query = "select status, count(*) from headwater.outbox_message group by status"
    return dict(connection.execute(query).fetchall())


def said(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


@contextmanager
def relaying(path, *options):
    """The program as a process, and the file of its log."""
    log = path.parent / "relay.log"
    command = [sys.executable, "-m", "headwater.cli", "outbox", "relay", str(path), *options]
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out) as process:
        try:
            eventually(lambda: process.poll() is not None or "relay " in log.read_text(), seconds=30)
            assert process.poll() is None, log.read_text()
            yield process, log
        finally:
            if process.poll() is None:
                process.kill()


def test_it_sends_what_is_written_and_marks_it_and_ends_well_when_it_is_told_to(shop, file, nats, stream):
    before = write_events(shop, 100)
    with relaying(file()) as (process, log):
        eventually(lambda: statuses(shop) == {"published": 100})
        # A bare insert of any language, too.
        shop.execute("insert into headwater.outbox_message (topic, type, payload) values ('bare', 'T', '{\"n\": 1}')")
        eventually(lambda: statuses(shop) == {"published": 101})
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    found = stored(NatsAccess(url=nats.url), stream)
    assert [one.headers["Nats-Msg-Id"] for one in found[:100]] == before
    assert found[100].subject == f"{stream}.bare"
    first, *_, last = said(log)
    assert re.fullmatch(r"relay \S+: .* to .*", first["message"])
    assert (last["level"], last["instance"]) == ("info", first["instance"])
    assert last["message"].endswith("stopped; nothing is left in memory, 101 were published")


def test_monitors_are_answered(shop, file, nats):
    write_events(shop, 3)
    with relaying(file(), "--listen", "127.0.0.1:0") as (_, log):
        port = eventually(lambda: next((line["port"] for line in said(log) if "port" in line), None))

        def ask(path):
            with urlopen(f"http://127.0.0.1:{port}{path}") as answer:
                return answer.read().decode()

        eventually(lambda: "headwater_relay_published_total 3.0" in ask("/metrics"))
        assert json.loads(ask("/health")) == json.loads(ask("/ready")) == {"ok": True, "reason": None}


def test_monitors_are_told_what_is_away(shop, file, nats, database):
    with Proxy(nats.url) as broker, Proxy(database) as server:
        path = file(broker.url)
        path.write_text(path.read_text().replace(database, server.url))
        with relaying(path, "--listen", "127.0.0.1:0") as (_, log):
            port = eventually(lambda: next((line["port"] for line in said(log) if "port" in line), None))

            def ready():
                try:
                    with urlopen(f"http://127.0.0.1:{port}/ready") as answer:
                        return answer.status, json.loads(answer.read())["reason"]
                except HTTPError as error:
                    return error.code, json.loads(error.read())["reason"]

            eventually(lambda: ready() == (200, None))
            server.refuse = True
            server.cut()
            eventually(lambda: ready() == (503, "the database cannot be reached"))
            broker.refuse = True
            broker.cut()
            write_events(shop, 1)
            server.refuse = False
            eventually(lambda: ready() == (503, "the broker cannot be reached"))
            broker.refuse = False
            eventually(lambda: ready() == (200, None))


def test_what_a_broker_did_not_confirm_is_said_and_left_in_the_table(shop, file, nats):
    with Proxy(nats.url) as proxy:
        with relaying(file(proxy.url, 'stop_within = "500ms"\n')) as (process, log):
            write_events(shop, 1, "first")
            eventually(lambda: statuses(shop) == {"published": 1})
            proxy.swallow = b"orders"
            write_events(shop, 5)
            held = "select count(*) from headwater.outbox_message where locked_until > now()"
            eventually(lambda: shop.execute(held).fetchone() == (5,))
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        last = said(log)[-1]
    assert last["level"] == "warning"
    assert "stopped; left in the table: " in last["message"]
    assert statuses(shop)["pending"] == 5


def test_a_second_sigterm_ends_it_at_once(shop, file, nats):
    with Proxy(nats.url) as proxy:
        with relaying(file(proxy.url, 'stop_within = "50s"\nlease = "150s"\nconfirm_timeout = "60s"\n', timeout="60s")) as (
            process,
            _,
        ):
            write_events(shop, 1, "first")
            eventually(lambda: statuses(shop) == {"published": 1})
            proxy.swallow = b"orders"
            write_events(shop, 5)
            held = "select count(*) from headwater.outbox_message where locked_until > now()"
            eventually(lambda: shop.execute(held).fetchone() == (5,))
            process.send_signal(signal.SIGTERM)
            # It has taken notice when it catches that signal no longer.
            eventually(lambda: not _catches_sigterm(process.pid))
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == -signal.SIGTERM


def _catches_sigterm(pid):
    with Path(f"/proc/{pid}/status").open() as status:
        caught = next(line for line in status if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("", 2, "broker: is missing"),
        ('[broker]\ntype = "nats"\nurl = "nats://127.0.0.1:1"\n[relay]\nlese = "1s"\n', 2, "did you mean `lease`?"),
        ('listen = "127.0.0.1:99999"\n[broker]\ntype = "nats"\nurl = "nats://127.0.0.1:1"\n', 2, "no address to listen on"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_starts(tmp_path, headwater, text, code, words):
    path = tmp_path / "relay.toml"
    path.write_text(text)
    found, output, errors = headwater("outbox", "relay", str(path))
    assert (found, output, words in errors) == (code, "", True)


def test_a_broker_that_refuses_the_credentials_ends_it_with_the_reason(shop, file, nats, headwater):
    write_events(shop, 1)
    code, _, errors = headwater("outbox", "relay", str(file(nats.url.replace("nats://", "nats://not-"), "restarts = 0\n")))
    assert code == 1
    last = errors.splitlines()[-1]
    assert last.startswith("error: ") and "Authorization Violation" in last
    # Nothing was tried at its cost, and the table is anybody's still.
    assert shop.execute("select status, attempts from headwater.outbox_message").fetchall() == [("pending", 0)]
    assert shop.execute("select * from headwater.outbox_served").fetchall() == []


def test_an_address_that_is_taken_is_said_before_anything_starts(shop, file, headwater):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, errors = headwater("outbox", "relay", str(file()), "--listen", f"127.0.0.1:{port}")
    assert (code, f"cannot listen on 127.0.0.1:{port}" in errors) == (2, True)
    assert shop.execute("select * from headwater.outbox_served").fetchall() == []


def test_a_database_without_an_outbox_or_none_at_all_is_said(database, file, headwater):
    code, _, errors = headwater("outbox", "relay", str(file()))
    assert (code, "run `headwater outbox init` first" in errors) == (1, True)
    path = file()
    path.write_text(path.read_text().replace(database, "postgresql://127.0.0.1:1/shop"))
    code, _, errors = headwater("outbox", "relay", str(path))
    assert (code, errors.startswith("error: ")) == (1, True)


def test_a_relay_is_refused_while_a_pipeline_delivers_the_table_and_the_other_way_round(
    shop, database, file, headwater, tmp_path
):
    take_checkpoint(database, "events", "headwater.outbox_message")
    code, _, errors = headwater("outbox", "relay", str(file()))
    assert (code, "pipeline 'events' delivers headwater.outbox_message already" in errors) == (1, True)
    shop.execute("delete from headwater.outbox_checkpoint")
    with relaying(file()):
        pass
    with pytest.raises(
        OutboxError, match=r"relays inside of processes serve .*; stop them and run `headwater outbox release`"
    ):
        take_checkpoint(database, "events", "headwater.outbox_message")
    # Another table is another matter.
    assert take_checkpoint(database, "others", "public.events") == 1
    assert headwater("outbox", "release", "--yes", "--url", database) == (
        0,
        "no relay of the table serves this outbox any more; a pipeline may\n",
        "",
    )
    assert take_checkpoint(database, "events", "headwater.outbox_message") == 1


@pytest.mark.timeout(120)
def test_check_says_that_a_pipeline_would_be_refused(shop, database, headwater, tmp_path):
    shop.execute("insert into headwater.outbox_served (lanes) values (0)")
    path = tmp_path / "headwater.toml"
    path.write_text(f'name = "events"\n[source]\ntype = "outbox"\nurl = "{database}"\n[[sinks]]\ntype = "noop"\n')
    code, output, _ = headwater("check", "--file", str(path), "--json")
    (finding,) = [one for one in json.loads(output)["findings"] if one["subject"] == "outbox headwater.outbox_message"]
    assert (code, finding["level"]) == (1, "error")
    assert "relays inside of processes serve it since" in finding["found"]
    assert "headwater outbox release" in finding["remedy"]


def test_dead_events_are_listed_and_revived(shop, database, headwater, file, nats):
    assert headwater("outbox", "dead", "--url", database) == (0, "no event is dead\n", "")
    ids = write_events(shop, 5)
    shop.execute(
        "update headwater.outbox_message set status = 'dead', attempts = 20, error = 'unroutable' where id = any(%s)",
        [ids[:4]],
    )
    code, output, _ = headwater("outbox", "dead", "--limit", "3", "--url", database)
    assert code == 0
    assert [line.split()[0] for line in output.splitlines()[1:4]] == ids[:3]
    assert output.splitlines()[-1] == "1 more; --limit shows them"
    _, output, _ = headwater("outbox", "dead", "--json", "--url", database)
    assert [(one["id"], one["attempts"], one["error"]) for one in json.loads(output)] == [
        (id_, 20, "unroutable") for id_ in ids[:4]
    ]
    assert headwater("outbox", "revive", ids[0], ids[0], "--url", database)[:2] == (0, "to be sent again: 1\n")
    code, output, errors = headwater("outbox", "revive", ids[1], ids[4], "--url", database)
    assert (code, output) == (1, "to be sent again: 1\n")
    assert errors == "error: 1 of the ids are of no dead event; `headwater outbox dead` lists those that are\n"
    assert headwater("outbox", "revive", "--all", "--url", database)[:2] == (0, "to be sent again: 2\n")
    assert statuses(shop) == {"pending": 5}
    with relaying(file()):
        eventually(lambda: statuses(shop) == {"published": 5})


@pytest.mark.parametrize("arguments", [(), ("--all", str(uuid.uuid4())), ("seventeen",)])
def test_revive_wants_ids_or_all(database, shop, headwater, arguments):
    code, output, errors = headwater("outbox", "revive", *arguments, "--url", database)
    assert (code, output, errors.startswith("error: ")) == (2, "", True)


def test_the_state_of_relays_is_shown(shop, database, headwater):
    ids = write_events(shop, 6)
    shop.execute("insert into headwater.outbox_served (lanes) values (16)")
    _, output, _ = headwater("outbox", "status", "--url", database)
    assert "last failure" not in output
    changes = ("status = 'dead'", "status = 'published'", "next_attempt_at = now() + '1 h'", "locked_until = now() + '1 h'")
    for id_, change in zip(ids, changes, strict=False):
        shop.execute(f"update headwater.outbox_message set {change} where id = %s", [id_])  # noqa: S608
    shop.execute("update headwater.outbox_message set error = 'the first', attempts = 1 where id = %s", [ids[0]])
    shop.execute("update headwater.outbox_message set error = 'the last', attempts = 3 where id = %s", [ids[2]])
    ((written,),) = shop.execute("select created_at from headwater.outbox_message where id = %s", [ids[2]]).fetchall()
    code, output, _ = headwater("outbox", "status", "--url", database)
    assert output.splitlines()[-1] == (
        f"last failure: the event to orders of {written:%Y-%m-%d %H:%M:%S%z} waits after 3 attempts: the last"
    )
    assert (code, output.splitlines()[0].split()) == (
        0,
        ["relays", "since", "order", "of", "keys", "waiting", "held", "postponed", "dead", "oldest"],
    )
    _, output, _ = headwater("outbox", "status", "--json", "--url", database)
    found = json.loads(output)
    assert found["pipelines"] == []
    assert [found["relays"][name] for name in ("lanes", "waiting", "held", "postponed", "dead")] == [16, 4, 1, 1, 1]
    assert found["relays"]["oldest_seconds"] > 0
    failure = {"created_at": written.isoformat(), "topic": "orders", "status": "pending", "attempts": 3, "error": "the last"}
    assert found["relays"]["last_failure"] == failure
    # The time of its next try has come, and a second one was tried and let go: both wait for another try all the same.
    shop.execute("update headwater.outbox_message set next_attempt_at = now() - '1 h'::interval where id = %s", [ids[2]])
    shop.execute("update headwater.outbox_message set attempts = 1 where id = %s", [ids[4]])
    _, output, _ = headwater("outbox", "status", "--json", "--url", database)
    assert json.loads(output)["relays"]["postponed"] == 2
    shop.execute("update headwater.outbox_message set error = 'again' where id = %s", [ids[4]])
    _, output, _ = headwater("outbox", "status", "--url", database)
    assert output.splitlines()[-1].endswith("waits after 1 attempt: again")
    shop.execute("update headwater.outbox_message set status = 'dead', error = 'for good' where id = %s", [ids[5]])
    _, output, _ = headwater("outbox", "status", "--url", database)
    assert output.splitlines()[-1].endswith("is dead after 0 attempts: for good")


def test_release_is_refused_while_a_relay_holds_events_and_asks_otherwise(shop, database, headwater):
    assert headwater("outbox", "release", "--url", database)[:2] == (0, "no relay of the table serves this outbox\n")
    write_events(shop, 1)
    shop.execute("insert into headwater.outbox_served (lanes) values (0)")
    code, _, errors = headwater("outbox", "release", "--url", database)
    assert (code, "say --yes" in errors) == (2, True)
    shop.execute("update headwater.outbox_message set locked_by = 'x', locked_until = now() + '1 h'")
    code, _, errors = headwater("outbox", "release", "--yes", "--url", database)
    assert (code, "1 events are held by a relay that runs" in errors) == (2, True)


def test_release_is_refused_while_a_relay_runs_also_an_idle_one(shop, database, headwater, file):
    with relaying(file()) as (process, _):
        eventually(lambda: fetch_sync(shop, list_relays()))
        code, output, errors = headwater("outbox", "release", "--yes", "--url", database)
        assert (code, output) == (1, "")
        assert errors.startswith("error: a relay of headwater.outbox_message runs, whose connections are")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert headwater("outbox", "release", "--yes", "--url", database)[0] == 0


def test_a_role_that_was_granted_it_may_relay(postgres18, nats, stream, headwater, tmp_path):
    with fresh_database(postgres18.url) as url, psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"create role relay_{os.getpid()} login password 'secret'")
        try:
            code, output, _ = headwater("outbox", "init", "--grant-relay", f"relay_{os.getpid()}", "--url", url)
            assert (code, "may write, relay and settle events" in output) == (0, True)
            address = url.replace(url.partition("://")[2].partition("@")[0], f"relay_{os.getpid()}:secret")
            path = tmp_path / "relay.toml"
            path.write_text(
                f'url = "{address}"\n[broker]\ntype = "nats"\nurl = "{nats.url}"\nstream = "{stream}"\n'
                f'subject = "{stream}.{{topic}}"\n[relay]\nretention = "never"\n'
            )
            with closing(connect_sync(address)) as connection:
                write_events(connection, 10)
            with relaying(path):
                eventually(lambda: statuses(owner) == {"published": 10})
        finally:
            owner.execute(f"drop owned by relay_{os.getpid()}; drop role relay_{os.getpid()}")
