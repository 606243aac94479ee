"""The tree of the tests and benchmarks: helpers where they are looked for, with names of their own."""

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
NOT_HELPERS = ("conftest", "__init__", "__main__")


def helpers() -> list[Path]:
    found = (path.relative_to(TESTS) for path in TESTS.rglob("*.py") if path.stem not in NOT_HELPERS)
    return [path for path in found if not path.name.startswith("test_")]


def test_no_helper_lies_at_the_top() -> None:
    assert [str(path) for path in helpers() if len(path.parts) == 1] == []


def test_no_two_helpers_have_the_same_name() -> None:
    # A story is named like what it tells of, and is not imported.
    counts = Counter(path.stem for path in helpers() if path.parts[0] != "soak")

    assert [name for name, count in counts.items() if count > 1] == []


def test_the_folder_of_a_benchmark_has_its_name() -> None:
    folders = {
        path.name for path in (ROOT / "benchmarks").iterdir() if path.is_dir() and path.name not in ("__pycache__", "sql")
    }

    assert {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")} == folders


def test_no_test_asks_for_the_long_form_by_environment() -> None:
    name = "_".join(("HEADWATER", "LONG"))

    assert [str(path) for path in TESTS.rglob("*.py") if name in path.read_text()] == []
