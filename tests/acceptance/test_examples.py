"""What the examples and the documentation show is true: programs run, commands and tests that are named exist."""

import doctest
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from datetime import date, timedelta
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import typer.main
from pyspark.sql import SparkSession
from typer.core import TyperGroup

from headwater.capture import CaptureSettings
from headwater.capture.provision import provision
from headwater.cli.app import app
from headwater.cli.app import run as run_program
from headwater.embedded import EmbeddedPostgres
from headwater.errors import SettingsError
from headwater.outbox import OutboxRelay, RelaySettings
from headwater.outbox.relay.metrics import RelayMetrics
from headwater.postgres.connect import connect_sync
from headwater.queue import EnqueuerSettings, WorkerSettings
from headwater.spark.sources.options import parse_options
from headwater.spark.sources.topic.options import parse_options as parse_topic_options
from headwater.topics import ProducerSettings, SubscriberSettings
from tests.support.servers.embedded import fresh_database
from tests.support.servers.shared_spark import commands_on

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ON_SPARK = {"changes_in_a_notebook.py"}
# They have a test of their own.
APART = {*ON_SPARK, "apply_exactly_once.py"}
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r"^(examples/[\w/]+\.\w+)(?::(\d+):(\d+))?$", re.MULTILINE)

# What each example must print, in this order; what differs from run to run (positions, times) is left out.
PRINTED = {
    "apply_exactly_once.py": ["applied", "the reader crashed", "left out", "equal"],
    "changes_in_a_notebook.py": [
        "the first query makes the slot; the parcel from before is not in it:\n"
        "the second one gets what was written since:\n"
        "  courier  c     2\n"
        "  courier  u_pk  1\n"
        "  parcel   c     1,000\n"
        "  parcel   d     10\n"
        "  parcel   u     101\n",
    ],
    "columns_to_arrow.py": [
        "reading I: 50,000 rows",
        "add up to 1,250,025.000",
        "reading U: 1,000 rows",
        "add up to -1,000.000",
        "reading D: 500 rows, id int64",
    ],
    "creek_client.py": [
        "public.orders has schema ",
        "0/17FA337 0 c {'id': 0, 'price': Decimal('9.50')}",
        "0/17FA337 2 c {'id': 2, 'price': Decimal('11.50')}",
        "stopped in the middle of a transaction, at 3",
        "0/17FA337 3 c {'id': 3, 'price': Decimal('12.50')}",
    ],
    "follow_a_table.py": [
        "c     parcel {'id': 1} -> id=1, name=a book, weight=1.25, photo=xxxxxxxxxxxx",
        "c     parcel {'id': 2} -> id=2, name=a lamp, weight=3.10, photo=None",
        "u     parcel {'id': 1} -> id=1, name=a book, weight=1.30, photo=UNCHANGED",
        "u_pk  parcel {'id': 2} -> id=20",
        "d     parcel {'id': 1} -> gone",
        "a second one",
        "t     parcel None -> gone",
    ],
    "jobs_with_two_workers.py": [
        "invoices: 499, sent more than once: 0\n"
        "the order that was rolled back has none: True\n"
        "tried again: 10\n"
        "both workers did some: True\n"
        "given up: [('13', 'there is no such address')]\n",
    ],
    "outbox_and_inbox.py": [
        "taken: True\nand when it comes once more: False\nan order that fails leaves no event: (1,)\n",
    ],
    "raw_stream.py": [
        "timeline 1 of database postgres",
        "Relation(",
        "Insert(relation_oid=",
        "new=(b'2', None)",
        "Update(relation_oid=",
        "Delete(relation_oid=",
        "content=b'that is all'",
        "everything is confirmed",
    ],
    "shop": [
        "  100 requests are answered, whatever the broker does",
        "the broker is stopped",
        "  100 requests are answered, whatever the broker does",
        "the broker is started again",
        "answers: 232 orders placed, 30 out of stock, 38 cancelled",
        "events: 308 written, 308 arrived\nlost: 0, repeated: 0\none for each order and each cancellation: True\n",
    ],
    "topic_with_two_members.py": [
        "invoices: 1000, for different orders: 1000\n"
        "both members have written some: True\n"
        "the order that was rolled back has none: True\n"
        "in the order of each customer: True\n",
    ],
}


def blocks(language: str) -> Iterator[tuple[Path, str]]:
    """The code blocks of a language, each with its page."""
    for page in PAGES:
        for found in FENCE.finditer(page.read_text(encoding="utf-8")):
            if found[1] == language:
                yield page, found[2]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("example", [path for path in EXAMPLES if path.name not in APART], ids=lambda path: path.name)
def test_an_example_runs_by_itself_and_prints_what_it_shows(example):
    result = subprocess.run([sys.executable, str(example)], cwd=ROOT, capture_output=True, text=True, timeout=100)

    assert (result.returncode, result.stderr) == (0, "")
    assert_printed(result.stdout, example)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", [path for path in EXAMPLES if path.name in ON_SPARK], ids=lambda path: path.name)
def test_an_example_on_spark_runs_by_itself_and_prints_what_it_shows(example, spark, capsys):
    with commands_on(spark):
        runpy.run_path(str(example), run_name="__main__")

    assert_printed(capsys.readouterr().out, example)


@pytest.mark.timeout(120)
def test_the_shop_among_the_examples_loses_no_event_while_its_broker_is_stopped():
    command = [sys.executable, "-m", "examples.shop", "--requests", "300"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)

    assert (result.returncode, result.stderr) == (0, "")
    assert_printed(result.stdout, ROOT / "examples" / "shop")


def assert_printed(printed: str, example: Path) -> None:
    places: list[int] = []
    for wanted in PRINTED[example.name]:
        places.append(printed.find(wanted, places[-1] if places else 0))
        assert places[-1] >= 0, f"{wanted!r} is not in its place in:\n{printed}"


@pytest.mark.timeout(300)
def test_the_pipeline_among_the_examples_delivers_without_what_identifies_a_person(
    spark: SparkSession,
    postgres18: EmbeddedPostgres,
    database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with fresh_database(postgres18.url) as target:
        directory = shutil.copytree(ROOT / "examples" / "pipeline", tmp_path / "pipeline")
        environ = {"SOURCE_URL": database, "TARGET_URL": target, "HASH_SALT": "pepper"}
        write_customers(database)

        with monkeypatch.context() as patched, commands_on(spark):
            for name, value in environ.items():
                patched.setenv(name, value)
            for command in (["check"], ["run", "--once"]):
                code = run_in(directory, command, patched)
                assert code == 0, capsys.readouterr()

        with connect_sync(target) as connection:
            customers = connection.execute("select * from customers").fetchall()
            orders = connection.execute("select id, status from orders order by id").fetchall()
    hashed = sha256(b"pepperada@example.com").hexdigest()
    assert customers == [(1, "Ada", hashed, "***", date(1815, 1, 1))]
    assert orders == [(1, "paid")]
    kept = ds.dataset(directory / "history" / "changes").to_table(columns=["table", "op", "after"]).to_pylist()
    # They were there when it began, and so were read as a whole, without the order that was gone by then.
    assert sorted((row["table"], row["op"]) for row in kept) == [("customers", "r"), ("orders", "r")]
    assert not any(secret in str(kept) for secret in ("ada@", "555-0100", "1815-12-10", "draft"))


def run_in(directory: Path, command: list[str], patched: pytest.MonkeyPatch) -> int:
    """Run a command on the pipeline of a directory in this process, and forget the module of the transform."""
    patched.chdir(directory)
    patched.setattr(sys, "path", [*sys.path])
    try:
        return run_program(command)
    finally:
        sys.modules.pop("masking", None)


def write_customers(url: str) -> None:
    """What the pipeline among the examples is about, written after its slot was made."""
    with connect_sync(url) as connection:
        connection.execute("create table customers (id int primary key, name text, email text, phone text, born date)")
        connection.execute("create table orders (id int primary key, customer int, status text)")
        provision(url, "headwater_shop", "headwater_shop", ("customers", "orders"))
        connection.execute("insert into customers values (1, 'Ada', 'ada@example.com', '555-0100', '1815-12-10')")
        connection.execute("insert into orders values (1, 1, 'paid'), (2, 1, 'draft'), (3, 1, 'paid')")
        connection.execute("delete from orders where id = 3")


@pytest.mark.timeout(120)
def test_a_change_that_was_applied_before_the_crash_is_not_applied_again():
    example = ROOT / "examples" / "apply_exactly_once.py"
    result = subprocess.run([sys.executable, str(example)], cwd=ROOT, capture_output=True, text=True, timeout=100)

    assert (result.returncode, result.stderr) == (0, "")
    assert_printed(result.stdout, example)
    before, after = result.stdout.split("the reader crashed\n")
    counts = re.compile(r"applied (\d+) changes, left out (\d+)")
    first = [int(applied) for applied, _ in counts.findall(before)]
    second = [(int(applied), int(left_out)) for applied, left_out in counts.findall(after)]
    assert sum(first) + sum(applied for applied, _ in second) == 15
    assert sum(left_out for _, left_out in second) == sum(first) > 0


@pytest.mark.timeout(60)
def test_the_program_in_the_readme_prints_changes(database):
    program = readme_program("Capture(settings)")
    with connect_sync(database) as connection:
        connection.execute("create table customers (id int primary key, name text)")
        connection.execute("create publication headwater_shop for table customers")
        connection.execute("select pg_create_logical_replication_slot('headwater_shop', 'pgoutput')")
        connection.execute("insert into customers values (1, 'Ada')")
        command = [sys.executable, "-u", "-c", program.replace("postgresql://capture@db.example.com/shop", database)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            assert client.stdout is not None
            line = client.stdout.readline()
            client.terminate()
    assert line.endswith(".0 c customers {'id': 1} {'id': 1, 'name': 'Ada'}\n")
    assert ".headwater_shop." in line


@pytest.mark.timeout(300)
def test_the_notebook_in_the_readme_finds_what_was_committed_since_the_last_time(spark, database, capsys):
    program = readme_program("readStream").replace("postgresql://capture@db.example.com/shop", database)
    with connect_sync(database) as connection:
        connection.execute("create table customers (id int primary key, name text)")
        connection.execute("create table orders (id int primary key)")
        connection.execute("insert into customers values (1, 'from before')")
        exec(program, {"spark": spark})
        first = capsys.readouterr().out
        connection.execute("insert into customers values (2, 'Ada'), (3, 'Grace')")
        connection.execute("update customers set name = 'Ada L.' where id = 2")
        exec(program, {"spark": spark})
    assert re.findall(r"\|\s*(\w+)\|\s*(\w+)\|\s*(\d+)\|", first) == []
    shown = re.findall(r"\|\s*(\w+)\|\s*(\w+)\|\s*(\d+)\|", capsys.readouterr().out)
    assert sorted(shown) == [("customers", "c", "2"), ("customers", "u", "1")]


def readme_program(word: str) -> str:
    """The one program in the README that has a word in it."""
    (program,) = [block for page, block in blocks("python") if page.name == "README.md" and word in block]
    assert "postgresql://capture@db.example.com/shop" in program
    return program


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_session_in_the_documentation_goes_as_shown(page):
    runner = doctest.DocTestRunner()
    for where, block in blocks("python"):
        if where == page and block.startswith(">>>"):
            runner.run(doctest.DocTestParser().get_doctest(block, {}, name_of(page), None, 0))
    assert runner.summarize(verbose=False).failed == 0


def test_every_command_in_the_documentation_is_one_the_program_knows():
    unknown = []
    for page, block in blocks("console"):
        for line in block.splitlines():
            if line.strip().startswith("$ headwater"):
                unknown += [f"{name_of(page)}: {line}: {word}" for word in unknown_words(line.strip()[2:])]
    assert unknown == []


def unknown_words(line: str) -> Iterator[str]:
    """The options of a command line that its command does not have; brackets around what may be left out are dropped."""
    words = [
        word.strip("[].") for word in shlex.split(line.split(">>")[0].split(" | ")[0].replace("'", "")) if word.strip("[].")
    ]
    command: Any = whole_program()
    known = options_of(command)
    for word in words[1:]:
        subcommand = getattr(command, "commands", {}).get(word)
        if subcommand is not None:
            command, known = subcommand, options_of(subcommand)
        elif word.startswith("-") and word not in known:
            yield word


@cache
def whole_program() -> Any:
    """The program with all its commands, which takes a moment to build."""
    return typer.main.get_command(app)


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts} | {"--help"}


def test_the_reference_names_every_command_and_option():
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    group = whole_program()
    assert isinstance(group, TyperGroup)
    commands = group.commands
    assert sections.keys() >= commands.keys()
    for name, command in commands.items():
        for part in (command, *getattr(command, "commands", {}).values()):
            missing = [
                option for option in options_of(part) - {"--help", "tables", "names", "name"} if option not in sections[name]
            ]
            assert missing == [], f"`headwater {name}`"


def test_every_test_that_is_named_exists():
    known = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        unknown = set(re.findall(r"`(test_\w+)`", text)) - known
        assert not unknown, f"{name_of(page)} names {sorted(unknown)}"
        for name, path in re.findall(r"\[`(test_\w+)`\]\((\S+)\)", text):
            assert f"def {name}(" in (ROOT / path).read_text(), f"{name} is not in {path}"


def test_what_is_included_of_an_example_is_whole():
    for page in PAGES:
        for file, first, last in INCLUDE.findall(page.read_text(encoding="utf-8")):
            lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
            if first:
                assert file.endswith(".py")
                part, behind = lines[int(first) - 1 : int(last)], lines[int(last) :]
                begins, goes_on = (next(line for line in some if line) for some in (part, behind))
                assert begins.startswith("def "), f"{name_of(page)} begins in the middle of {file}"
                assert not goes_on.startswith(" "), f"{name_of(page)} ends in the middle of {file}"


def test_the_settings_of_capture_in_its_guide_have_the_defaults_of_the_code():
    page = (ROOT / "docs" / "guides" / "library.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    settings = CaptureSettings(url="", slot="headwater_shop", publications=("headwater_shop",))
    for name in ("batch_bytes", "buffer_bytes"):
        assert shown[name] == f"{getattr(settings, name) >> 20} MiB", name
    for name in ("status_interval", "slot_patience"):
        assert shown[name] == f"{getattr(settings, name).total_seconds():.0f} s", name
    assert {field.name for field in fields(settings)} <= set(re.findall(r"`(\w+)`", page))


def test_the_settings_of_the_relay_in_its_guide_have_the_defaults_of_the_code():
    page = (ROOT / "docs" / "guides" / "outbox-process.md").read_text(encoding="utf-8")
    section = page.partition("## Settings")[2].partition("\n## ")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))
    assert {name: written(default) for name, default in relay_defaults().items()} == shown


@pytest.mark.parametrize(
    ("guide", "heading", "settings"),
    [
        ("topics.md", "Producer", ProducerSettings),
        ("topics.md", "Subscriber", SubscriberSettings),
        ("queue.md", "Worker", WorkerSettings),
        ("queue.md", "Enqueuer", EnqueuerSettings),
    ],
)
def test_the_settings_in_a_guide_have_the_defaults_of_the_code(guide, heading, settings):
    page = (ROOT / "docs" / "guides" / guide).read_text(encoding="utf-8")
    section = page.partition("## Settings")[2].partition(f"### {heading}")[2].partition("\n##")[0]
    shown = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", section, re.MULTILINE))
    assert {field.name: written(field.default) for field in fields(settings)} == shown


def relay_defaults() -> dict[str, object]:
    return {field.name: field.default for field in fields(RelaySettings)}


def written(value: object) -> str:
    """A default as the guide writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"`{value}`"
    if isinstance(value, timedelta):
        units = {"d": timedelta(days=1), "h": timedelta(hours=1), "min": timedelta(minutes=1), "s": timedelta(seconds=1)}
        for unit, length in units.items():
            if value and not value % length:
                return f"{value // length} {unit}"
        return f"{value // timedelta(milliseconds=1)} ms"
    assert isinstance(value, int)
    return f"{value:,}" if value % (1 << 20) else f"{value >> 20} MiB"


def test_the_metrics_of_the_relay_in_its_guide_are_those_that_it_has():
    page = (ROOT / "docs" / "guides" / "outbox-process.md").read_text(encoding="utf-8")
    relay = OutboxRelay("postgresql://db.example.com/shop", "amqp://broker.example.com")
    relay.counts.oldest_seconds = 1.0
    known = {family.name for family in RelayMetrics(relay).collect()}
    shown = {name.removesuffix("_total") for name in re.findall(r"`(headwater_relay_\w+)`", page)}
    assert shown == known


@pytest.mark.parametrize(
    ("guide", "parse"), [("notebook.md", parse_options), ("topics-spark.md", parse_topic_options)], ids=["changes", "topic"]
)
def test_the_options_in_the_guide_of_a_source_are_those_that_it_has(guide, parse):
    page = (ROOT / "docs" / "guides" / guide).read_text(encoding="utf-8")
    table = page.partition("## Options")[2].partition("##")[0]
    shown = {name for line in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)}
    with pytest.raises(SettingsError) as caught:
        parse({"??": ""})
    assert shown == set(str(caught.value).partition("there are ")[2].split(", "))


def test_links_between_files_of_the_repository_lead_somewhere():
    broken = []
    for page in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!https?://)([^)#\s]*)", page.read_text(encoding="utf-8")):
            if target and not (ROOT / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []
