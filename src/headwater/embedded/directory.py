"""Where embedded servers keep their files, and the proof that a directory is ours before anything is put into it.

Root's servers run as another user, so they cannot live below root's home; its state is in a directory that others may pass
through but not list, while data, passwords and logs inside are closed to them.
"""

import os
import pwd
import stat
import subprocess
from pathlib import Path
from tempfile import mkstemp

from headwater.embedded.account import Account, switch_to
from headwater.errors import SettingsError


def state_directory() -> Path:
    """The place for everything that embedded servers of this user keep; it need not exist yet."""
    uid = os.geteuid()
    base = Path("/var/lib") if uid == 0 else _home(uid)
    if os.access(base, os.W_OK | os.X_OK):
        return (base / "headwater" if uid == 0 else base / ".local" / "share" / "headwater").resolve()
    # Anybody may create names in /var/tmp, so `make_directory` refuses it when somebody else was there first.
    return Path("/var/tmp") / f"headwater-{uid}"


def make_directory(path: Path) -> Path:
    """Create a directory, and its parents, that only this user can write to; refuse one that somebody else could."""
    mode = 0o711 if os.geteuid() == 0 else 0o700
    try:
        if not path.parent.exists():
            make_directory(path.parent)
        path.mkdir(mode=0o700)
        path.chmod(mode)
    except FileExistsError:
        _require_ours(path)
    except OSError as exc:
        raise SettingsError(f"cannot create directory {path}: {exc.strerror}; choose another one") from exc
    return path


def is_ours(path: Path) -> bool:
    """Whether this is a directory, not a link to one, that only this user can write to."""
    try:
        _require_ours(path)
    except (OSError, SettingsError):
        return False
    return True


def write_file(path: Path, text: str, mode: int = 0o600) -> None:
    """Write a file, by default for nobody else to read; complete or not at all, also when many write it at a time."""
    descriptor, partial = mkstemp(prefix=f"{path.name}.", dir=path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    Path(partial).chmod(mode)
    Path(partial).rename(path)


def require_reachable(path: Path, account: Account | None) -> None:
    """Refuse a directory that the account cannot pass through to, naming the one that is closed."""
    if account is not None and not _can_enter(path, account):
        closed = next((place for place in reversed(path.parents) if not _can_enter(place, account)), path)
        raise SettingsError(
            f"PostgreSQL runs as user {account.name}, who cannot reach {path}: {closed} is closed to others; "
            "choose a directory outside of it"
        )


def _home(uid: int) -> Path:
    try:
        return Path(pwd.getpwuid(uid).pw_dir)
    except KeyError:
        return Path("/nonexistent")


def _require_ours(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise SettingsError(f"{path} is not a directory; choose another one for embedded servers, or remove it")
    if found.st_uid != os.geteuid():
        raise SettingsError(f"directory {path} belongs to user id {found.st_uid}, not to us; choose another one")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SettingsError(f"directory {path} may be written to by others; close it with `chmod go-w {path}`")


def _can_enter(path: Path, account: Account) -> bool:
    command = ["/bin/sh", "-c", 'cd "$0"', str(path)]
    try:
        result = subprocess.run(command, capture_output=True, cwd="/", **switch_to(account))
    except (OSError, subprocess.SubprocessError) as exc:
        raise SettingsError(
            f"PostgreSQL does not run as root, and root may not become user {account.name} here; "
            "run as an ordinary user, or configure the URL of a database of your own"
        ) from exc
    return result.returncode == 0
