"""The output of a start of Spark, in a process of its own: none, unless something is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from headwater.embedded import resolve_java, state_directory

pytestmark = pytest.mark.timeout(300)

PROGRAM = """
import os, sys
from pathlib import Path
from pyspark.errors import AnalysisException
from headwater.spark.session import build_session

before = dict(os.environ)
session = build_session("quiet", master="local[1]")
assert {key: value for key, value in os.environ.items() if "JAVA" in key} == {
    key: value for key, value in before.items() if "JAVA" in key
}
assert session.range(3).count() == 3
try:
    session.sql("select nothing from nowhere")
except AnalysisException:
    pass
print("the session was used", file=sys.stderr, flush=True)
session._jvm.org.apache.logging.log4j.LogManager.getLogger("org.apache.spark.Trouble").error("a disk is full")
session.stop()
"""


def test_the_java_of_the_tests_is_that_of_the_product_and_takes_its_classes_from_the_archive(spark: SparkSession) -> None:
    """Without either the tests would pass, and take twice as long."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    maps = Path(f"/proc/{gateway.proc.pid}/maps").read_text()

    assert resolve_java(os.environ, state_directory()) == Path(os.environ["JAVA_HOME"])
    assert ".aot\n" in maps


def test_a_session_is_silent_until_spark_logs_an_error_and_leaves_the_environment_as_it_was() -> None:
    command = [sys.executable, "-c", PROGRAM]

    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)

    used, _, logged = done.stderr.partition("the session was used\n")
    assert used == ""
    (line,) = logged.splitlines()
    assert "spark ERROR Trouble: a disk is full" in line


@pytest.mark.parametrize(
    ("master", "setting", "said"),
    [
        (
            "local[1]",
            "spark.driver.port=none",
            "The value 'none' in the config \"spark.driver.port\" is invalid; correct its",
        ),
        ("nowhere", "spark.driver.port=0", "Spark's Java has ended before it was ready, and says above why"),
    ],
)
def test_a_spark_that_cannot_start_is_wrong_configuration(master: str, setting: str, said: str) -> None:
    program = (
        "import sys; from headwater.spark import build_session;"
        "build_session('x', master=sys.argv[1], settings=dict([sys.argv[2].split('=')]))"
    )

    done = subprocess.run([sys.executable, "-c", program, master, setting], capture_output=True, text=True, timeout=200)

    assert done.stderr.splitlines()[-1].startswith("headwater.errors.SettingsError: ")
    assert said in done.stderr.splitlines()[-1]


ENDED = """
from headwater.spark.session import build_session, end_session
from headwater.spark.warm_up import warm_up

session = build_session("deaf", master="local[1]")
warm_up(session)
gateway = session.sparkContext._gateway
assert gateway.get_callback_server().connections, "Java has not called"
gateway._gateway_client.shutdown_gateway = lambda: None
end_session(session)
print("ended")
"""


def test_a_session_ends_though_java_does_not_hear_that_its_gateway_is_shut_down() -> None:
    """Threads that wait for calls of Java's would wait for it for ever, and py4j for them."""
    done = subprocess.run([sys.executable, "-c", ENDED], check=True, capture_output=True, text=True, timeout=200)
    assert done.stdout == "ended\n"
