"""`headwater comms init` and `serve` against a real database and a real mail server, in each of their roles."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psycopg
import pytest

from headwater import comms
from headwater.postgres.connect import connect_sync
from tests.support.queue.email_consumers import states, tried
from tests.support.queue.emails import email
from tests.support.servers.embedded import fresh_database
from tests.support.servers.mail_api import MailApi
from tests.support.servers.pooler import pooler
from tests.support.servers.smtp import MailServer
from tests.support.servers.tcp_proxy import Proxy
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(60)

TOKEN = "hidden-token-of-some-length"
MESSAGE = {"to": ["zoe@example.com"], "subject": "Invoice 7", "text": "Pay, please."}


@pytest.fixture
def shop(database):
    with closing(connect_sync(database)) as connection:
        comms.prepare_comms(connection)
        yield connection


@pytest.fixture
def server():
    with MailServer() as server:
        yield server


@pytest.fixture
def file(tmp_path, database):
    """Writes the file of a service."""

    def write(by="", url=None, top="", send=""):
        path = tmp_path / "comms.toml"
        path.write_text(
            f'url = "{url or database}"\nfrom = "Shop <shop@example.com>"\n{top}[api]\ntoken = "${{API_TOKEN}}"\n'
            f'[send]\npoll = "50ms"\nretry_first = "50ms"\nretry_longest = "50ms"\n{send}{by}'
        )
        return path

    return write


def smtp(server):
    return f'[smtp]\nhost = "127.0.0.1"\nport = {server.port}\ntls = "none"\n'


def said(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


@contextmanager
def serving(path, role, *options):
    """The program as a process, its log, and how to ask it."""
    log = path.with_name(f"{role}.log")
    command = [sys.executable, "-m", "headwater.cli", "comms", "serve", str(path), "--role", role, *options]
    environment = {**os.environ, "API_TOKEN": TOKEN}
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
        try:
            eventually(lambda: process.poll() is not None or "comms: " in log.read_text(), seconds=30)
            assert process.poll() is None, log.read_text()
            yield process, log
            assert TOKEN not in log.read_text()
        finally:
            if process.poll() is None:
                process.kill()


def ask(log, path, body=None, token=TOKEN, **headers):
    """The status of the answer, and its content."""
    port = eventually(lambda: next((line["port"] for line in said(log) if "port" in line), None))
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
    request = Request(f"http://127.0.0.1:{port}{path}", None if body is None else json.dumps(body).encode(), headers)

    def answered():
        try:
            with urlopen(request) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            return error.code, error.read().decode()
        except ConnectionError:
            return None

    status, text = eventually(answered)
    return status, json.loads(text) if text.startswith(("{", "[")) else text


def stop(process):
    process.send_signal(signal.SIGTERM)
    return process.wait(20)


def test_one_process_takes_messages_and_sends_them_and_ends_well_when_it_is_told_to(shop, file, server):
    with serving(file(smtp(server)), "both", "--listen", "127.0.0.1:0") as (process, log):
        eventually(lambda: ask(log, "/ready")[0] == 200)
        status, accepted = ask(log, "/emails", [MESSAGE])
        assert (status, len(accepted["ids"])) == (202, 1)
        (job_id,) = accepted["ids"]
        eventually(lambda: states(shop) == {job_id: "done"})
        assert ask(log, f"/emails/{job_id}")[1]["attempts"][0]["outcome"] == "sent"
        assert ask(log, "/emails", [MESSAGE], token="wrong")[0] == 401
        assert ask(log, "/health", token="")[0] == 200
        metrics = ask(log, "/metrics", token="")[1]
        assert 'headwater_email_attempts_total{outcome="sent"} 1.0' in metrics
        assert "headwater_email_accepted_total 1.0" in metrics and "headwater_queue_done_total 1.0" in metrics
        assert stop(process) == 0
    assert [mail.message["From"] for mail in server.mails] == ["Shop <shop@example.com>"]
    first, *_, last = said(log)
    assert re.fullmatch(r"comms: both for .*, queue email, sent by smtp 127\.0\.0\.1:\d+", first["message"])
    assert last["message"] == "comms: stopped; 1 messages were sent"


def test_producer_and_consumer_may_be_apart_and_a_consumer_tells_monitors_and_takes_no_messages(shop, file, server):
    with serving(file(), "producer", "--listen", "127.0.0.1:0") as (producer, log):
        status, accepted = ask(log, "/emails", {"messages": [MESSAGE] * 3})
        assert (status, set(states(shop).values())) == (202, {"scheduled"})
        assert stop(producer) == 0
    with serving(file(smtp(server)), "consumer", "--listen", "127.0.0.1:0") as (consumer, log):
        eventually(lambda: states(shop) == dict.fromkeys(accepted["ids"], "done"))
        eventually(lambda: ask(log, "/ready")[0] == 200)
        assert ask(log, "/emails", [MESSAGE]) == (
            404,
            {"error": "there is nothing at this path; there are /health, /ready, /metrics"},
        )
        assert stop(consumer) == 0
    assert len(server.mails) == 3


@pytest.mark.parametrize("is_option", [False, True])
def test_a_consumer_behind_a_pooler_hears_of_messages_past_it(shop, file, database, server, is_option):
    with pooler(database) as (pooled, _):
        top = f'listen_url = "{"postgresql://127.0.0.1:1/shop" if is_option else database}"\n'
        path = file(smtp(server), url=pooled, top=top)
        path.write_text(path.read_text().replace('poll = "50ms"', 'poll = "10m"', 1))
        options = ["--listen-url", database] if is_option else []
        with serving(path, "consumer", "--listen", "127.0.0.1:0", *options) as (process, log):
            # The second is when it listens.
            eventually(lambda: re.search(r"headwater_queue_sweeps_total ([2-9])", ask(log, "/metrics")[1]))
            comms.enqueue_sync(shop, [email()])
            eventually(lambda: list(states(shop).values()) == ["done"])
            assert stop(process) == 0


def test_sigterm_has_a_message_on_its_way_sent_and_others_left(shop, file, server):
    with shop.transaction():
        comms.enqueue_sync(shop, [email(f"a{n}@example.com") for n in range(10)])
    server.held.clear()
    with serving(file(smtp(server), send="concurrency = 1\n"), "consumer") as (process, _):
        assert server.arrived.wait(20)
        process.send_signal(signal.SIGTERM)
        eventually(lambda: list(states(shop).values()).count("scheduled") == 9)
        server.held.set()
        assert process.wait(20) == 0
    found = list(states(shop).values())
    assert (found.count("done"), found.count("scheduled"), len(server.mails)) == (1, 9, 1)


def test_what_a_killed_consumer_had_is_sent_by_the_next_and_nothing_is_forgotten(shop, file, server):
    with shop.transaction():
        comms.enqueue_sync(shop, [email(f"a{n}@example.com") for n in range(10)])
    server.held.clear()
    path = file(smtp(server), send='concurrency = 2\nlease = "1s"\n')
    with serving(path, "consumer") as (process, _):
        assert server.arrived.wait(20)
        process.kill()
        process.wait(20)
    server.held.set()
    with serving(path, "consumer") as (process, _):
        eventually(lambda: set(states(shop).values()) == {"done"})
        assert stop(process) == 0
    # Those that were on their way when it was killed may come twice, and no others.
    assert set(server.recipients) == {f"a{n}@example.com" for n in range(10)}
    assert len(server.recipients) <= 12


def test_a_second_sigterm_ends_it_at_once(shop, file, server):
    with shop.transaction():
        comms.enqueue_sync(shop, [email()])
    server.held.clear()
    with serving(file(smtp(server)), "consumer", "--listen", "127.0.0.1:0") as (process, log):
        assert server.arrived.wait(20)
        eventually(lambda: ask(log, "/ready")[0] == 200)
        process.send_signal(signal.SIGTERM)
        eventually(lambda: not _catches_sigterm(process.pid))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM
    server.held.set()


def _catches_sigterm(pid):
    with Path(f"/proc/{pid}/status").open() as status:
        caught = next(line for line in status if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_it_sends_by_an_http_api_too(shop, file, monkeypatch):
    monkeypatch.setenv("PROVIDER_KEY", "hidden-provider-key")
    with MailApi() as api:
        access = f'[http]\nurl = "{api.url}"\nheaders.Authorization = "Bearer ${{PROVIDER_KEY}}"\n'
        by = f'{access}[http.body]\nrecipients = "{{to:email}}"\n'
        with serving(file(by), "both", "--listen", "127.0.0.1:0") as (process, log):
            (job_id,) = ask(log, "/emails", [MESSAGE])[1]["ids"]
            eventually(lambda: states(shop) == {job_id: "done"})
            assert stop(process) == 0
            assert "hidden-provider-key" not in log.read_text()
        assert api.posted[0].body == {"recipients": ["zoe@example.com"]}
        assert api.posted[0].headers["authorization"] == "Bearer hidden-provider-key"
    ((message_id,),) = tried(shop, "message_id")
    assert message_id == f"<{api.posted[0].headers['idempotency-key']}>"


def test_while_the_database_is_away_it_is_not_ready_and_goes_on_afterwards(shop, file, database, server):
    with Proxy(database) as proxy:
        with serving(file(smtp(server), url=proxy.url), "both", "--listen", "127.0.0.1:0") as (process, log):
            eventually(lambda: ask(log, "/ready")[0] == 200)
            proxy.refuse = True
            proxy.cut()
            eventually(lambda: ask(log, "/ready")[1]["reason"] == "the database cannot be reached")
            assert ask(log, "/health")[0] == 200
            proxy.refuse = False
            eventually(lambda: ask(log, "/ready")[0] == 200)
            (job_id,) = ask(log, "/emails", [MESSAGE])[1]["ids"]
            eventually(lambda: states(shop) == {job_id: "done"})
            assert stop(process) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is neither [smtp] nor [http]"),
        ('[smtp]\nhost = "x"\n[send]\nrat = 1\n', "did you mean `rate`?"),
        ('listen = "127.0.0.1:99999"\n[smtp]\nhost = "x"\n', "no address to listen on"),
    ],
)
def test_a_wrong_file_is_refused_before_anything_starts(tmp_path, headwater, text, words):
    path = tmp_path / "comms.toml"
    path.write_text(text)
    code, output, errors = headwater("comms", "serve", str(path))
    assert (code, output, words in errors) == (2, "", True)


def test_an_address_that_is_taken_is_said_before_anything_starts(shop, file, headwater, server, monkeypatch):
    monkeypatch.setenv("API_TOKEN", TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, errors = headwater("comms", "serve", str(file(smtp(server))), "--listen", f"127.0.0.1:{port}")
    assert (code, f"cannot listen on 127.0.0.1:{port}" in errors) == (2, True)


def test_a_database_without_the_tables_or_none_at_all_is_said(database, file, headwater, server, monkeypatch):
    monkeypatch.setenv("API_TOKEN", TOKEN)
    listen = ("--listen", "127.0.0.1:0")
    code, _, errors = headwater("comms", "serve", str(file(smtp(server))), *listen)
    assert (code, "init` first" in errors) == (1, True)
    path = file(smtp(server), url="postgresql://127.0.0.1:1/shop")
    code, _, errors = headwater("comms", "serve", str(path), *listen)
    assert (code, "no connection to PostgreSQL" in errors) == (1, True)


@pytest.mark.parametrize("missing", ["starlette", "aiosmtplib"])
def test_what_is_not_installed_is_named_with_the_remedy(shop, file, headwater, server, monkeypatch, missing):
    monkeypatch.setenv("API_TOKEN", TOKEN)
    monkeypatch.setattr("headwater.cli.comms.find_spec", lambda name: None if name == missing else object())
    code, _, errors = headwater("comms", "serve", str(file(smtp(server))))
    assert (code, errors) == (
        2,
        f"error: {missing} is needed for e-mails, and is not installed; run `pip install 'headwater[comms]'`\n",
    )


def test_init_makes_the_tables_and_may_be_repeated(database, headwater):
    for _ in range(2):
        code, output, _ = headwater("comms", "init", "--url", database)
        assert (code, output) == (
            0,
            "the tables of e-mails and of the queue are in schema headwater; run `headwater comms serve FILE`\n",
        )
    with closing(connect_sync(database)) as connection:
        comms.require_comms(connection)


def test_roles_that_were_granted_it_may_hand_over_messages_and_serve(postgres18, file, headwater, server):
    names = [f"{name}_{os.getpid()}" for name in ("shop", "mailer")]
    with fresh_database(postgres18.url) as url, psycopg.connect(url, autocommit=True) as owner:
        for name in names:
            owner.execute(f"create role {name} login password 'secret'")
        try:
            code, output, _ = headwater("comms", "init", "--grant", names[0], "--grant-serve", names[1], "--url", url)
            assert (code, output.splitlines()[1:]) == (
                0,
                [f"role {names[0]} may hand over messages", f"role {names[1]} may hand over messages, and run the service"],
            )
            address, mailer = (url.replace(url.partition("://")[2].partition("@")[0], f"{name}:secret") for name in names)
            sent = email(attachments=[{"name": "a", "content": "aGVsbG8="}])
            with closing(connect_sync(address)) as connection:
                (first,) = comms.enqueue_sync(connection, [sent])
                assert comms.enqueue_sync(connection, [sent], idempotency_key="17") == comms.enqueue_sync(
                    connection, [sent], idempotency_key="17"
                )
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute("select content from headwater.email_content")
            with serving(file(smtp(server), url=mailer), "both", "--listen", "127.0.0.1:0") as (process, log):
                eventually(lambda: list(states(owner).values()) == ["done", "done"])
                status, accepted = ask(
                    log, "/emails", [{**MESSAGE, "attachments": [{"name": "a", "content": "aGVsbG8="}]}] * 2
                )
                assert (status, len(accepted["ids"]), accepted["ids"][0] > first) == (202, 2, True)
                eventually(lambda: list(states(owner).values()) == ["done"] * 4)
                assert ask(log, "/emails", [MESSAGE], **{"Idempotency-Key": "18"})[0] == 202
                assert stop(process) == 0
                assert not [line for line in said(log) if line["level"] in ("warning", "error")], log.read_text()
        finally:
            for name in names:
                owner.execute(f"drop owned by {name}; drop role {name}")
