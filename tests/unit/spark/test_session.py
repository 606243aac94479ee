"""The settings of a session: ours, the user's on top, and those that are refused. No Spark is started."""

import pytest

from headwater.errors import SettingsError
from headwater.spark.session import merge


def test_the_user_s_settings_win_over_ours():
    assert merge("local[2]", {})["spark.sql.shuffle.partitions"] == "8"
    assert merge("local[2]", {"spark.sql.shuffle.partitions": "3"})["spark.sql.shuffle.partitions"] == "3"


def test_only_a_local_session_is_bound_to_loopback():
    assert merge("local[*]", {})["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in merge("spark://cluster:7077", {})


def test_java_options_of_the_user_s_are_kept_beside_ours():
    options = merge("local", {"spark.driver.extraJavaOptions": "-Xss4m"})["spark.driver.extraJavaOptions"]

    assert "log4j2.properties" in options
    assert options.endswith(" -Xss4m")


def test_a_log_configuration_of_the_user_s_replaces_ours():
    given = "-Dlog4j2.configurationFile=mine.properties"

    options = merge("local", {"spark.driver.extraJavaOptions": given})["spark.driver.extraJavaOptions"]
    assert (given in options, "log4j2.properties" in options) == (True, False)


def test_threads_of_the_driver_have_deep_stacks_unless_the_user_says_otherwise():
    assert "-Xss16m" in merge("local", {})["spark.driver.extraJavaOptions"]
    assert "-Xss16m" not in merge("local", {"spark.driver.extraJavaOptions": "-Xss4m"})["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize(
    "given", [{"spark.driver.memory": "4g"}, {"spark.driver.extraJavaOptions": "-XX:+UseG1GC"}], ids=["memory", "options"]
)
def test_java_is_modest_unless_the_user_says_how_much_memory_it_has_or_how_it_runs(given):
    assert "-XX:+UseSerialGC" in merge("local", {})["spark.driver.extraJavaOptions"]
    assert "-XX:+UseSerialGC" not in merge("local", given)["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize("key", ["spark.speculation"])
def test_what_would_repeat_or_lose_changes_cannot_be_switched_on(key):
    with pytest.raises(SettingsError, match=f"{key} cannot be switched on"):
        merge("local", {key: "True"})

    assert merge("local", {key: "false"})[key] == "false"


def test_a_setting_that_is_not_spark_s_is_named():
    with pytest.raises(SettingsError, match=r"'driver\.memory' is no setting of Spark"):
        merge("local", {"driver.memory": "2g"})
