"""`headwater queue` against real servers: the tables and rights, jobs in all states, limits, and workers as processes."""

import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.error import HTTPError
from urllib.request import urlopen

import psycopg
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from psycopg.conninfo import make_conninfo

from headwater import queue
from headwater.errors import JobError
from headwater.postgres.connect import connect_sync
from headwater.queue import NewJob, operate
from headwater.queue.operate_statements import Limits
from tests.support.servers.tcp_proxy import Proxy
from tests.support.waiting import eventually


@pytest.fixture
def connection(database):
    with closing(connect_sync(database)) as connection:
        queue.prepare_queue(connection)
        yield connection


@pytest.fixture
def program(headwater, database):
    """`headwater queue` on the database."""

    def call(*arguments):
        return headwater("queue", *arguments, "--url", database)

    return call


@pytest.fixture
def answer(program):
    """What `headwater queue ... --json` says."""

    def call(*arguments):
        code, output, errors = program(*arguments, "--json")
        assert (code, errors) == (0, "")
        return json.loads(output)

    return call


def claim(connection, *kinds, most=10, lease="30 seconds", of="default", worker="w:1"):
    """Ids and epochs of jobs that are claimed by somebody."""
    query = "select id, epoch from headwater.queue_claim_1(%s, %s, %s, %s::interval, %s, true, null, null)"
    return connection.execute(query, [of, list(kinds), most, lease, worker]).fetchall()


def give_up(connection, *kinds, error="no such customer", of="default"):
    """Claim all jobs of some kinds, and give them up."""
    ids, epochs = map(list, zip(*claim(connection, *kinds, most=1000, of=of), strict=True))
    query = "select headwater.queue_give_up_1(%s, %s, %s, %s)"
    return connection.execute(query, [ids, epochs, [error] * len(ids), ["ValueError"] * len(ids)]).fetchall()


def finish(connection, *kinds, at=None):
    ids, epochs = map(list, zip(*claim(connection, *kinds, most=1000), strict=True))
    connection.execute("select headwater.queue_finish_1(%s, %s, 'done')", [ids, epochs])
    if at is not None:
        connection.execute("update headwater.job_done set finished_at = %s where id = any(%s)", [at, ids])
    return ids


def states(connection):
    return dict(connection.execute("select id, state from headwater.job_state order by id").fetchall())


def test_init_makes_the_tables_and_again_changes_nothing(any_database, headwater):
    for _ in range(2):
        assert headwater("queue", "init", "--url", any_database) == (
            0,
            "the queue is in schema headwater; have its jobs done with `headwater queue work MODULE:WORKER`\n",
            "",
        )
    assert headwater("queue", "enqueue", "a", "--url", any_database) == (0, "job 1: in queue default\n", "")


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("list",),
        ("show", "1"),
        ("retry", "1"),
        ("cancel", "1"),
        ("purge", "--state", "done", "--before", "1d"),
        ("pause", "q"),
        ("resume", "q"),
        ("limit", "q"),
        ("enqueue", "a"),
    ],
)
def test_without_tables_each_command_says_how_to_make_them(database, headwater, command):
    code, output, errors = headwater("queue", *command, "--url", database)
    assert (code, output) == (1, "")
    assert errors == "error: this database has no queue, or that of an earlier release; run `headwater queue init` first\n"


@pytest.mark.parametrize(
    "command",
    ["cancel", "enqueue", "init", "limit", "list", "pause", "purge", "resume", "retry", "show", "status", "work"],
    ids=str,
)
def test_every_command_teaches_by_examples(headwater, command):
    code, output, _ = headwater("queue", command, "--help")
    assert (code, "Examples:" in output, f"headwater queue {command}" in output) == (0, True, True)


@pytest.fixture
def role(connection):
    name = f"App {connection.info.dbname}"
    connection.execute(f'create role "{name}"')
    yield name
    connection.execute("reset role")
    connection.execute(f'drop owned by "{name}"')
    connection.execute(f'drop role "{name}"')


@pytest.fixture
def as_role(database, role):
    return make_conninfo(database, options=f"-c role={role.replace(' ', chr(92) + ' ')}")


def test_a_role_that_may_enqueue_can_in_every_way_and_cannot_read_or_work(connection, program, role):
    code, output, errors = program("init", "--grant", role)
    assert (code, output.splitlines()[-1], errors) == (0, f"role {role} may enqueue", "")
    connection.execute(f'set role "{role}"')

    queue.require_queue(connection)
    assert queue.enqueue_sync(connection, "a", {"n": 1}) == 1
    for _ in range(2):
        assert queue.enqueue_sync(connection, "a", unique="u") == 2
        assert queue.enqueue_sync(connection, "a", idempotency_key="i") == 3
    # The key leads to the job that is there, which is noted.
    assert queue.enqueue_sync(connection, "a", unique="u", idempotency_key="j") == 2
    queue.enqueue_many_sync(connection, [NewJob("b", n) for n in range(3)])
    connection.execute("insert into headwater.job (kind) values ('bare')")
    for query in (
        "select payload from headwater.job",
        "table headwater.job_state",
        "table headwater.job_dead",
        "update headwater.job set priority = 9",
        "delete from headwater.job",
        "insert into headwater.job (kind, epoch) values ('a', 1)",
        "update headwater.job_idempotency set kind = 'b'",
        "select * from headwater.queue_claim_1('default', '{a}', 1, '1 s', 'w', true, null, null)",
        "select headwater.queue_cancel_1('{1}')",
        "select headwater.queue_keep_days_1('0 s')",
        "insert into headwater.queue (name, is_paused) values ('default', true)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(query)


async def test_an_enqueuer_needs_no_more_than_the_right_to_enqueue(program, role, as_role):
    program("init", "--grant", role)
    async with queue.Enqueuer(as_role) as enqueuer:
        assert await enqueuer.enqueue("a") == 1
        assert await enqueuer.enqueue("a", idempotency_key="i") == 2


def test_a_role_that_may_work_looks_at_jobs_and_cancels_some_and_does_not_retry_purge_or_limit(
    connection, headwater, program, role, as_role
):
    assert program("init", "--grant-work", role)[1].splitlines()[-1] == f"role {role} may enqueue, and work"

    def may(*arguments):
        code, _, errors = headwater("queue", *arguments, "--url", as_role)
        assert (code, "permission denied for" in errors) in ((0, False), (1, True))
        return code == 0

    assert may("enqueue", "a")
    assert may("enqueue", "b")
    give_up(connection, "b")
    for arguments in (["status"], ["list"], ["show", "1"], ["cancel", "1"]):
        assert may(*arguments), arguments
    for arguments in (
        ["retry", "2"],
        ["purge", "--state", "error", "--before", "0s", "--yes"],
        ["purge", "--state", "done", "--before", "0s", "--yes"],
        ["pause", "default"],
        ["resume", "default"],
        ["limit", "default", "--running", "1"],
    ):
        assert not may(*arguments), arguments
    assert states(connection) == {1: "cancelled", 2: "error"}


def test_a_role_that_is_not_there_is_named(connection, program):
    code, _, errors = program("init", "--grant", "nobody_here")
    assert (code, 'role "nobody_here" does not exist; create it first, or correct its name' in errors) == (1, True)


def test_a_job_is_enqueued_as_told_and_shown(connection, program, answer):
    enqueued = answer(
        "enqueue",
        "send",
        '{"id": 7, "to": "Zoë"}',
        *("--queue", "mail", "--priority", "3", "--run-at", "2090-01-01T00:00:00Z"),
        *("--key", "customer 3", "--unique", "u", "--idempotency-key", "i"),
    )
    assert enqueued == {"id": 1}
    assert answer("enqueue", "send", "2", "--unique", "u") == {"id": 1}
    assert answer("enqueue", "send", "3", "--idempotency-key", "i") == {"id": 1}

    shown = answer("show", "1")
    assert shown.pop("created_at") is not None
    assert shown == {
        "id": 1,
        "queue": "mail",
        "kind": "send",
        "state": "scheduled",
        "attempt": 0,
        "priority": 3,
        "run_at": "2090-01-01T00:00:00+00:00",
        "key": "customer 3",
        "payload": {"id": 7, "to": "Zoë"},
        "claimed_at": None,
        "lease_until": None,
        "finished_at": None,
        "worker": None,
        "error": None,
        "error_class": None,
        "unique_key": "u",
        "trace": None,
        "is_cancelled": False,
    }
    code, output, _ = program("show", "1")
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in output.splitlines())
    assert code == 0
    assert (facts["job"], facts["state"], facts["unique"], facts["payload"]) == (
        "1",
        "scheduled",
        "u",
        '{"id": 7, "to": "Zoë"}',
    )
    assert "worker" not in facts


def test_the_payload_may_come_from_standard_input_and_the_time_be_a_while_from_now(connection, database):
    command = [sys.executable, "-m", "headwater.cli", "queue", "enqueue", "a", "-", "--run-at", "10m", "--url", database]
    done = subprocess.run(command, input='{"ö": [1, null]}', capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "job 1: in queue default\n", "")
    (payload, run_at) = connection.execute("select payload, run_at from headwater.job").fetchone()
    assert payload == {"ö": [1, None]}
    assert timedelta(minutes=9) < run_at - datetime.now(UTC) < timedelta(minutes=11)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a", "{nonsense"], "the payload is no JSON: "),
        (["a", "[" * 100_000], "the payload is no JSON: "),
        (["a", "NaN"], "cannot be written as JSON"),
        (["a", '"\\u0000"'], "has a character that PostgreSQL cannot keep"),
        (["a", json.dumps("x" * 1_100_000)], "and 1048576 are the most; keep it in a table"),
        (["", "1"], "the kind of a job is a text of 1 to 200 characters"),
        (["a", "--queue", "no queue"], "'no queue' cannot be a queue; use up to 100 letters, digits and . _ -"),
        (["a", "--queue", "q" * 101], "cannot be a queue"),
        (["a", "--priority", "10"], "less than or equal to 9"),
        (["a", "--run-at", "soon"], "--run-at must be a time such as 2026-11-16T10:00:00Z, or a duration from now on"),
        (["a", "--run-at", "2026-11-16T10:00:00"], "does not say in which time zone"),
    ],
)
def test_what_cannot_be_a_job_is_refused_with_the_reason(connection, program, arguments, said):
    code, output, errors = program("enqueue", *arguments)
    assert (code, output) == (2, "")
    assert said in " ".join(errors.replace("│", " ").split())
    assert states(connection) == {}


def test_a_queue_that_cannot_be_leaves_the_transaction_of_the_application_as_it_was(connection):
    with connection.transaction():
        with pytest.raises(JobError, match="cannot be a queue"):
            queue.enqueue_sync(connection, "a", queue="no queue")
        assert queue.enqueue_sync(connection, "a") == 1


@pytest.fixture
def jobs(connection):
    """One of each state: 1 done, 2 in error, 3 cancelled, 4 claimed, 5 scheduled for another day, 6 due, 7 elsewhere."""
    later = datetime.now(UTC) + timedelta(days=1)
    for kind, due in (("done", None), ("bad", None), ("mistake", None), ("slow", None), ("later", later), ("due", None)):
        queue.enqueue_sync(connection, kind, {"kind": kind}, run_at=due)
    queue.enqueue_sync(connection, "due", queue="other", key="k")
    finish(connection, "done")
    give_up(connection, "bad")
    operate.cancel_jobs(connection, [3])
    claim(connection, "slow")
    return connection


def test_jobs_are_listed_by_state_queue_and_kind_the_newest_first(jobs, program, answer):
    assert [(one["id"], one["state"]) for one in answer("list")] == [
        (7, "scheduled"),
        (6, "scheduled"),
        (5, "scheduled"),
        (4, "claimed"),
        (3, "cancelled"),
        (2, "error"),
        (1, "done"),
    ]
    for arguments, ids in (
        (["--state", "error"], [2]),
        (["--state", "scheduled", "--limit", "2"], [7, 6]),
        (["--kind", "due"], [7, 6]),
        (["--kind", "due", "--queue", "default"], [6]),
        (["--state", "done"], [1]),
        (["--state", "cancelled"], [3]),
        (["--state", "claimed"], [4]),
    ):
        assert [one["id"] for one in answer("list", *arguments)] == ids, arguments
    (bad,) = answer("list", "--state", "error")
    assert (bad["error"], bad["error_class"], bad["attempt"], bad["worker"]) == ("no such customer", "ValueError", 1, "w:1")

    code, output, _ = program("list", "--state", "error")
    heading, row = output.splitlines()
    assert (code, heading.split()[:5]) == (0, ["id", "queue", "kind", "state", "attempts"])
    assert row.startswith("2   default  bad   error  1  ")
    assert row.endswith('no such customer  {"kind": "bad"}')
    assert program("list", "--kind", "nothing") == (0, "there is no such job\n", "")


def test_what_jobs_carry_cannot_drive_a_terminal(connection, program):
    queue.enqueue_sync(connection, "\x1b[2J", "\x1b]0;x\x07", key="\x1b[31m")
    for arguments in (["list"], ["show", "1"], ["status"]):
        assert "\x1b" not in program(*arguments)[1], arguments


@pytest.mark.parametrize("command", [["show", "99"], ["show", "99", "--json"]])
def test_a_job_that_is_not_there_is_named(connection, program, command):
    assert program(*command) == (
        1,
        "",
        "error: there is no job 99; it was purged, or its number is another one\n",
    )


@pytest.mark.parametrize("id", ["0", "x", str(2**63)])
def test_an_id_that_cannot_be_is_wrong_usage(connection, program, id):
    for command in ("show", "retry", "cancel"):
        assert program(command, id)[:2] == (2, "")


def test_the_status_has_queues_kinds_and_limits(jobs, program, answer):
    operate.limit(jobs, Limits("other", is_ordered=True, rate=5, rate_per=timedelta(minutes=1)))
    operate.pause(jobs, "quiet")

    found = answer("status")
    default, other, quiet = found["queues"]
    oldest = default.pop("oldest_due_seconds")
    assert oldest > 0
    kinds = {one.pop("kind"): one for one in default.pop("kinds")}
    no_limits = {
        "ordered": False,
        "running": None,
        "running_per_key": None,
        "rate": None,
        "rate_per_seconds": None,
        "rate_per_key": None,
        "rate_per_key_per_seconds": None,
    }
    assert default == {
        "queue": "default",
        "is_paused": False,
        "scheduled": 1,
        "due": 1,
        "claimed": 1,
        "in_error": 1,
        "done_last_hour": 1,
        "done_last_day": 1,
        "limits": no_limits,
    }
    assert kinds == {
        "due": {"scheduled": 0, "due": 1, "claimed": 0, "oldest_due_seconds": oldest},
        "later": {"scheduled": 1, "due": 0, "claimed": 0, "oldest_due_seconds": None},
        "slow": {"scheduled": 0, "due": 0, "claimed": 1, "oldest_due_seconds": None},
    }
    assert other["limits"] == {**no_limits, "ordered": True, "rate": 5, "rate_per_seconds": 60}
    assert (quiet["queue"], quiet["is_paused"], quiet["kinds"]) == ("quiet", True, [])

    code, output, _ = program("status")
    queues, by_kind, rest = output.split("\n\n")
    assert code == 0
    assert [line.split()[0] for line in queues.splitlines()] == ["queue", "default", "other", "quiet"]
    assert queues.splitlines()[2].endswith("in order by key, 5/minute")
    assert queues.splitlines()[3].endswith("paused")
    assert by_kind.splitlines()[1].startswith("default  due    0          1    0        ")
    assert rest.startswith("done and kept: ")


def test_a_claim_whose_lease_has_ended_is_due_again(connection, answer):
    queue.enqueue_sync(connection, "a")
    claim(connection, "a", lease="-1 seconds")
    (found,) = answer("status")["queues"]
    assert (found["due"], found["claimed"]) == (1, 0)
    assert found["oldest_due_seconds"] > 0


def test_an_empty_queue_says_so(connection, program):
    assert program("status")[1].splitlines()[0] == "nothing is in a queue"


def test_what_was_done_of_late_is_counted_by_queue(connection, program, answer):
    now = datetime.now(UTC)
    for ago in (timedelta(0), timedelta(hours=2), timedelta(hours=25)):
        queue.enqueue_sync(connection, "a")
        finish(connection, "a", at=now - ago)
    (found,) = answer("status")["queues"]
    assert (found["queue"], found["done_last_hour"], found["done_last_day"]) == ("default", 1, 2)
    assert program("status")[1].splitlines()[1].split() == ["default", "0", "0", "0", "0", "1", "2"]


def test_the_done_are_estimated_by_day_without_a_look_at_them_if_that_would_be_slow(jobs, program, answer, monkeypatch):
    monkeypatch.setattr(operate, "_COUNTED_BYTES", 0)
    reads = "select sum(seq_scan) + sum(idx_scan) from pg_stat_all_tables where relname ~ '^job_done'"
    # What this session has written and read is counted before the others'.
    jobs.execute("select pg_stat_force_next_flush()")
    jobs.execute("analyze headwater.job_done")
    jobs.execute("select pg_stat_force_next_flush()")
    read_before = jobs.execute(reads).fetchone()
    status = answer("status")
    assert {one["done_last_day"] for one in status["queues"]} == {None}
    found = status["done"]
    assert (found["jobs_estimate"], [one["jobs_estimate"] for one in found["days"]]) == (2, [2])
    assert found["days"][0]["day"] == f"{datetime.now(UTC):%Y-%m-%d}"
    assert found["bytes"] > 0
    assert jobs.execute(reads).fetchone() == read_before
    said = re.search("done and kept: (.*)", program("status")[1])
    assert said is not None
    assert re.fullmatch(r"about 2 in .*, 2 of them on \S+ \(UTC\), by the server's estimate", said[1])


def test_jobs_in_error_are_retried_by_their_ids_as_if_for_the_first_time(jobs, program, answer):
    assert program("retry", "2") == (0, "to be tried again: 1\n", "")
    found = answer("show", "2")
    assert (found["state"], found["attempt"], found["error"]) == ("scheduled", 0, "no such customer")

    code, output, errors = program("retry", "1", "6", "99")
    assert (code, output) == (1, "to be tried again: 0\n")
    assert errors == (
        "error: job 1 is done, job 6 is scheduled, job 99 is not there; only one in error is retried, unless its unique key "
        "is another job's by now\n"
    )


def test_all_jobs_in_error_are_retried_or_those_of_a_queue_or_kind(connection, program, monkeypatch):
    monkeypatch.setattr(operate, "_PART", 3)
    for of, kind in (("default", "a"), ("default", "b"), ("other", "a")):
        queue.enqueue_many_sync(connection, [NewJob(kind, queue=of) for _ in range(4)])
        give_up(connection, kind, of=of)
    assert program("retry", "--all", "--queue", "other", "--kind", "b") == (0, "to be tried again: 0\n", "")
    assert program("retry", "--all", "--queue", "other") == (0, "to be tried again: 4\n", "")
    assert program("retry", "--all", "--kind", "a") == (0, "to be tried again: 4\n", "")
    assert program("retry", "--all") == (0, "to be tried again: 4\n", "")
    assert set(states(connection).values()) == {"scheduled"}


@pytest.mark.parametrize(
    "arguments",
    [[], ["1", "--all"], ["1", "--queue", "q"], ["--queue", "q"], ["--kind", "a"]],
    ids=lambda one: " ".join(one),
)
def test_what_is_to_be_retried_has_to_be_said_in_one_way(connection, program, arguments):
    code, output, errors = program("retry", *arguments)
    assert (code, output) == (2, "")
    assert errors.startswith("error: name the jobs by their ids, or say --all")


def test_of_jobs_in_error_that_share_a_unique_key_one_is_retried(connection, program):
    for _ in range(3):
        queue.enqueue_sync(connection, "a", unique="u")
        give_up(connection, "a")
    queue.enqueue_sync(connection, "b", unique="u")
    give_up(connection, "b")
    assert program("retry", "--all") == (0, "to be tried again: 2\n", "")
    assert states(connection) == {1: "error", 2: "error", 3: "scheduled", 4: "scheduled"}
    code, _, errors = program("retry", "1")
    assert (code, "job 1 is in error; only one in error is retried, unless its unique key is another" in errors) == (1, True)


def test_a_retry_wakes_workers(jobs, database, program):
    with closing(connect_sync(database)) as listener:
        listener.execute("listen headwater_queue")
        program("retry", "2")
        assert [one.payload for one in listener.notifies(timeout=10, stop_after=1)] == ["default"]


def test_jobs_are_cancelled_by_their_ids_and_who_does_one_is_told(jobs, database, program, answer):
    with closing(connect_sync(database)) as listener:
        listener.execute("listen headwater_queue_cancel")
        assert program("cancel", "4", "6") == (0, "cancelled: 1; being done, and their workers are told: 1\n", "")
        assert [one.payload for one in listener.notifies(timeout=10, stop_after=1)] == ["4"]
    assert (answer("show", "4")["state"], answer("show", "4")["is_cancelled"]) == ("claimed", True)
    assert "claimed, and to be cancelled" in program("show", "4")[1]
    assert answer("show", "6")["state"] == "cancelled"

    code, output, errors = program("cancel", "1", "2", "7", "--json")
    assert (code, json.loads(output)) == (1, {"cancelled": 1, "told": 0})
    assert errors == ("error: job 1 is done, job 2 is in error; only one that is scheduled or claimed can be cancelled\n")


def test_all_jobs_of_a_kind_or_queue_are_cancelled_after_a_question(connection, program, monkeypatch):
    monkeypatch.setattr(operate, "_PART", 3)
    queue.enqueue_many_sync(connection, [NewJob(kind, queue=of) for kind in "ab" for of in ("x", "y") for _ in range(4)])
    code, output, errors = program("cancel", "--queue", "x", "--kind", "a")
    assert (code, output) == (2, "")
    assert errors == "error: there is no terminal to ask at; say --yes if it is meant\n"
    assert program("cancel", "--queue", "x", "--kind", "a", "--yes") == (0, "cancelled: 4\n", "")
    assert program("cancel", "--kind", "a", "--yes") == (0, "cancelled: 4\n", "")
    assert program("cancel", "--queue", "x", "-y") == (0, "cancelled: 4\n", "")
    # Nothing to ask about.
    assert program("cancel", "--queue", "x") == (0, "cancelled: 0\n", "")
    assert sorted(states(connection).values()) == ["cancelled"] * 12 + ["scheduled"] * 4


@pytest.mark.parametrize("arguments", [[], ["1", "--queue", "q"], ["--yes"]], ids=lambda one: " ".join(one))
def test_what_is_to_be_cancelled_has_to_be_said_in_one_way(connection, program, arguments):
    code, output, errors = program("cancel", *arguments)
    assert (code, output) == (2, "")
    assert errors.startswith("error: name the jobs by their ids, or those of a queue or kind")


def test_what_was_given_up_before_a_time_is_purged_after_a_question(connection, program, answer):
    for _ in range(2):
        queue.enqueue_sync(connection, "a")
        give_up(connection, "a")
    connection.execute("update headwater.job_dead set finished_at = now() - interval '8 days' where id = 1")

    code, _, errors = program("purge", "--state", "error", "--before", "7d")
    assert (code, errors) == (2, "error: there is no terminal to ask at; say --yes if it is meant\n")
    assert program("purge", "--state", "error", "--before", "7d", "--yes") == (0, "deleted: 1\n", "")
    assert states(connection) == {2: "error"}
    now = datetime.now(UTC) + timedelta(seconds=-1)
    assert answer("purge", "--state", "error", "--before", now.isoformat(), "--yes")["jobs"] == 0


def test_days_of_done_jobs_are_dropped_as_a_whole_and_the_rest_one_by_one(connection, program):
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for days in (2, 1):
        day, end = today - timedelta(days=days), today - timedelta(days=days - 1)
        connection.execute(
            f"create table headwater.job_done_{day:%Y%m%d} partition of headwater.job_done "
            f"for values from ('{day.isoformat()}') to ('{end.isoformat()}')"
        )
    at = [today - timedelta(hours=30), today - timedelta(hours=2), today - timedelta(hours=1), datetime.now(UTC)]
    for moment in at:
        queue.enqueue_sync(connection, "a")
        finish(connection, "a", at=moment)
    connection.execute("analyze headwater.job_done")

    until = today - timedelta(minutes=90)
    code, output, errors = program("purge", "--state", "done", "--before", until.isoformat(), "--yes")
    assert (code, output, errors) == (0, "dropped: 1 days with about 1 jobs; deleted: 1\n", "")
    assert states(connection) == {3: "done", 4: "done"}
    (named,) = connection.execute("select to_regclass(%s)", [f"headwater.job_done_{at[0]:%Y%m%d}"]).fetchone()
    assert named is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--state", "done", "--before", "yesterday"],
            "--before must be a time such as 2026-11-16T10:00:00Z, or an age such as",
        ),
        (["--state", "done", "--before", "2090-01-01T00:00:00Z", "--yes"], "is not over yet; name a time before now"),
        (["--state", "scheduled", "--before", "1d"], "'scheduled' is not one of 'error', 'done'"),
        (["--state", "done"], "Missing option '--before'"),
        (["--before", "1d"], "Missing option '--state'"),
    ],
)
def test_a_purge_that_cannot_be_meant_is_refused(jobs, program, arguments, said):
    code, output, errors = program("purge", *arguments)
    assert (code, output) == (2, "")
    assert said in " ".join(errors.replace("│", " ").split())
    assert len(states(jobs)) == 7


def test_a_queue_is_paused_and_goes_on_and_its_workers_are_woken(connection, database, program):
    queue.enqueue_sync(connection, "a", queue="mail")
    assert program("pause", "mail") == (0, "queue mail: paused\n", "")
    assert claim(connection, "a", of="mail") == []
    with closing(connect_sync(database)) as listener:
        listener.execute("listen headwater_queue")
        assert program("resume", "mail") == (0, "queue mail: goes on\n", "")
        assert [one.payload for one in listener.notifies(timeout=10, stop_after=1)] == ["mail"]
    assert len(claim(connection, "a", of="mail")) == 1


def test_a_queue_of_which_no_job_was_seen_is_hinted_at_and_changed_all_the_same(connection, program, answer):
    hint = "; no job of it was seen so far, so check its name\n"
    assert program("pause", "mial") == (0, f"queue mial: paused{hint}", "")
    assert program("resume", "mial") == (0, f"queue mial: goes on{hint}", "")
    assert program("limit", "mial", "--running", "3") == (0, f"queue mial: 3 at once{hint}", "")
    assert answer("limit", "mial")["running"] == 3
    queue.enqueue_sync(connection, "a", queue="mail")
    assert program("pause", "mail")[1] == "queue mail: paused\n"
    program("resume", "mail")
    # Also when it was given up, or is done.
    give_up(connection, "a", of="mail")
    assert program("limit", "mail")[1] == "queue mail: no limits\n"
    queue.enqueue_sync(connection, "b")
    finish(connection, "b")
    assert program("limit", "default")[1] == "queue default: no limits\n"


def test_limits_are_set_one_by_one_shown_and_taken_away(connection, program, answer):
    queue.enqueue_sync(connection, "a", queue="mail")
    assert program("limit", "mail") == (0, "queue mail: no limits\n", "")
    assert connection.execute("select count(*) from headwater.queue").fetchone() == (0,)
    assert program("limit", "mail", "--running", "10", "--rate", "100/second")[1] == "queue mail: 10 at once, 100/second\n"
    assert program("limit", "mail", "--rate-per-key", "5/10s", "--ordered", "--running-per-key", "2")[1] == (
        "queue mail: in order by key, 10 at once, 2 of a key at once, 100/second, 5/10s of a key\n"
    )
    program("pause", "mail")
    assert program("limit", "mail", "--no-ordered", "--rate", "1/hour")[1] == (
        "queue mail: 10 at once, 2 of a key at once, 1/hour, 5/10s of a key, and paused\n"
    )
    assert answer("limit", "mail") == {
        "queue": "mail",
        "is_paused": True,
        "ordered": False,
        "running": 10,
        "running_per_key": 2,
        "rate": 1,
        "rate_per_seconds": 3600,
        "rate_per_key": 5,
        "rate_per_key_per_seconds": 10,
    }
    assert program("limit", "mail", "--none", "--running", "3")[1] == "queue mail: 3 at once, and paused\n"
    assert program("limit", "mail", "--none")[1] == "queue mail: no limits, and paused\n"


def test_a_limit_holds_for_what_is_claimed_and_counts_what_was_before_it(connection, program):
    queue.enqueue_many_sync(connection, [NewJob("a") for _ in range(10)])
    assert len(claim(connection, "a", most=2)) == 2
    program("limit", "default", "--running", "3")
    assert len(claim(connection, "a")) == 1
    assert claim(connection, "a") == []
    program("limit", "default", "--running", "5")
    assert len(claim(connection, "a")) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mail", "--rate", "fast"], "--rate must be a rate such as 100/second, 10/minute or 5/10s, not 'fast'"),
        (["mail", "--rate", "5/fortnight"], "--rate must be a rate"),
        (["mail", "--rate", "0/second"], "--rate must be a rate"),
        (["mail", "--rate", "5/0s"], "--rate must be a rate"),
        (["mail", "--rate-per-key", "5"], "--rate-per-key must be a rate"),
        (["mail", "--running", "0"], "greater than or equal to 1"),
        (["no queue"], "'no queue' cannot be a queue"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(connection, program, arguments, said):
    code, output, errors = program("limit", *arguments)
    assert (code, output) == (2, "")
    assert said in " ".join(errors.replace("│", " ").split())
    for command in ("pause", "resume"):
        if arguments == ["no queue"]:
            assert program(command, *arguments)[0] == 2


JOBS = """
import asyncio, time
from datetime import timedelta
from pathlib import Path
from headwater.queue import Discard, Done, FullJitter, Retry, Worker, WorkerSettings

worker = Worker(["default"], WorkerSettings(poll=timedelta(milliseconds=100)))

@worker.handler("note")
async def note(job):
    return Done()

@worker.handler("gate")
async def gate(job):
    Path(f"began-{job.id}").touch()
    while not Path("open").exists():
        await asyncio.sleep(0.01)

@worker.handler("block")
async def block(job):
    Path(f"began-{job.id}").touch()
    time.sleep(60)

@worker.handler("twice", retry=FullJitter(base="0s", most=3))
async def twice(job):
    if job.attempt == 1:
        raise OSError("not yet")

@worker.handler("never")
async def never(job):
    return Discard("there is no such customer")

ticking = Worker("ticks")
ticking.periodic("* * * * *", "tick", name="every minute")

@ticking.handler("tick")
async def tick(job):
    pass

idle = Worker()
"""


# Jobs that end at once, up to the first one behind which others are claimed: that waits for a file `open`. How many are
# claimed ahead follows from the rate of jobs, which is measured anew after every second job here.
CROWD = """
crowded = Worker("default", WorkerSettings(claim_most=2))

@crowded.handler("crowd")
async def crowd(job):
    if not crowded.counts.waiting:
        return
    Path(f"began-{job.id}").touch()
    while any(task.get_name() == "queue claims" for task in asyncio.all_tasks()):
        await asyncio.sleep(0.01)
    # The worker claims no more. It begins to wait for the jobs in hand a few turns of the event loop later.
    for _ in range(100):
        await asyncio.sleep(0)
    Path("closing").touch()
    while not Path("open").exists():
        await asyncio.sleep(0.01)
"""


@pytest.fixture
def place(tmp_path):
    """A directory with a module `jobs`."""
    (tmp_path / "jobs.py").write_text(JOBS)
    return tmp_path


@contextmanager
def working(place, url, *options, target="jobs:worker", **environment):
    """The program as a process in a directory, and the file of its log; it has claimed once."""
    log = place / f"{target}.log"
    command = [sys.executable, "-m", "headwater.cli", "queue", "work", target, "--url", url, *options]
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=out, cwd=place, env=os.environ | environment) as process,
    ):
        try:
            eventually(lambda: process.poll() is not None or f"worker {target}: does " in log.read_text())
            assert process.poll() is None, log.read_text()
            yield process, log
        finally:
            if process.poll() is None:
                process.kill()


def said(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def catches(process, number):
    with open(f"/proc/{process.pid}/status") as status:  # noqa: PTH123 - no file of ours
        caught = next(line for line in status if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_does_what_is_enqueued_and_ends_with_0_when_it_is_told_to(connection, database, place, answer, end):
    before = queue.enqueue_many_sync(connection, [NewJob("note", n) for n in range(20)])
    with working(place, database) as (process, log):
        eventually(lambda: states(connection) == dict.fromkeys(before, "done"))
        after = queue.enqueue_sync(connection, "note")
        eventually(lambda: states(connection)[after] == "done")
        assert answer("status")["workers_connected"] == 1
        process.send_signal(end)
        assert process.wait(15) == 0
    first, *_, last = said(log)
    assert first["message"].startswith(
        "worker jobs:worker: does block, gate, never, note, twice of default, 64 at once, at "
    )
    assert last["message"] == "worker jobs:worker: stopped; done 21, given up 0, to be tried again 0, given back 0"
    assert [line for line in said(log) if line["level"] not in ("info", "debug")] == []


def test_told_to_end_it_finishes_what_is_in_hand_and_gives_back_the_rest(connection, database, place):
    (place / "jobs.py").write_text(JOBS + CROWD)
    ids = queue.enqueue_many_sync(connection, [NewJob("crowd") for _ in range(100)])

    def found(state):
        return [id for id, one in states(connection).items() if one == state]

    with working(place, database, "--concurrency", "1", target="jobs:crowded") as (process, log):
        began = eventually(lambda: next(place.glob("began-*"), None))
        in_hand = int(began.name.removeprefix("began-"))
        # Outcomes of jobs before it may not be written yet.
        ahead = [id for id in found("claimed") if id > in_hand]
        assert ahead
        process.send_signal(signal.SIGTERM)
        eventually(lambda: (place / "closing").exists() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        # The rest is given back while the one in hand goes on.
        eventually(lambda: found("claimed") == [in_hand])
        (place / "open").touch()
        assert process.wait(15) == 0
    assert (found("done"), found("scheduled")) == (ids[:in_hand], ids[in_hand:])
    # As if they had never been claimed.
    assert connection.execute("select max(attempt) from headwater.job").fetchone() == (0,)
    last = re.search(r"stopped; done (\d+), given up 0, to be tried again 0, given back (\d+)$", said(log)[-1]["message"])
    assert last is not None
    assert int(last[1]) == in_hand
    assert int(last[2]) >= len(ahead)


@pytest.mark.parametrize("kind", ["gate", "block"])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once_also_if_a_handler_blocks(connection, database, place, kind, second):
    queue.enqueue_sync(connection, kind)
    with working(place, database) as (process, _):
        eventually((place / "began-1").exists)
        process.send_signal(signal.SIGTERM)
        # It has taken notice when it catches neither any longer.
        eventually(lambda: not catches(process, second))
        process.send_signal(second)
        assert process.wait(15) == -second
    assert states(connection) == {1: "claimed"}


def ask(port, path):
    try:
        with urlopen(f"http://127.0.0.1:{port}{path}") as answer:
            return answer.status, answer.read().decode()
    except HTTPError as exc:
        with exc:
            return exc.code, exc.read().decode()


def port_of(log):
    return eventually(lambda: next((line["port"] for line in said(log) if "port" in line), None))


def test_monitors_are_answered_and_told_when_it_is_about_to_end(connection, database, place):
    queue.enqueue_many_sync(connection, [NewJob("note"), NewJob("never"), NewJob("gate")])
    with working(place, database, "--listen", "127.0.0.1:0") as (process, log):
        port = port_of(log)
        eventually(lambda: "headwater_queue_done_total 1.0" in ask(port, "/metrics")[1])
        eventually(lambda: "headwater_queue_dead_total 1.0" in ask(port, "/metrics")[1])
        eventually(lambda: "headwater_queue_running_jobs 1.0" in ask(port, "/metrics")[1])
        assert 'headwater_queue_schedule_to_claim_seconds_bucket{le="+Inf"} 3.0' in ask(port, "/metrics")[1]
        assert ask(port, "/health") == ask(port, "/ready") == (200, '{"ok":true,"reason":null}')
        process.send_signal(signal.SIGTERM)
        eventually(lambda: ask(port, "/ready") == (503, '{"ok":false,"reason":"the worker is about to end"}'))
        assert ask(port, "/health")[0] == 200
        (place / "open").touch()
        assert process.wait(15) == 0


def test_it_is_not_ready_while_the_database_is_away_and_goes_on_when_that_is_back(connection, database, place):
    with Proxy(database) as server, working(place, server.url, "--listen", "127.0.0.1:0") as (process, log):
        port = port_of(log)
        eventually(lambda: ask(port, "/ready")[0] == 200)
        server.refuse = True
        server.cut()
        eventually(lambda: ask(port, "/ready") == (503, '{"ok":false,"reason":"the database cannot be reached"}'))
        assert ask(port, "/health")[0] == 200
        queue.enqueue_sync(connection, "note")
        server.refuse = False
        eventually(lambda: states(connection) == {1: "done"})
        eventually(lambda: ask(port, "/ready")[0] == 200)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0


def test_an_address_that_is_taken_is_said_before_anything_starts(connection, place, program, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, _, errors = program("work", "jobs:worker", "--listen", f"127.0.0.1:{port}")
    sys.modules.pop("jobs")
    assert (code, f"cannot listen on 127.0.0.1:{port}" in errors) == (2, True)


def test_options_win_over_what_the_worker_has(connection, database, place):
    queue.enqueue_sync(connection, "gate")
    queue.enqueue_many_sync(connection, [NewJob("gate", queue=of) for of in ("mail", "mail", "reports")])
    options = ("--queue", "mail", "--queue", "reports", "--concurrency", "2", "--listen", "127.0.0.1:0")
    with working(place, database, *options) as (process, log):
        port = port_of(log)
        eventually(lambda: "headwater_queue_running_jobs 2.0" in ask(port, "/metrics")[1])
        # What takes long is not claimed ahead.
        assert list(states(connection).values()).count("claimed") == 2
        (place / "open").touch()
        eventually(lambda: sorted(states(connection).values()) == ["done", "done", "done", "scheduled"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    assert states(connection)[1] == "scheduled"
    assert " of mail, reports, 2 at once, " in said(log)[0]["message"]


def test_a_kind_that_no_worker_knows_waits_and_is_seen(connection, database, place, answer):
    queue.enqueue_many_sync(connection, [NewJob("unheard-of"), NewJob("note")])
    with working(place, database) as (process, _):
        eventually(lambda: states(connection)[2] == "done")
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    (found,) = answer("status")["queues"][0]["kinds"]
    assert (found["kind"], found["due"], found["claimed"]) == ("unheard-of", 1, 0)


def test_a_worker_needs_no_more_than_the_right_to_work(connection, database, place, program, role, as_role):
    program("init", "--grant-work", role)
    program(
        "limit", "limited", "--rate", "100/second", "--running-per-key", "1", "--rate-per-key", "100/second", "--ordered"
    )
    queue.enqueue_many_sync(connection, [NewJob("note"), NewJob("twice"), NewJob("never"), NewJob("gate")])
    queue.enqueue_many_sync(connection, [NewJob("note", queue="limited", key="k") for _ in range(2)])
    options = "--queue", "default", "--queue", "limited", "--concurrency", "1"
    with working(place, as_role, *options) as (process, log):
        eventually((place / "began-4").exists)
        program("cancel", "4")
        (place / "open").touch()
        expected = {1: "done", 2: "done", 3: "error", 5: "done", 6: "done"}
        eventually(lambda: {id: state for id, state in states(connection).items() if id != 4} == expected)
        eventually(lambda: states(connection)[4] in ("cancelled", "done"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    allowed = re.compile(
        r"job 2 of kind twice failed in attempt 1: OSError\('not yet'\)|job 3 of kind never is given up in .*"
    )
    warned = [line["message"] for line in said(log) if line["level"] not in ("info", "debug")]
    assert [one for one in warned if not allowed.fullmatch(one)] == []
    # Also what it may only with the rights of the owner: days of the next week.
    (days,) = connection.execute("select count(*) from pg_class where relname ~ '^job_done_[0-9]{8}$'").fetchone()
    assert days >= 8


def test_a_worker_with_the_right_to_work_enqueues_its_periodic_jobs(connection, place, program, role, as_role, answer):
    program("init", "--grant-work", role)
    connection.execute("insert into headwater.job_cron values ('every minute', '* * * * *', now() - interval '5 minutes')")
    with working(place, as_role, target="jobs:ticking") as (process, _):
        eventually(lambda: list(states(connection).values()) == ["done"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    (periodic,) = answer("status")["periodic"]
    assert (periodic["name"], periodic["expression"]) == ("every minute", "* * * * *")
    assert "every minute  * * * * *   " in program("status")[1]


def test_one_without_the_right_to_work_is_told_so(connection, place, headwater, program, role, as_role, monkeypatch):
    program("init", "--grant", role)
    queue.enqueue_sync(connection, "note")
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    code, _, errors = headwater("queue", "work", "jobs:worker", "--url", as_role)
    sys.modules.pop("jobs")
    # Connections that were being made when it ended; in a process of its own they end with that.
    gc.collect()
    last = errors.splitlines()[-1]
    assert (code, last.startswith("error: "), "permission denied" in last) == (1, True, True)


def test_a_database_without_a_queue_or_none_at_all_or_no_handlers_is_said(database, place, headwater, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])

    def last(*arguments):
        code, _, errors = headwater("queue", "work", *arguments)
        return code, errors.splitlines()[-1]

    assert last("jobs:worker", "--url", database) == (
        1,
        "error: this database has no queue, or that of an earlier release; run `headwater queue init` first",
    )
    code, error = last("jobs:worker", "--url", "postgresql://127.0.0.1:1/shop")
    assert (code, error.startswith("error: no connection to PostgreSQL at ")) == (1, True)
    assert last("jobs:idle", "--url", database) == (
        1,
        "error: the worker has no handlers; give it some with @worker.handler(kind)",
    )
    code, error = last("jobs:worker", "--url", database, "--queue", "no queue")
    assert (code, "'no queue' cannot be a queue" in error) == (2, True)
    sys.modules.pop("jobs")


def test_behind_a_pooler_it_hears_of_jobs_by_another_url(connection, database, place):
    slow = JOBS.replace("poll=timedelta(milliseconds=100)", "poll=timedelta(seconds=100)")
    (place / "jobs.py").write_text(slow)

    def is_heard():
        query = (
            "select count(*) from pg_stat_activity where application_name = 'headwater queue bell' "
            "and datname = current_database() and state = 'idle' and query ~* 'listen .*cancel'"
        )
        return connection.execute(query).fetchone() == (1,)

    with Proxy(database) as direct, working(place, database, "--listen-url", direct.url) as (process, _):
        eventually(is_heard)
        queue.enqueue_sync(connection, "note")
        eventually(lambda: states(connection) == {1: "done"})
        direct.cut()
        eventually(is_heard)
        queue.enqueue_sync(connection, "note")
        eventually(lambda: states(connection) == {1: "done", 2: "done"})
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0


def test_on_a_terminal_a_line_shows_how_it_goes(connection, database, place):
    queue.enqueue_sync(connection, "note")
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "headwater.cli", "queue", "work", "jobs:worker", "--url", database]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=theirs, cwd=place, env=os.environ | {"TERM": "xterm", "COLUMNS": "150"}
    ) as process:
        os.close(theirs)
        seen = b""
        while b"done 1, in hand 0, waiting 0" not in seen:
            seen += os.read(ours, 4096)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0
    os.close(ours)


class Collector:
    """An OTLP/HTTP receiver: all spans that it was sent, by service."""

    def __init__(self):
        self.spans = []
        collector = self

        class Receive(BaseHTTPRequestHandler):
            def do_POST(self):
                assert (self.path, self.headers["Content-Type"]) == ("/v1/traces", "application/x-protobuf")
                request = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                collector.take(request)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Receive)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, request):
        for one in request.resource_spans:
            service = next(each.value.string_value for each in one.resource.attributes if each.key == "service.name")
            self.spans += [(service, span) for scope in one.scope_spans for span in scope.spans]

    def __enter__(self):
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


@pytest.mark.timeout(60)
def test_the_spans_of_a_job_from_enqueue_to_settle_are_one_trace_at_a_collector(connection, database, place):
    with Collector() as collector:
        otel = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        command = [sys.executable, "-m", "headwater.cli", "queue", "enqueue", "note", "7", "--url", database]
        environment = os.environ | otel | {"OTEL_SERVICE_NAME": "shop"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "job 1: in queue default\n", "")
        # One without a trace makes no spans.
        queue.enqueue_sync(connection, "note")
        with working(place, database, **otel) as (process, _):
            eventually(lambda: states(connection) == {1: "done", 2: "done"})
            process.send_signal(signal.SIGTERM)
            assert process.wait(15) == 0
        spans = {span.name: (service, span) for service, span in collector.spans}
    assert len(collector.spans) == 4
    assert {name: service for name, (service, _) in spans.items()} == {
        "enqueue": "shop",
        "claim": "headwater",
        "process note": "headwater",
        "settle": "headwater",
    }
    enqueue, claimed, process_, settle = (spans[name][1] for name in ("enqueue", "claim", "process note", "settle"))
    assert {span.trace_id for _, span in spans.values()} == {enqueue.trace_id}
    assert claimed.parent_span_id == process_.parent_span_id == enqueue.span_id
    assert settle.parent_span_id == process_.span_id
    attributes = {one.key: one.value for one in process_.attributes}
    assert attributes["messaging.message.id"].string_value == "1"
    assert attributes["headwater.kind"].string_value == "note"
    assert enqueue.end_time_unix_nano <= process_.end_time_unix_nano <= settle.end_time_unix_nano
