import os
import pwd
import stat
from pathlib import Path

import pytest

from headwater.embedded.directory import is_ours, make_directory, require_reachable, state_directory, write_file
from headwater.errors import SettingsError

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to somebody else")


def test_a_directory_is_made_with_its_parents_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        made = make_directory(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    for path in (made, made.parent):
        assert stat.S_IMODE(path.stat().st_mode) == (0o711 if os.geteuid() == 0 else 0o700)


def test_a_directory_that_is_ours_is_taken_as_it_is(tmp_path):
    (tmp_path / "mine").mkdir(mode=0o750)
    assert make_directory(tmp_path / "mine") == tmp_path / "mine"
    assert stat.S_IMODE((tmp_path / "mine").stat().st_mode) == 0o750


@ROOT_ONLY
def test_a_directory_of_somebody_else_is_refused(tmp_path):
    os.chown(tmp_path, pwd.getpwnam("nobody").pw_uid, -1)
    with pytest.raises(SettingsError, match="belongs to user id"):
        make_directory(tmp_path)
    assert not is_ours(tmp_path)


def test_a_directory_that_others_may_write_to_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(SettingsError, match="chmod go-w"):
        make_directory(tmp_path)


def test_a_link_to_a_directory_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SettingsError, match="not a directory"):
        make_directory(tmp_path / "link")
    assert is_ours(tmp_path)


def test_a_directory_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"cannot create directory .*file/below"):
        make_directory(tmp_path / "file" / "below")


def test_a_missing_directory_is_not_ours(tmp_path):
    assert not is_ours(tmp_path / "none")


def test_an_ordinary_user_keeps_the_state_at_home(tmp_path, monkeypatch):
    ordinary_user(monkeypatch, home=tmp_path)
    assert state_directory() == tmp_path / ".local" / "share" / "headwater"


def test_a_user_without_a_home_keeps_the_state_under_a_private_name(monkeypatch):
    ordinary_user(monkeypatch, home=Path("/dev/null"))
    assert state_directory() == Path("/var/tmp/headwater-4711")


def test_a_user_without_a_name_keeps_the_state_under_a_private_name(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: {}[uid])
    assert state_directory() == Path("/var/tmp/headwater-4711")


def test_the_state_of_root_is_not_below_the_home(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "access", lambda *_: True)
    assert state_directory() == Path("/var/lib/headwater")


def test_the_state_of_root_has_a_place_on_a_system_that_is_read_only(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert state_directory() == Path("/var/tmp/headwater-0")


def test_a_file_is_written_for_nobody_else_and_leaves_nothing_beside_it(tmp_path):
    write_file(tmp_path / "secret", "one")
    write_file(tmp_path / "secret", "two")
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert (tmp_path / "secret").read_text() == "two"
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_any_directory_is_reachable_for_ourselves(tmp_path):
    require_reachable(tmp_path, None)


def ordinary_user(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    entry = pwd.struct_passwd(("someone", "x", 4711, 4711, "", str(home), "/bin/sh"))
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: entry)
