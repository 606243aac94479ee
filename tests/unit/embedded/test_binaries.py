import ast
from pathlib import Path

import pytest

import headwater.embedded
from headwater.embedded import binaries
from headwater.embedded.binaries import Binaries, find_binaries, parse_major, wheel_binaries
from headwater.errors import SettingsError


@pytest.fixture
def installation(tmp_path):
    """Programs that say they are PostgreSQL 17."""
    bin_directory = tmp_path / "pg" / "bin"
    bin_directory.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (bin_directory / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) 17.2'\n")
        (bin_directory / name).chmod(0o755)
    return bin_directory


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ("initdb (PostgreSQL) 18.4", 18),
        ("initdb (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", 15),
        ("postgres (PostgreSQL) 19beta1", 19),
        ("something else 18.4", None),
        ("", None),
    ],
)
def test_the_major_version_is_read_from_what_a_program_says(text, major):
    assert parse_major(text) == major


def test_programs_of_any_directory_are_taken_where_they_are(installation, tmp_path):
    assert find_binaries(installation, 18, None, tmp_path / "runtime") == Binaries(installation, 17)
    assert not (tmp_path / "runtime").exists()


def test_a_directory_without_the_programs_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="there is no initdb in"):
        find_binaries(tmp_path, 18, None, tmp_path)


def test_programs_that_do_not_run_here_are_refused(installation, tmp_path):
    (installation / "initdb").write_text("#!/bin/sh\nexit 127\n")
    with pytest.raises(SettingsError, match="do not run on this machine; configure the URL"):
        find_binaries(installation, 18, None, tmp_path)


def test_without_the_wheel_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(binaries, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"install `headwater\[embedded\]`, or configure the URL"):
        wheel_binaries(18)


def test_no_module_imports_the_wheel_whose_programs_are_used():
    for path in Path(headwater.embedded.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.startswith("pixeltable") for name in names)
