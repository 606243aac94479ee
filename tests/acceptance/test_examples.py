"""What the examples and the documentation show is true: programs run, commands and tests that are named exist."""

import doctest
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer.main

from headwater.capture import CaptureSettings
from headwater.cli.app import app
from headwater.postgres.connect import connect_sync

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = sorted([ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INCLUDE = re.compile(r"^(examples/\w+\.py)(?::(\d+):(\d+))?$", re.MULTILINE)

# What each example must print, in this order; what differs from run to run (positions, times) is left out.
PRINTED = {
    "apply_exactly_once.py": ["applied", "the reader crashed", "left out", "equal"],
    "columns_to_arrow.py": [
        "reading I: 50,000 rows",
        "add up to 1,250,025.000",
        "reading U: 1,000 rows",
        "add up to -1,000.000",
        "reading D: 500 rows, id int64",
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
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_by_itself_and_prints_what_it_shows(example):
    result = subprocess.run([sys.executable, str(example)], cwd=ROOT, capture_output=True, text=True, timeout=100)

    assert (result.returncode, result.stderr) == (0, "")
    places = []
    for wanted in PRINTED[example.name]:
        places.append(result.stdout.find(wanted, places[-1] if places else 0))
        assert places[-1] >= 0, f"{wanted!r} is not in its place in:\n{result.stdout}"


@pytest.mark.timeout(120)
def test_a_change_that_was_applied_before_the_crash_is_not_applied_again():
    example = ROOT / "examples" / "apply_exactly_once.py"
    result = subprocess.run([sys.executable, str(example)], cwd=ROOT, capture_output=True, text=True, check=True)

    before, after = result.stdout.split("the reader crashed\n")
    counts = re.compile(r"applied (\d+) changes, left out (\d+)")
    first = [int(applied) for applied, _ in counts.findall(before)]
    second = [(int(applied), int(left_out)) for applied, left_out in counts.findall(after)]
    assert sum(first) + sum(applied for applied, _ in second) == 15
    assert sum(left_out for _, left_out in second) == sum(first) > 0


@pytest.mark.timeout(60)
def test_the_program_in_the_readme_prints_changes(database):
    (program,) = [block for page, block in blocks("python") if page.name == "README.md"]
    assert "postgresql://capture@db.example.com/shop" in program
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
    command: Any = typer.main.get_command(app)
    known = options_of(command)
    for word in words[1:]:
        subcommand = getattr(command, "commands", {}).get(word)
        if subcommand is not None:
            command, known = subcommand, options_of(subcommand)
        elif word.startswith("-") and word not in known:
            yield word


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts} | {"--help"}


def test_the_reference_names_every_command_and_option():
    page = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    commands: dict[str, Any] = typer.main.get_command(app).commands
    assert sections.keys() >= commands.keys()
    for name, command in commands.items():
        for part in (command, *getattr(command, "commands", {}).values()):
            missing = [option for option in options_of(part) - {"--help", "tables", "name"} if option not in sections[name]]
            assert missing == [], f"`headwater {name}`"


def test_every_test_that_is_named_exists():
    known = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    for page in PAGES:
        for name, path in re.findall(r"\[`(test_\w+)`\]\((\S+)\)", page.read_text(encoding="utf-8")):
            assert name in known, f"{name_of(page)} names {name}"
            assert f"def {name}(" in (ROOT / path).read_text(), f"{name} is not in {path}"


def test_what_is_included_of_an_example_is_whole():
    for page in PAGES:
        for file, first, last in INCLUDE.findall(page.read_text(encoding="utf-8")):
            lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
            if first:
                part, behind = lines[int(first) - 1 : int(last)], lines[int(last) :]
                begins, goes_on = (next(line for line in some if line) for some in (part, behind))
                assert begins.startswith("def "), f"{name_of(page)} begins in the middle of {file}"
                assert not goes_on.startswith(" "), f"{name_of(page)} ends in the middle of {file}"


def test_the_settings_in_the_guide_have_the_defaults_of_the_code():
    page = (ROOT / "docs" / "guides" / "library.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    settings = CaptureSettings(url="", slot="headwater_shop", publications=("headwater_shop",))
    for name in ("batch_bytes", "buffer_bytes"):
        assert shown[name] == f"{getattr(settings, name) >> 20} MiB", name
    for name in ("status_interval", "slot_patience"):
        assert shown[name] == f"{getattr(settings, name).total_seconds():.0f} s", name
    assert {field.name for field in fields(settings)} <= set(re.findall(r"`(\w+)`", page))


def test_links_between_files_of_the_repository_lead_somewhere():
    broken = []
    for page in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\((?!https?://)([^)#\s]*)", page.read_text(encoding="utf-8")):
            if target and not (ROOT / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []
