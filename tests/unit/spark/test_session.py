"""The settings of a session: ours, the user's on top, and those that are refused. No Spark is started."""

import subprocess
import sys
from importlib.resources import files

import pytest

from headwater.errors import SettingsError
from headwater.spark.session import finds_pyspark, merge


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


@pytest.fixture
def own_python(monkeypatch):
    """The environment of a driver whose workers run under its own Python."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("SPARK_HOME", raising=False)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
def test_workers_of_a_local_session_find_the_installed_pyspark(own_python, master):
    assert finds_pyspark(master, {})


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://cluster:7077", "yarn"])
def test_workers_of_a_cluster_load_the_pyspark_of_spark(own_python, master):
    assert not finds_pyspark(master, {})


def test_workers_under_another_python_load_the_pyspark_of_spark(own_python, monkeypatch):
    assert not finds_pyspark("local", {"spark.pyspark.python": "/opt/python"})
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    assert not finds_pyspark("local", {})


def test_a_spark_that_the_user_chose_brings_its_own_pyspark(own_python, monkeypatch):
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert not finds_pyspark("local", {})


@pytest.mark.parametrize(
    ("marked", "main", "expected"),
    [
        ("1", "org.apache.spark.deploy.SparkSubmit", ""),
        ("1", "org.apache.spark.launcher.Main", "/spark"),
        ("", "org.apache.spark.deploy.SparkSubmit", "/spark"),
    ],
    ids=["Spark itself", "its launcher", "with the archive"],
)
def test_java_gets_no_spark_home_if_pyspark_is_installed(tmp_path, marked, main, expected):
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\necho "$SPARK_HOME|$*"\n')
    java.chmod(0o755)
    done = subprocess.run(
        [str(files("headwater.spark").joinpath("java/bin/java")), "-cp", "x", main, "a b"],
        env={"HEADWATER_JAVA_HOME": str(tmp_path), "SPARK_HOME": "/spark", "HEADWATER_INSTALLED_PYSPARK": marked},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == f"{expected}|-cp x {main} a b\n"
