"""The fields of log lines are a promise to whoever reads them with a program: all that are logged are documented."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "operations.md"
# What every line about a pipeline can be searched by.
PROMISED = {"pipeline", "phase", "slot", "table", "position", "sink"}


def documented() -> set[str]:
    """The names in the first column of the table of fields."""
    section = GUIDE.read_text().partition("## Logs")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def logged() -> Iterator[str]:
    """The keys of all dictionaries that are handed to a logger, or are called `facts` on their way there."""
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text())
        given = [
            keyword.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and _is_logging(node)
            for keyword in node.keywords
            if keyword.arg == "extra"
        ]
        if any(_names(value) for value in given) or "def facts(" in path.read_text():
            given += _called_facts(tree)
        yield from (key for value in given for key in _keys(value))


def _is_logging(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and call.func.value.id == "_log"


def _names(value: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(value) if isinstance(node, ast.Name) and node.id == "facts"}


def _called_facts(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id="facts")], value=value):
                yield value
            case ast.AnnAssign(target=ast.Name(id="facts"), value=ast.expr() as value):
                yield value
            case ast.Assign(targets=[ast.Tuple(elts=[*_, ast.Name(id="facts")])], value=ast.Tuple(elts=[*_, value])):
                yield value
            case ast.FunctionDef(name="facts"):
                yield from (found.value for found in ast.walk(node) if isinstance(found, ast.Return) and found.value)


def _keys(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, ast.Dict):
            yield from (key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str))


def test_every_field_that_is_logged_is_documented():
    assert set(logged()) - documented() == set()


def test_what_lines_about_pipelines_are_searched_by_is_promised():
    assert documented() >= PROMISED
