"""Which user a server runs as: PostgreSQL refuses to run as root, so root hands it to an unprivileged account.

Comes in: the effective user of this process, and the owner of a data directory that exists already. Goes out: the
account to switch to, or None to stay what we are. Nothing is created: no user, no shell, no changed permission.
"""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from headwater.errors import SettingsError

# Debian's packages bring the first one; every Linux has the second.
_UNPRIVILEGED = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """A user that a server process is switched to before it starts."""

    name: str
    uid: int
    gid: int


class Switch(TypedDict):
    """The arguments by which `subprocess` changes the user of a child."""

    user: int | None
    group: int | None
    extra_groups: list[int] | None


def switch_to(account: Account | None) -> Switch:
    if account is None:
        return Switch(user=None, group=None, extra_groups=None)
    return Switch(user=account.uid, group=account.gid, extra_groups=[])


def postgres_account(data: Path) -> Account | None:
    """The account that must run PostgreSQL on a data directory, which need not exist yet."""
    if os.geteuid() != 0:
        _require_name(os.geteuid())
        return None
    if data.exists():
        return _owner(data)
    for name in _UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise SettingsError(
        "PostgreSQL does not run as root, and there is no user postgres or nobody to run it as; "
        "add one, or configure the URL of a database of your own"
    )


def _owner(data: Path) -> Account:
    uid = data.lstat().st_uid
    if uid == 0:
        raise SettingsError(f"PostgreSQL does not run as root, but {data} belongs to root; choose another directory")
    name = _require_name(uid)
    entry = pwd.getpwnam(name)
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _require_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        # initdb and postgres look their user up and give up without an entry, as in containers with an arbitrary uid.
        raise SettingsError(
            f"an embedded PostgreSQL needs a user name, and user id {uid} has none; add an entry for it to /etc/passwd, "
            "or configure the URL of a database of your own"
        ) from None
