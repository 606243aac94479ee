"""`headwater topics` against real servers: making, appending and reading."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from headwater import topics
from headwater.postgres.connect import connect_sync
from headwater.topics import Message


@pytest.fixture
def connection(database):
    with closing(connect_sync(database)) as connection:
        topics.prepare_topics(connection)
        yield connection


@pytest.fixture
def orders(connection):
    return topics.create_sync(connection, "orders", partitions=2)


@pytest.fixture
def program(headwater, database):
    """`headwater topics` on the database."""

    def call(*arguments):
        return headwater("topics", *arguments, "--url", database)

    return call


def append(connection, *payloads, key="a", name="orders"):
    topics.append_sync(connection, name, [Message(payload, key) for payload in payloads])


def read_lines(output):
    return [json.loads(line) for line in output.splitlines()]


def test_init_makes_the_tables_and_again_changes_nothing(any_database, headwater):
    for _ in range(2):
        code, output, errors = headwater("topics", "init", "--url", any_database)
        assert (code, errors) == (0, "")
        assert output == "topics are in schema headwater; make one with `headwater topics create NAME`\n"
    with closing(connect_sync(any_database)) as connection:
        assert connection.execute("select count(*) from headwater.topic").fetchone() == (0,)


@pytest.mark.parametrize("command", [("list",), ("create", "orders"), ("read", "orders"), ("groups",), ("append", "orders")])
def test_without_tables_each_command_says_how_to_make_them(database, headwater, command):
    code, output, errors = headwater("topics", *command, "--url", database)
    assert (code, output) == (1, "")
    assert errors == (
        "error: this database has no topics, or those of an earlier release; run `headwater topics init` first\n"
    )


def test_a_topic_is_made_as_told_and_listed(connection, program):
    code, output, errors = program(
        "create", "orders", "--partitions", "4", "--retention", "7 days", "--compression", "zstd", "--max-bytes", "64KiB"
    )
    assert (code, errors) == (0, "")
    assert output == "topic orders: made, with 4 partitions; kept for 7 days\n"
    append(connection, 1, 2, 3)
    topics.number_sync(connection, topics.find_sync(connection, "orders"))
    append(connection, 4)

    code, output, errors = program("list", "--json")
    assert (code, errors) == (0, "")
    (found,) = json.loads(output)
    assert (found["topic"], found["partitions"], found["compression"], found["max_bytes"]) == ("orders", 4, "zstd", 65536)
    assert (found["retention_seconds"], found["retention_bytes"]) == (604800, None)
    assert (found["messages"], found["appends_waiting"], found["segments"], found["groups"]) == (3, 1, 1, 0)
    assert found["bytes"] > 0

    code, output, _ = program("list")
    heading, row = output.splitlines()
    assert heading.split()[:5] == ["topic", "partitions", "messages", "waiting", "size"]
    assert row.startswith("orders  4           3         1        ")
    assert row.endswith("zstd         for 7 days")


def test_without_a_topic_the_list_says_how_to_make_one(connection, program):
    assert program("list") == (0, "there is no topic yet; make one with `headwater topics create NAME`\n", "")
    assert program("list", "--json") == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["no topic"], "'no topic' cannot be the name of a topic"),
        (["t", "--partitions", "5000"], "a topic has 1 to 1024 partitions, not 5000"),
        (["t", "--retention", "soon"], "retention 'soon' must be a duration"),
        (["t", "--compression", "rar"], "compression is none or zstd, not 'rar'"),
        (["t", "--max-bytes", "lots"], "--max-bytes must be a size such as 512KiB or 32MiB, not 'lots'"),
        (["t", "--max-bytes", "1GiB"], "max_bytes of a message is 1 to 268435456"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_what_can(connection, program, arguments, said):
    code, output, errors = program("create", *arguments)
    assert (code, output) == (2, "")
    assert said in errors
    assert topics.list_topics_sync(connection) == []


def test_a_topic_is_made_once(orders, program):
    code, _, errors = program("create", "orders")
    assert code == 2
    assert "topic 'orders' is there already" in errors


@pytest.fixture
def role(connection):
    name = f"App {connection.info.dbname}"
    connection.execute(f'create role "{name}"')
    yield name
    connection.execute("reset role")
    connection.execute(f'drop owned by "{name}"')
    connection.execute(f'drop role "{name}"')


def test_a_role_that_may_append_can_and_cannot_read(connection, program, role):
    assert program("create", "orders", "--grant", role)[1].splitlines()[-1] == f"role {role} may append"
    connection.execute(f'set role "{role}"')

    append(connection, 1)
    connection.execute("select headwater.topic_log_1_produce_1('{0}', '{1}', '{0}', '{x}', gen_random_uuid(), 100)")
    for query in ("table headwater.topic_log_1", "table headwater.topic_staged", "table headwater.topic_cursor"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(query)


def test_roles_get_their_rights_for_all_topics_by_init(connection, orders, program, role):
    assert program("init", "--grant-read", role)[1].splitlines()[-1] == f"role {role} may append, and read in groups"
    connection.execute(f'set role "{role}"')

    append(connection, 1)
    assert topics.number_sync(connection, orders) == 1
    assert connection.execute("select count(*) from headwater.topic_log_1").fetchone() == (1,)
    assert connection.execute("select count(*) from headwater.topic_lag").fetchone() == (0,)


def test_roles_do_with_the_program_what_they_were_granted_and_no_more(
    connection, headwater, program, database, role, tmp_path
):
    as_role = make_conninfo(database, options=f"-c role={role.replace(' ', chr(92) + ' ')}")
    file = tmp_path / "lines.txt"
    file.write_text("one\ntwo\n")
    program("create", "orders", "--grant", role)

    assert headwater("topics", "append", "orders", str(file), "--url", as_role) == (0, "appended to orders: 2\n", "")
    append(connection, "staged")
    for arguments in (["--group", "audit"], []):
        code, output, errors = headwater("topics", "read", "orders", *arguments, "--url", as_role)
        assert (code, output) == (1, "")
        assert "permission denied for" in errors

    program("init", "--grant-read", role)
    for arguments in (["--group", "audit"], []):
        code, output, errors = headwater("topics", "read", "orders", *arguments, "--url", as_role)
        assert (code, errors, len(output.splitlines())) == (0, "", 3)
    for arguments in (["seek", "orders", "audit", "--to", "earliest", "--yes"], ["pause", "orders", "audit"], ["groups"]):
        assert headwater("topics", *arguments, "--url", as_role)[0] == 0
    code, _, errors = headwater("topics", "trim", "orders", "--before", "latest", "--yes", "--url", as_role)
    assert code == 1
    assert "permission denied for" in errors


def test_a_role_that_is_not_there_is_named(connection, program):
    code, _, errors = program("create", "orders", "--grant", "nobody_here")
    assert code == 1
    assert 'role "nobody_here" does not exist; create it first, or correct its name' in errors
    assert topics.list_topics_sync(connection) == []


def test_lines_of_a_file_are_appended_and_read_again_in_order(orders, program, tmp_path):
    file = tmp_path / "orders.txt"
    file.write_bytes(b'{"id": 17}\r\nhello\n\xff\n\nlast')

    assert program("append", "orders", str(file), "--key", "k", "--header", "a=b=c") == (0, "appended to orders: 5\n", "")

    code, output, errors = program("read", "orders", "--json")
    assert (code, errors) == (0, "")
    lines = read_lines(output)
    assert [line["offset"] for line in lines] == [0, 1, 2, 3, 4]
    assert {(line["partition"], line["key"], line["headers"]["a"]) for line in lines} == {
        (lines[0]["partition"], "k", "b=c")
    }
    assert lines[0]["payload"] == {"id": 17}
    assert [line.get("payload_text", line.get("payload_base64")) for line in lines[1:]] == ["hello", "/w==", "", "last"]


def test_what_is_read_as_json_is_appended_elsewhere_as_it_was(connection, orders, program, tmp_path):
    topics.create_sync(connection, "copy", partitions=2)
    append(connection, {"id": 1}, b"text", b"\xff", key="a")
    append(connection, 4, key="b")
    _, lines, _ = program("read", "orders", "--json")
    file = tmp_path / "lines.jsonl"
    file.write_text(lines)

    assert program("append", "copy", str(file), "--json")[0] == 0

    def told(output):
        return sorted(json.dumps({**line, "created_at": None}) for line in read_lines(output))

    assert told(program("read", "copy", "--json")[1]) == told(lines)


def test_a_line_that_is_no_message_ends_it_by_its_number_and_those_before_it_are_there(orders, program, tmp_path):
    file = tmp_path / "lines.jsonl"
    file.write_text('{"payload": 1}\n{"payload": 2}\n{"payload": 3, "key": 4}\n{"payload": 5}\n')

    code, output, errors = program("append", "orders", str(file), "--json")
    assert (code, output) == (1, "")
    assert errors == ("error: line 3: the key is a int; give a string, or none; the lines before it are appended\n")
    assert [line["payload"] for line in read_lines(program("read", "orders", "--json")[1])] == [1, 2]


def test_a_line_over_the_limit_of_the_topic_is_refused(connection, program, tmp_path):
    topics.create_sync(connection, "small", max_bytes=10)
    file = tmp_path / "lines.txt"
    file.write_text(f"short\n{'x' * 11}\n")

    code, _, errors = program("append", "small", str(file))
    assert code == 1
    assert "line 2: the message has 11 bytes, and the topic takes at most 10; send less" in errors

    file.write_text("x" * (3 << 20))
    code, _, errors = program("append", "small", str(file))
    assert code == 1
    assert "line 1 is longer than any message of the topic" in errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["orders", "/nowhere/at/all"], "cannot read /nowhere/at/all: No such file or directory; name a file that is there"),
        (["orders", "--header", "a"], "--header must be NAME=VALUE, not 'a'"),
    ],
)
def test_what_cannot_be_appended_at_all_is_refused_at_once(orders, program, arguments, said):
    code, output, errors = program("append", *arguments)
    assert (code, output) == (2, "")
    assert said in errors


@pytest.mark.parametrize("command", [("read",), ("describe",), ("append",), ("seek", "g", "--to", "0"), ("pause", "g")])
def test_a_topic_that_is_not_there_is_named_with_how_to_make_it(connection, program, command):
    code, output, errors = program(command[0], "ordres", *command[1:])
    assert (code, output) == (1, "")
    assert errors == (
        "error: there is no topic 'ordres'; make it with `headwater topics create ordres`, or correct its name\n"
    )


def test_reading_begins_where_it_is_told(connection, orders, program):
    append(connection, 0, 1, 2)
    topics.number_sync(connection, orders)
    (before,) = connection.execute("select clock_timestamp()").fetchone()
    append(connection, 3, 4)

    def payloads(*arguments):
        code, output, errors = program("read", "orders", "--json", *arguments)
        assert (code, errors) == (0, "")
        return [line["payload"] for line in read_lines(output)]

    assert payloads() == payloads("--from", "earliest") == [0, 1, 2, 3, 4]
    assert payloads("--from", "1", "--limit", "2") == [1, 2]
    assert payloads("--from", before.isoformat()) == [3, 4]
    assert payloads("--from", datetime.now(UTC).isoformat()) == payloads("--from", "latest") == []
    (partition,) = {line["partition"] for line in read_lines(program("read", "orders", "--json")[1])}
    assert (payloads("--partition", str(partition)), payloads("--partition", str(1 - partition))) == ([0, 1, 2, 3, 4], [])


def test_reading_without_a_group_moves_nothing(connection, orders, program):
    append(connection, 1)
    assert program("read", "orders", "--json")[1] == program("read", "orders", "--json")[1] != ""
    assert connection.execute("select count(*) from headwater.topic_group").fetchone() == (0,)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "tomorrow"], "--from must be earliest, latest, an offset such as 42, or a time such as"),
        (["--from", "2026-11-16T10:00:00"], "does not say in which time zone"),
        (["--partition", "0", "--group", "g"], "leave out --partition, or --group"),
    ],
)
def test_a_place_that_is_none_is_refused(orders, program, arguments, said):
    code, output, errors = program("read", "orders", *arguments)
    assert (code, output) == (2, "")
    assert said in errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--from", "99"], "offset 99 of topic 'orders' is not there yet; the next is 0"),
        (["--partition", "2"], "topic 'orders' has 2 partitions, and no partition 2"),
    ],
)
def test_a_place_that_is_not_there_is_refused_with_what_is(orders, program, arguments, said):
    code, output, errors = program("read", "orders", *arguments)
    assert (code, output, errors) == (1, "", f"error: {said}\n")


def test_an_offset_that_was_trimmed_is_refused_with_the_oldest_that_is_there(connection, orders, program):
    append(connection, 1)
    topics.number_sync(connection, orders)
    connection.execute("delete from headwater.topic_log_1")
    connection.execute("update headwater.topic_partition set first_offset = 5")

    code, output, errors = program("read", "orders", "--from", "3")
    assert (code, output) == (1, "")
    assert errors == (
        "error: partition 0 of topic 'orders' has no message 3 any more, the oldest is 5; go on from there, or from later\n"
    )


@pytest.mark.parametrize(("end", "group"), [(signal.SIGINT, ()), (signal.SIGTERM, ("--group", "watch"))])
def test_a_reader_follows_the_topic_until_it_is_told_to_end_and_exits_with_0(connection, orders, database, end, group):
    append(connection, "before")
    arguments = ["topics", "read", "orders", "--follow", "--from", "earliest", *group, "--url", database]
    with subprocess.Popen(
        [sys.executable, "-m", "headwater.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as program:
        assert program.stdout is not None
        assert json.loads(program.stdout.readline())["payload"] == "before"
        append(connection, "after")
        assert json.loads(program.stdout.readline())["payload"] == "after"
        program.send_signal(end)
        output, errors = program.communicate()
    assert (program.returncode, output, errors) == (0, "", "")


def test_a_group_gets_what_is_there_once_and_goes_on_where_it_was(connection, orders, program):
    def payloads(*arguments):
        code, output, errors = program("read", "orders", "--group", "audit", "--json", *arguments)
        assert (code, errors) == (0, "")
        return [line["payload"] for line in read_lines(output)]

    append(connection, 1, 2, 3)
    assert payloads("--limit", "2") == [1, 2]
    append(connection, 4)
    assert payloads() == [3, 4]
    assert payloads() == []


@pytest.fixture
def billing(connection, orders, program):
    """A group that has read two of five messages."""
    append(connection, 0, 1, 2, 3, 4)
    assert program("read", "orders", "--group", "billing", "--limit", "2")[0] == 0
    return lambda: {one.partition: one.next_offset for one in topics.read_lag_sync(connection, "orders", "billing")}


def test_groups_are_shown_with_what_they_have_not_dealt_with(connection, billing, program):
    topics.create_sync(connection, "other")

    code, output, errors = program("groups", "--json")
    assert (code, errors) == (0, "")
    (found,) = json.loads(output)
    assert (found["topic"], found["group"], found["mode"], found["is_paused"]) == ("orders", "billing", "partition", False)
    assert (found["members"], found["lag"], found["dead"]) == (0, 3, 0)
    assert found["oldest_seconds"] > 0
    assert sorted((one["next_offset"], one["tip"], one["lag"]) for one in found["partitions"]) == [(0, 0, 0), (2, 5, 3)]

    _, output, _ = program("groups", "orders")
    assert output.splitlines()[1].startswith("orders  billing  partition  nobody there  0        3    ")
    assert program("groups", "other") == (0, "no group has read yet; one is there when its first subscriber is\n", "")


def test_a_topic_is_described_with_its_partitions_segments_and_groups(billing, program):
    code, output, errors = program("describe", "orders")
    assert (code, errors) == (0, "")
    parts = [part.splitlines() for part in output.split("\n\n")]
    assert parts[0][0] == "topic     orders"
    assert parts[1][0].split() == ["partition", "oldest", "next", "messages"]
    assert sorted(line.split()[1:] for line in parts[1][1:]) == [["0", "0", "0"], ["0", "5", "5"]]
    assert parts[2][1].startswith("0        current")
    assert parts[3][1].startswith("orders  billing")

    _, output, _ = program("describe", "orders", "--json")
    found = json.loads(output)
    assert (found["messages"], sorted(one["next"] for one in found["bounds"])) == (5, [0, 5])
    assert found["readers"][0]["lag"] == 3


def test_a_group_is_paused_and_goes_on(connection, billing, program):
    assert program("pause", "orders", "billing") == (0, "group billing of topic orders: paused\n", "")
    assert json.loads(program("groups", "--json")[1])[0]["is_paused"]
    assert program("resume", "orders", "billing") == (0, "group billing of topic orders: goes on\n", "")
    assert not json.loads(program("groups", "--json")[1])[0]["is_paused"]


def test_a_paused_group_is_not_waited_for(connection, billing, program):
    program("pause", "orders", "billing")

    code, output, errors = program("read", "orders", "--group", "billing")
    assert (code, output) == (1, "")
    assert "group billing of topic orders is paused; run `headwater topics resume orders billing`" in errors


def test_a_group_is_moved_to_a_place_and_reads_from_there(connection, billing, program):
    code, output, errors = program("seek", "orders", "billing", "--to", "earliest", "--yes", "--json")
    assert (code, errors) == (0, "")
    assert sorted((one["before"], one["next_offset"]) for one in json.loads(output)) == [(0, 0), (2, 0)]
    assert [line["payload"] for line in read_lines(program("read", "orders", "--group", "billing")[1])] == [0, 1, 2, 3, 4]

    assert program("seek", "orders", "billing", "--to", "3", "--yes")[0] == 0
    assert sorted(billing().values()) == [0, 3]
    assert program("seek", "orders", "billing", "--to", "latest", "--yes")[0] == 0
    assert sorted(billing().values()) == [0, 5]
    (partition,) = (one for one, offset in billing().items() if offset)
    assert program("seek", "orders", "billing", "--to", "1", "--partition", str(partition), "--yes")[0] == 0
    assert sorted(billing().values()) == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["orders", "billing", "--to", "0"], 2, "there is no terminal to ask at; say --yes if it is meant"),
        (
            ["orders", "biling", "--to", "0", "--yes"],
            1,
            "topic 'orders' has no group 'biling'; run `headwater topics groups",
        ),
        (["orders", "billing", "--to", "99", "--yes"], 1, "offset 99 of topic 'orders' is not there yet; the next is 5"),
        (["orders", "billing", "--to", "-1", "--yes"], 2, "--to must be earliest, latest, an offset such as 42"),
    ],
)
def test_a_group_that_cannot_be_moved_stays_where_it_is(billing, program, arguments, code, said):
    before = billing()
    given, output, errors = program("seek", *arguments)
    assert (given, output) == (code, "")
    assert said in errors
    assert billing() == before


def test_a_group_that_is_dropped_is_gone_and_keeps_nothing(connection, billing, program):
    assert program("drop-group", "orders", "billing", "--yes") == (0, "group billing of topic orders: gone\n", "")
    assert topics.list_groups_sync(connection) == []


def test_segments_before_a_place_are_dropped_or_only_named(connection, orders, billing, program):
    code, output, errors = program("trim", "orders", "--before", "latest", "--dry-run", "--json")
    assert (code, errors) == (0, "")
    found = json.loads(output)
    assert (found["dry_run"], [one["segment"] for one in found["dropped"]]) == (True, [0])
    assert len(read_lines(program("read", "orders")[1])) == 5

    assert program("trim", "orders", "--before", "3", "--yes") == (
        0,
        "no segment has nothing but messages before that\n",
        "",
    )
    code, output, errors = program("trim", "orders", "--before", "latest", "--yes")
    assert (code, errors) == (0, "")
    assert output.splitlines()[1].split()[:2] == ["0", "dropped"]
    assert program("read", "orders") == (0, "", "")
    append(connection, 5)
    assert [line["offset"] for line in read_lines(program("read", "orders")[1])] == [5]

    code, output, errors = program("read", "orders", "--group", "billing")
    assert (code, output) == (1, "")
    assert "has no message 2 any more, the oldest is 5" in errors


@pytest.mark.parametrize("before", ["earliest", "yesterday"])
def test_what_cannot_be_trimmed_is_refused(orders, program, before):
    code, output, errors = program("trim", "orders", "--before", before, "--yes")
    assert (code, output) == (2, "")
    assert errors.startswith("error: ")


def test_maintenance_drops_what_is_not_kept_any_more(connection, program):
    topics.create_sync(connection, "small", retention_bytes=1)
    append(connection, 1, name="small")

    code, output, errors = program("maintain", "--json")
    assert (code, errors) == (0, "")
    (found,) = json.loads(output)
    assert (found["topic"], found["new_segment"], [one["segment"] for one in found["dropped"]]) == ("small", True, [0])
    code, output, _ = program("maintain", "small")
    assert (code, output.splitlines()[1].split()) == (0, ["small", "0", "0", "B"])


def test_a_topic_gets_more_partitions_when_told_twice(connection, orders, program):
    code, _, errors = program("add-partitions", "orders", "--partitions", "4")
    assert (code, errors) == (2, "error: there is no terminal to ask at; say --yes if it is meant\n")

    code, output, errors = program("add-partitions", "orders", "--partitions", "4", "--yes")
    assert (code, output, errors) == (0, "topic orders: 4 partitions, where it had 2\n", "")

    code, _, errors = program("add-partitions", "orders", "--partitions", "1", "--yes")
    assert code == 1
    assert "orders" in errors
    assert topics.find_sync(connection, "orders").partitions == 4


@pytest.fixture
def letters(connection, billing):
    """Two messages that the group has put aside."""
    connection.execute(
        """insert into headwater.topic_dead_letter
               (group_id, partition, message_offset, key, payload, headers, created_at, reason, attempts)
           select id, 0, given, 'k', '{"id": 17}', '{"a": "b"}', now(), 'no such customer', 5
             from headwater.topic_group, generate_series(7, 8) as given"""
    )


def test_dead_letters_are_listed_with_the_reason(letters, program):
    code, output, errors = program("dead", "orders", "billing")
    assert (code, errors) == (0, "")
    assert output.splitlines()[1].split()[:3] == ["0", "7", "k"]
    assert "no such customer" in output

    found = json.loads(program("dead", "orders", "billing", "--partition", "0", "--offset", "8", "--json")[1])
    assert [(one["offset"], one["payload"], one["headers"], one["attempts"]) for one in found] == [
        (8, {"id": 17}, {"a": "b"}, 5)
    ]
    assert json.loads(program("groups", "--json")[1])[0]["dead"] == 2


def test_a_dead_letter_is_appended_again_with_where_it_stood(letters, program):
    arguments = ["dead", "orders", "billing", "--partition", "0", "--offset", "8", "--replay"]
    assert program(*arguments)[0] == 2
    assert program(*arguments, "--yes") == (0, "appended again: 1\n", "")
    assert program(*arguments, "--yes")[0] == 1
    (again,) = (line for line in read_lines(program("read", "orders")[1]) if line["key"] == "k")
    assert again["headers"] == {"a": "b", "headwater-replay": "billing/0/8"}
    assert len(json.loads(program("dead", "orders", "billing", "--json")[1])) == 1


def test_an_offset_of_a_dead_letter_needs_its_partition(billing, program):
    code, _, errors = program("dead", "orders", "billing", "--offset", "8")
    assert (code, errors) == (2, "error: an offset is one of a partition; name it with --partition\n")
    assert program("dead", "orders", "billing") == (0, "nothing was put aside\n", "")
