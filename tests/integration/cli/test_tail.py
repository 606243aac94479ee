"""`headwater tail` against real servers: what it prints, what it confirms, and what bad input gets."""

import json
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from headwater.embedded import EmbeddedPostgres
from headwater.model import Lsn
from headwater.postgres.connect import connect_sync
from tests.support.capture.captured_database import confirmed_flush, prepare
from tests.support.servers.embedded import fresh_database, postgres_settings
from tests.support.waiting import eventually

FROM_SLOT = ("tail", "--slot", "hw", "--publication", "pub", "--json")


def printed(output):
    return [json.loads(line) for line in output.splitlines()]


def printed_ids(output):
    return [(line["after"] or line["key"])["id"] for line in printed(output)]


@contextmanager
def started(url, *arguments, **options):
    """The program as a process of its own, which is killed at the end if it still runs."""
    command = [sys.executable, "-m", "headwater.cli", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "HEADWATER_URL": url}, **(pipes | options)) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def meanwhile(act):
    """Do something in another thread while the program runs in this one, which has to be the one that gets signals."""
    with ThreadPoolExecutor(1) as pool:
        doing = pool.submit(act)
        yield
        doing.result()


def publications(connection):
    return [name for (name,) in connection.execute("select pubname from pg_publication order by 1").fetchall()]


def test_a_tail_with_a_slot_goes_on_where_it_was(any_database, headwater):
    with prepare(any_database, "insert into item values (1), (2)") as connection:
        assert printed_ids(headwater(*FROM_SLOT, "--once", "--url", any_database)[1]) == [1, 2]
        assert headwater(*FROM_SLOT, "--once", "--url", any_database)[:2] == (0, "")
        connection.execute("insert into item values (3)")
        assert printed_ids(headwater(*FROM_SLOT, "--once", "--url", any_database)[1]) == [3]


def test_a_peek_confirms_nothing(database, headwater):
    with prepare(database, "insert into item values (1)") as connection:
        before = confirmed_flush(connection)
        first = headwater(*FROM_SLOT, "--once", "--peek", "--url", database)
        assert first[:2] == headwater(*FROM_SLOT, "--once", "--peek", "--url", database)[:2]
        assert printed_ids(first[1]) == [1]
        assert confirmed_flush(connection) == before


def test_a_limit_in_mid_transaction_confirms_only_what_was_printed_whole(database, headwater):
    with prepare(database, "insert into item values (1)", "insert into item values (2), (3), (4)"):
        assert printed_ids(headwater(*FROM_SLOT, "--limit", "2", "--url", database)[1]) == [1, 2]
        assert printed_ids(headwater(*FROM_SLOT, "--once", "--url", database)[1]) == [2, 3, 4]


def test_tables_are_followed_from_now_on_without_leaving_anything_behind(any_database, headwater):
    with connect_sync(any_database) as connection:
        connection.execute('create table "Odd One" (id int primary key)')
        connection.execute("create table unseen (id int primary key)")

        def write():
            eventually(lambda: connection.execute("select from pg_replication_slots where active").fetchall())
            connection.execute("insert into unseen values (0)")
            connection.execute('insert into "Odd One" values (1)')
            connection.execute('delete from "Odd One"')

        with meanwhile(write):
            code, output, errors = headwater("tail", '"Odd One"', "--limit", "2", "--url", any_database)
        assert [(line["op"], line["table"]) for line in printed(output)] == [("c", "Odd One"), ("d", "Odd One")], errors
        assert code == 0
        assert publications(connection) == []
        eventually(lambda: not connection.execute("select from pg_replication_slots").fetchall())


def test_a_slot_that_is_made_keeps_its_own_publication(database, headwater):
    with connect_sync(database) as connection:
        connection.execute("create table item (id int primary key)")
        assert headwater("tail", "item", "--slot", "mine", "--create", "--once", "--url", database)[0] == 0
        assert publications(connection) == ["mine"]
        connection.execute("insert into item values (1)")
        assert printed_ids(headwater("tail", "item", "--slot", "mine", "--once", "--url", database)[1]) == [1]


def test_a_slot_without_its_publication_is_refused_and_keeps_what_waits_in_it(any_database, headwater):
    with connect_sync(any_database) as connection:
        connection.execute("create table item (id int primary key)")
        connection.execute("select pg_create_logical_replication_slot('old', 'pgoutput')")
        before = confirmed_flush(connection, "old")
        connection.execute("insert into item values (1)")
        for more in ((), ("--create",)):
            code, output, errors = headwater("tail", "item", "--slot", "old", "--once", *more, "--url", any_database)
            assert (code, output) == (1, "")
            assert "slot 'old' has no publication of its name" in errors
            assert "--publication" in errors
            assert "headwater slots drop old" in errors
            assert "--create" in errors
        assert publications(connection) == []
        assert confirmed_flush(connection, "old") == before


@pytest.mark.parametrize("named", [("other",), ("item", "other")])
def test_a_publication_that_others_read_through_is_never_changed(any_database, headwater, named):
    with connect_sync(any_database) as connection:
        connection.execute("create table item (id int primary key); create table other (id int primary key)")
        assert headwater("tail", "item", "--slot", "mine", "--create", "--once", "--url", any_database)[0] == 0
        code, output, errors = headwater("tail", *named, "--slot", "mine", "--peek", "--once", "--url", any_database)
        assert (code, output) == (1, "")
        assert "is not changed; follow what it publishes with --publication mine" in errors
        connection.execute("insert into item values (1)")
        assert printed_ids(headwater("tail", "item", "--slot", "mine", "--once", "--url", any_database)[1]) == [1]


@pytest.mark.parametrize(
    "made", ["for all tables", "for table item where (id > 5)", "for table item with (publish = 'insert')"]
)
def test_a_publication_of_somebody_else_is_not_taken_over(database, headwater, made):
    with connect_sync(database) as connection:
        connection.execute("create table item (id int primary key)")
        connection.execute(f"create publication theirs {made}".encode())
        code, output, errors = headwater("tail", "item", "--slot", "theirs", "--create", "--once", "--url", database)
        assert (code, output) == (1, "")
        assert "publication 'theirs' is not one of just item" in errors
        assert not connection.execute("select from pg_replication_slots").fetchall()


def test_a_slot_is_not_made_before_the_publication_that_is_named(database, headwater):
    with prepare(database) as connection:
        code, output, errors = headwater("tail", "--slot", "new", "--create", "--publication", "nix", "--url", database)
        assert (code, output) == (1, "")
        assert "publication 'nix' does not exist" in errors
        assert connection.execute("select slot_name from pg_replication_slots").fetchall() == [("hw",)]


def test_a_publication_that_a_killed_tail_left_behind_is_dropped_by_the_next(database, headwater):
    with prepare(database) as connection:
        with started(database, "tail", "item") as tail:
            eventually(lambda: len(publications(connection)) == 2)
            tail.kill()
            tail.wait()
        assert len(publications(connection)) == 2
        eventually(lambda: not connection.execute("select from pg_stat_replication").fetchall())

        def write():
            eventually(lambda: connection.execute("select from pg_replication_slots where active").fetchall())
            connection.execute("insert into item values (1)")

        with meanwhile(write):
            assert headwater("tail", "item", "--limit", "1", "--url", database)[0] == 0
        assert publications(connection) == ["pub"]


def test_sigterm_ends_a_tail_cleanly_with_exit_code_0(database, headwater):
    with prepare(database, "insert into item values (1)") as connection:
        with started(database, *FROM_SLOT) as tail:
            assert json.loads(tail.stdout.readline())["after"]["id"] == 1
            tail.send_signal(signal.SIGTERM)
            assert tail.wait(10) == 0
            assert tail.stderr.read() == ""
        # What was printed is confirmed by the time it has ended.
        assert confirmed_flush(connection) > Lsn(0)
        assert headwater(*FROM_SLOT, "--once", "--url", database)[:2] == (0, "")


def test_ctrl_c_in_mid_transaction_confirms_none_of_it(database, headwater):
    with prepare(database) as connection:
        before = confirmed_flush(connection)
        connection.execute("insert into item select g, repeat('x', 200) from generate_series(1, 5000) g")
        with started(database, *FROM_SLOT) as tail:
            # The pipe is full long before the transaction ends, so the client stands in the middle of it.
            first = json.loads(tail.stdout.readline())
            tail.send_signal(signal.SIGINT)
            assert tail.wait(10) == 130
            assert "Traceback" not in tail.stderr.read()
        assert before <= confirmed_flush(connection) <= Lsn.parse(first["commit_lsn"])
    assert len(printed(headwater(*FROM_SLOT, "--once", "--url", database)[1])) == 5000


def test_a_reader_that_closes_the_pipe_ends_it_quietly(database):
    with prepare(database, "insert into item select g, repeat('x', 200) from generate_series(1, 5000) g"):
        with started(database, *FROM_SLOT) as tail:
            tail.stdout.readline()
            tail.stdout.close()
            assert tail.wait(15) == 1
            assert tail.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tail",), "name what to follow"),
        (("tail", "item", "--publication", "pub"), "either tables or a --publication"),
        (("tail", "item", "--create"), "--create makes the slot named by --slot"),
        (("tail", "item", "--slot", "Not A Slot", "--create"), "lower-case"),
        (("tail", "a.b.c"), "not a table name"),
        (("tail", "item", "--url", "postgresql//u:secret@h/d"), "malformed"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what_to_do(database, arguments, said, headwater):
    with prepare(database):
        code, output, errors = headwater(*arguments, *(() if "--url" in arguments else ("--url", database)))
    assert (code, output) == (2, "")
    assert said in errors
    assert "secret" not in errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("tail", "itme"), "table itme does not exist; did you mean public.item?"),
        (("tail", "bare"), "alter table public.bare replica identity full"),
        (("tail", "item", "--slot", "nix"), "replication slot 'nix' does not exist"),
        (("tail", "--slot", "hw", "--publication", "nix"), "publication 'nix' does not exist"),
    ],
)
def test_what_is_missing_in_the_database_is_named_with_the_remedy(any_database, arguments, said, headwater):
    with prepare(any_database, "create table bare (x int)") as connection:
        code, output, errors = headwater(*arguments, "--url", any_database)
        assert (code, output) == (1, "")
        assert errors.startswith("error: ")
        assert said in errors
        assert len(errors.splitlines()) == 1
        assert publications(connection) == ["pub"]


def test_a_wrong_password_is_refused_without_showing_it(database, headwater):
    url = urlsplit(database)._replace(netloc=f"postgres:not-the-secret@127.0.0.1:{urlsplit(database).port}").geturl()
    code, output, errors = headwater("tail", "item", "--url", url)
    assert (code, output) == (1, "")
    assert "password authentication failed" in errors
    assert "check user and password" in errors
    assert "not-the-secret" not in errors


def test_a_role_without_the_replication_right_is_told_how_to_get_it(any_database, headwater):
    with prepare(any_database) as connection:
        role = f"reader_{connection.info.dbname}"
        connection.execute(f"create role {role} login password 'hush' in role pg_read_all_data".encode())
        url = urlsplit(any_database)._replace(netloc=f"{role}:hush@127.0.0.1:{urlsplit(any_database).port}").geturl()
        try:
            code, output, errors = headwater("tail", "--publication", "pub", "--url", url)
        finally:
            connection.execute(f"drop role {role}".encode())
    assert (code, output) == (1, "")
    assert f"alter role {role} replication" in errors
    assert "hush" not in errors


@pytest.mark.timeout(60)
def test_a_server_without_logical_wal_is_told_what_to_set(headwater):
    with EmbeddedPostgres(postgres_settings(18, wal_level="replica")) as server, fresh_database(server.url) as url:
        with connect_sync(url) as connection:
            connection.execute("create table item (id int primary key)")
        for slot in ((), ("--slot", "mine", "--create")):
            code, output, errors = headwater("tail", "item", *slot, "--url", url)
            assert (code, output) == (1, "")
            assert "set wal_level = logical" in errors.splitlines()[-1]
        with connect_sync(url) as connection:
            assert publications(connection) == []


def test_a_publication_that_was_there_before_stays_when_its_slot_cannot_be_made(headwater):
    with EmbeddedPostgres(postgres_settings(18, wal_level="replica")) as server, fresh_database(server.url) as url:
        with connect_sync(url) as connection:
            connection.execute("create table item (id int primary key); create publication mine for table item")
            assert headwater("tail", "item", "--slot", "mine", "--create", "--url", url)[0] == 1
            assert publications(connection) == ["mine"]


def test_a_slot_of_another_plugin_is_refused_with_its_name(postgres15, headwater):
    with fresh_database(postgres15.url) as url, prepare(url) as connection:
        connection.execute("select pg_create_logical_replication_slot('foreign', 'test_decoding')")
        code, output, errors = headwater("tail", "--slot", "foreign", "--publication", "pub", "--url", url)
    assert (code, output) == (1, "")
    assert "'foreign' speaks test_decoding" in errors


def test_a_slot_of_another_database_is_refused_with_both_names(database, postgres18, headwater):
    with prepare(database) as connection:
        code, output, errors = headwater(*FROM_SLOT, "--url", postgres18.url)
        assert (code, output) == (1, "")
        assert f"belongs to database '{connection.info.dbname}'" in errors


def test_a_full_disk_for_spilled_transactions_is_reported_and_nothing_is_confirmed(database, headwater):
    with prepare(database) as connection:
        connection.execute(f"alter database {connection.info.dbname} set logical_decoding_work_mem = '64kB'".encode())
        before = confirmed_flush(connection)
        with started(database, *FROM_SLOT, preexec_fn=_no_large_files) as tail:
            eventually(lambda: connection.execute("select from pg_replication_slots where active").fetchall())
            connection.execute("insert into item select g, repeat('x', 1000) from generate_series(1, 5000) g")
            _, errors = tail.communicate(timeout=15)
        assert tail.returncode == 1
        assert "cannot keep transaction" in errors.splitlines()[-1]
        assert "Traceback" not in errors
        assert confirmed_flush(connection) <= Lsn(before + (1 << 20))
        assert len(printed(headwater(*FROM_SLOT, "--once", "--url", database)[1])) == 5000


def test_a_full_device_for_the_output_is_one_line_and_nothing_is_confirmed(database, headwater):
    with prepare(database, "insert into item values (1), (2)") as connection:
        before = confirmed_flush(connection)
        with Path("/dev/full").open("w") as full, started(database, *FROM_SLOT, "--once", stdout=full) as tail:
            _, errors = tail.communicate(timeout=15)
        assert (tail.returncode, errors) == (1, "error: cannot write the output: No space left on device\n")
        assert confirmed_flush(connection) <= Lsn(before + 4096)
    assert printed_ids(headwater(*FROM_SLOT, "--once", "--url", database)[1]) == [1, 2]


def _no_large_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_disk_that_gets_full_under_the_output_costs_nothing(database, tmp_path, unbuffered, monkeypatch):
    """An unbuffered standard output takes what fits and forgets the rest without a word."""
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    output = tmp_path / "changes.jsonl"
    with prepare(database) as connection:
        connection.execute("insert into item select g, repeat('x', 200) from generate_series(1, 5000) g")
        command = [sys.executable, "-m", "headwater.cli", *FROM_SLOT, "--once"]
        environment = {**os.environ, "HEADWATER_URL": database}
        with output.open("ab") as file:
            first = subprocess.run(
                command, stdout=file, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=_no_large_files
            )
        assert first.returncode == 1
        assert first.stderr == "error: cannot write the output: File too large\n"
        with output.open("ab") as file:
            assert subprocess.run(command, stdout=file, env=environment).returncode == 0
    # The line at which it got full is cut off; what follows begins on a line of its own.
    whole = [
        json.loads(line) for line in output.read_text().splitlines() if line.startswith('{"id"') and line.endswith("]}")
    ]
    assert {line["after"]["id"] for line in whole} == set(range(1, 5001))


def test_output_is_utf_8_whatever_the_locale_says(database, monkeypatch):
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    with prepare(database, "insert into item values (1, '✓')"):
        with started(database, *FROM_SLOT, "--once", encoding="utf-8") as tail:
            assert printed(tail.communicate(timeout=15)[0])[0]["after"]["v"] == "✓"
