"""How single values of a pipeline file are read."""

import pytest

from headwater.cli.pipeline_file.values import Path, Toml, flatten, interpolate


def test_variables_are_filled_in_wherever_strings_are():
    faults: dict[Path, str] = {}
    content: Toml = {"a": "x${ONE}y${TWO}", "b": ["${ONE}", {"c": "${ONE}"}], "d": 3, "e": True}

    filled = interpolate(content, {"ONE": "1", "TWO": ""}, faults)

    assert filled == {"a": "x1y", "b": ["1", {"c": "1"}], "d": 3, "e": True}
    assert faults == {}


def test_what_a_variable_holds_is_not_filled_in_again():
    assert interpolate("${ONE}", {"ONE": "${TWO}"}, {}) == "${TWO}"


def test_two_dollars_stand_for_themselves():
    assert interpolate("$${ONE} $5 $$ {x}", {}, {}) == "${ONE} $5 $$ {x}"


def test_a_variable_that_is_not_set_is_named_with_its_key():
    faults: dict[Path, str] = {}
    interpolate({"sinks": [{"url": "${TARGET}"}]}, {}, faults)

    assert faults == {
        ("sinks", 0, "url"): "environment variable TARGET is not set; set it, or write the value itself",
    }


@pytest.mark.parametrize("written", ["${", "${}", "${1x}", "${A B}"])
def test_a_reference_that_is_none_is_a_fault(written):
    faults: dict[Path, str] = {}
    interpolate(written, {}, faults)

    assert "followed by no name" in faults[()]


def test_dotted_settings_are_the_same_with_and_without_quotes():
    assert dict(flatten({"spark": {"driver": {"memory": "2g"}}, "spark.ui.port": 4041, "x": {"y": True}})) == {
        "spark.driver.memory": "2g",
        "spark.ui.port": "4041",
        "x.y": "true",
    }
