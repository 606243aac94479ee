"""What holds for committed files: no host of a package index, no path of one machine, locked requirements, docstrings."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = sorted((ROOT / "requirements").glob("*.txt"))
MODULES = sorted((ROOT / "src").rglob("*.py"))


def spelled(*parts: str) -> str:
    """A needle in pieces, so that this file does not contain what it looks for."""
    return "".join(parts)


INDEX = re.compile(
    "|".join(
        [
            spelled("pypi", r"\.(python\.)?org"),
            spelled("python", r"hosted\.org"),
            spelled("deb", r"\.debian\.org"),
            spelled("ana", r"conda\.org"),
            spelled("(?<!no-emit-)index", "[-_]url"),
            spelled("find", "[-_]links"),
            spelled("trusted", "[-_]host"),
            spelled("registry", r"\s*=\s*[\"']?http"),
        ]
    ),
    re.IGNORECASE,
)
# A path that begins at one of the usual homes of people and build machines; placeholders for readers are allowed.
MACHINE_PATH = re.compile(r"(?<![\w.$}-])/((root|work|builds|Users)/|home/(?!<|you/|user/|me/)\w)")


@cache
def committed_texts() -> dict[str, str]:
    """Every text file that is committed or about to be, by its path."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is no list of committed files")
    # The checkout may belong to somebody else than the one who runs the tests, which git refuses by default.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    contents = {name: (ROOT / name).read_bytes() for name in listed if name and (ROOT / name).is_file()}
    return {name: content.decode(errors="replace") for name, content in contents.items() if b"\0" not in content}


def lines_matching(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in committed_texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_file_names_the_host_of_a_package_index():
    assert lines_matching(INDEX) == []


def test_no_file_names_a_path_of_one_machine():
    assert lines_matching(MACHINE_PATH) == []


@pytest.mark.parametrize(
    "text",
    [
        spelled("https://py", "pi.org/simple"),
        spelled("files.python", "hosted.org"),
        spelled("--extra-index", "-url x"),
        spelled("find", "_links = here"),
        spelled("source = { registry", ' = "https://host" }'),
    ],
)
def test_the_search_for_hosts_finds(text):
    assert INDEX.search(text)


def test_the_search_for_hosts_allows_the_option_that_leaves_them_out():
    assert not INDEX.search("--no-emit-index-url")


@pytest.mark.parametrize(
    "text",
    [
        spelled("/ro", "ot/headwater"),
        spelled('"/wo', 'rk/main"'),
        spelled("file:///ho", "me/jane/x"),
        spelled("PATH=/ho", "me/jane/x"),
    ],
)
def test_the_search_for_paths_finds(text):
    assert MACHINE_PATH.search(text)


@pytest.mark.parametrize("text", ["/home/<name>/x", "/home/you/x", "a/work/b", "$HOME/work/", "/rootless/"])
def test_the_search_for_paths_allows(text):
    assert not MACHINE_PATH.search(text)


def requirements_in(path: Path) -> Iterator[str]:
    """The requirements of a file, each with its continuation lines joined."""
    joined = path.read_text().replace("\\\n", " ")
    return (line for line in joined.splitlines() if line.strip())


@pytest.mark.parametrize("path", REQUIREMENTS, ids=lambda path: path.name)
def test_every_requirement_is_locked_by_version_and_hash(path):
    locked = re.compile(r"[a-z0-9._-]+(\[[a-z,]+\])?==[\w.+!]+( ; [^\\]+?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*")

    assert [line for line in requirements_in(path) if not locked.fullmatch(line)] == []


def test_the_product_and_the_tests_use_the_same_versions():
    run, dev = (set(requirements_in(ROOT / "requirements" / name)) for name in ("run.txt", "dev.txt"))
    versions_in_dev = {line.split()[0] for line in dev}

    assert {line.split()[0] for line in run} <= versions_in_dev


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_every_module_says_what_is_in_it(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_the_build_server_runs_the_checks_and_the_tests():
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]

    assert commands[0] == "set -euo pipefail"
    assert [line for line in commands[1:] if not line.startswith("cd ")] == [
        "export CI=true",
        "make --jobs=2 --keep-going check",
    ]


def test_scripts_are_executable():
    scripts = [ROOT / ".ci" / "run", *(ROOT / "scripts").iterdir()]

    assert [path.name for path in scripts if not path.stat().st_mode & 0o100] == []
