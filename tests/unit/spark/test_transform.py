"""Where the function of a transform comes from, and what is said if it does not. No Spark is started."""

import sys

import pytest

from headwater.errors import TransformError
from headwater.spark.transform import load_function


@pytest.fixture
def in_directory(tmp_path, monkeypatch):
    """The current directory with a module of the test's own, which is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in sys.path if entry])
    return tmp_path


def test_a_module_in_the_current_directory_is_found(in_directory):
    (in_directory / "found_here.py").write_text("def shorten(changes):\n    return changes.limit(1)\n")

    assert load_function("found_here:shorten").__name__ == "shorten"


@pytest.mark.parametrize("name", ["module", "module:", ":function"])
def test_a_name_without_both_parts_is_refused_with_the_form(name):
    with pytest.raises(TransformError, match="write it as module:function"):
        load_function(name)


def test_a_module_that_does_not_exist_is_named():
    with pytest.raises(TransformError, match=r"module 'nowhere_at_all' cannot be imported \(ModuleNotFoundError"):
        load_function("nowhere_at_all:shorten")


def test_a_module_that_fails_while_it_is_loaded_says_how(in_directory):
    (in_directory / "fails_to_load.py").write_text("raise RuntimeError('no such region')\n")

    with pytest.raises(TransformError, match="RuntimeError: no such region") as caught:
        load_function("fails_to_load:shorten")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_the_nearest_function_is_suggested(in_directory):
    (in_directory / "near_miss.py").write_text("def shorten(changes):\n    return changes\n")

    with pytest.raises(TransformError, match="has no function 'shortn'; did you mean shorten"):
        load_function("near_miss:shortn")
