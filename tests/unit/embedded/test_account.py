import os
import pwd
from pathlib import Path
from unittest.mock import Mock

import pytest

from headwater.embedded.account import Account, postgres_account, switch_to
from headwater.errors import SettingsError


def users(monkeypatch: pytest.MonkeyPatch, euid: int, **uids: int) -> None:
    entries = [pwd.struct_passwd((name, "x", uid, uid + 1, "", "/", "/bin/sh")) for name, uid in uids.items()]
    by_name = {entry.pw_name: entry for entry in entries}
    by_uid = {entry.pw_uid: entry for entry in entries}
    monkeypatch.setattr(os, "geteuid", lambda: euid)
    monkeypatch.setattr(pwd, "getpwnam", lambda name: by_name[name])
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: by_uid[uid])


def directory_of(uid: int) -> Mock:
    directory = Mock(spec=Path)
    directory.exists.return_value = True
    directory.lstat.return_value = Mock(st_uid=uid)
    return directory


def test_an_ordinary_user_stays_who_it_is(monkeypatch, tmp_path):
    users(monkeypatch, 1000, someone=1000)
    assert postgres_account(tmp_path / "data") is None


def test_a_user_without_a_name_is_told_what_to_do(monkeypatch, tmp_path):
    users(monkeypatch, 1000, postgres=101, nobody=65534)
    with pytest.raises(SettingsError, match=r"user id 1000 has none; .* configure the URL of a database of your own"):
        postgres_account(tmp_path / "data")


def test_root_becomes_postgres_if_there_is_one(monkeypatch, tmp_path):
    users(monkeypatch, 0, postgres=101, nobody=65534)
    assert postgres_account(tmp_path / "data") == Account("postgres", 101, 102)


def test_root_becomes_nobody_otherwise(monkeypatch, tmp_path):
    users(monkeypatch, 0, nobody=65534)
    assert postgres_account(tmp_path / "data") == Account("nobody", 65534, 65535)


def test_root_without_anybody_to_become_is_told_what_to_do(monkeypatch, tmp_path):
    users(monkeypatch, 0)
    with pytest.raises(SettingsError, match="no user postgres or nobody"):
        postgres_account(tmp_path / "data")


def test_a_cluster_is_run_by_its_owner_also_when_a_better_user_was_added_later(monkeypatch):
    users(monkeypatch, 0, postgres=101, nobody=65534)
    assert postgres_account(directory_of(65534)) == Account("nobody", 65534, 65535)


def test_a_cluster_of_root_is_refused(monkeypatch):
    users(monkeypatch, 0, root=0, nobody=65534)
    with pytest.raises(SettingsError, match="belongs to root"):
        postgres_account(directory_of(0))


def test_switching_leaves_all_groups_of_root_behind():
    assert switch_to(Account("nobody", 65534, 65533)) == {"user": 65534, "group": 65533, "extra_groups": []}
    assert switch_to(None) == {"user": None, "group": None, "extra_groups": None}
