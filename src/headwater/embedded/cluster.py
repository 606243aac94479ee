"""A PostgreSQL cluster on disk: made once, with SCRAM and a password of its own, and refused if of another version."""

import os
import secrets
import shutil
from pathlib import Path
from tempfile import mkdtemp

from headwater.embedded.account import Account
from headwater.embedded.binaries import Binaries
from headwater.embedded.claim import Claim
from headwater.embedded.directory import write_file
from headwater.embedded.process import Command, run
from headwater.errors import SettingsError, SourceError

_UNFINISHED = "initdb-"
# The provider that is built in knows Unicode without the C library's locales, but is new in PostgreSQL 17.
_BUILTIN_LOCALE_SINCE = 17


def ensure_cluster(claim: Claim, binaries: Binaries, account: Account | None, *, is_synced: bool) -> str:
    """Make the cluster in `data` unless it is there; returns the password of its superuser `postgres`."""
    password, data = claim.directory / "password", claim.directory / "data"
    if data.exists():
        _require_version(data, binaries.major)
        return _read_password(password)
    if not password.exists():
        write_file(password, secrets.token_urlsafe(24))
    _create(claim, binaries, account, is_synced=is_synced)
    return _read_password(password)


def _require_version(data: Path, major: int) -> None:
    try:
        found = (data / "PG_VERSION").read_text().strip()
    except OSError as exc:
        raise SettingsError(f"{data} is there, but is not a PostgreSQL cluster; choose another directory") from exc
    if found != str(major):
        raise SettingsError(
            f"the cluster in {data} is of PostgreSQL {found} and cannot be served by {major}; "
            f"ask for version {found}, or choose another directory"
        )


def _read_password(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as exc:
        raise SettingsError(f"the password of the cluster beside {path} is lost; choose another directory") from exc


def _create(claim: Claim, binaries: Binaries, account: Account | None, *, is_synced: bool) -> None:
    """Make the cluster aside and move it into place, so that an interrupted attempt is never taken for a cluster."""
    for unfinished in claim.directory.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(unfinished)
    aside = Path(mkdtemp(prefix=_UNFINISHED, dir=claim.directory))
    try:
        # The superuser's password is read by initdb, which may be another user.
        given = aside / "password"
        write_file(given, (claim.directory / "password").read_text())
        if account is not None:
            for path in (aside, given):
                os.chown(path, account.uid, account.gid)
        with claim.hold() as hold:
            result = run(Command(_initdb(binaries, aside, is_synced=is_synced), account), hold=hold)
        if result.returncode != 0:
            raise SourceError(
                f"cannot make a PostgreSQL cluster in {claim.directory}; initdb says:\n{result.stdout.strip()}"
            )
        (aside / "data").rename(claim.directory / "data")
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _initdb(binaries: Binaries, aside: Path, *, is_synced: bool) -> list[str]:
    arguments = [str(binaries.directory / "initdb"), f"--pgdata={aside / 'data'}", "--username=postgres"]
    arguments += ["--auth=scram-sha-256", f"--pwfile={aside / 'password'}", "--encoding=UTF8", "--locale=C"]
    if binaries.major >= _BUILTIN_LOCALE_SINCE:
        arguments += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    return arguments if is_synced else [*arguments, "--no-sync"]
