"""How single values of a pipeline file are read."""

from datetime import timedelta

import pytest

from headwater.cli.pipeline_file.values import flatten, interpolate, parse_duration, parse_size


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("2s", timedelta(seconds=2)),
        ("1.5 s", timedelta(seconds=1.5)),
        ("3m", timedelta(minutes=3)),
        ("1h", timedelta(hours=1)),
    ],
)
def test_durations(written, meant):
    assert parse_duration(written) == meant


@pytest.mark.parametrize("written", ["", "5", "5 parsecs", "-1s", "ms", "1s 2s"])
def test_what_is_no_duration_is_refused_with_examples(written):
    with pytest.raises(ValueError, match="such as 500ms, 2s or 1m"):
        parse_duration(written)


@pytest.mark.parametrize(
    ("written", "meant"), [("512KiB", 524288), ("32MiB", 33554432), ("1 MB", 1000000), ("0.5GiB", 536870912), ("7B", 7)]
)
def test_sizes(written, meant):
    assert parse_size(written) == meant


@pytest.mark.parametrize("written", ["", "32", "32mib", "32M", "MiB"])
def test_what_is_no_size_is_refused_with_examples(written):
    with pytest.raises(ValueError, match="such as 512KiB or 32MiB"):
        parse_size(written)


def test_variables_are_filled_in_wherever_strings_are():
    faults: dict = {}
    content = {"a": "x${ONE}y${TWO}", "b": ["${ONE}", {"c": "${ONE}"}], "d": 3, "e": True}

    filled = interpolate(content, {"ONE": "1", "TWO": ""}, faults)

    assert filled == {"a": "x1y", "b": ["1", {"c": "1"}], "d": 3, "e": True}
    assert faults == {}


def test_what_a_variable_holds_is_not_filled_in_again():
    assert interpolate("${ONE}", {"ONE": "${TWO}"}, {}) == "${TWO}"


def test_two_dollars_stand_for_themselves():
    assert interpolate("$${ONE} $5 $$ {x}", {}, {}) == "${ONE} $5 $$ {x}"


def test_a_variable_that_is_not_set_is_named_with_its_key():
    faults: dict = {}
    interpolate({"sinks": [{"url": "${TARGET}"}]}, {}, faults)

    assert faults == {
        ("sinks", 0, "url"): "environment variable TARGET is not set; set it, or write the value itself",
    }


@pytest.mark.parametrize("written", ["${", "${}", "${1x}", "${A B}"])
def test_a_reference_that_is_none_is_a_fault(written):
    faults: dict = {}
    interpolate(written, {}, faults)

    assert "followed by no name" in faults[()]


def test_dotted_settings_are_the_same_with_and_without_quotes():
    assert dict(flatten({"spark": {"driver": {"memory": "2g"}}, "spark.ui.port": 4041, "x": {"y": True}})) == {
        "spark.driver.memory": "2g",
        "spark.ui.port": "4041",
        "x.y": "true",
    }
