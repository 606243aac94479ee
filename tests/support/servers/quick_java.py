"""A Java that starts Spark quickly, for programs that the tests start and that take no settings of Spark."""

import shlex
from pathlib import Path

from headwater.embedded import resolve_java, state_directory
from tests.support.servers.spark_session import java_home, quick_settings

# The product asks a Java where its home is, and starts the `bin/java` of that place.
_SCRIPT = """#!/bin/sh
case "$*" in
*-XshowSettings*) {java} "$@" 2>&1 | sed 's|java\\.home = .*|java.home = {home}|' >&2 ;;
*) exec {java} {options} "$@" ;;
esac
"""


def quick_java(directory: Path) -> Path:
    """Make a JAVA_HOME in a directory, whose `java` takes classes from the archive of the tests and compiles little."""
    java, home = java_home(), directory / "java"
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    options = quick_settings(java)["spark.driver.extraJavaOptions"]
    program.write_text(_SCRIPT.format(java=shlex.quote(str(java / "bin" / "java")), home=home, options=options))
    program.chmod(0o755)
    # The product passes over a Java that it cannot ask, and takes another, which is slow.
    assert resolve_java({"JAVA_HOME": str(home)}, state_directory()) == home
    return home
