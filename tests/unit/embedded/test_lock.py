import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater.embedded.lock import is_free, lock_within, locked, try_lock, unlock


def test_a_lock_is_refused_while_it_is_held_and_free_afterwards(tmp_path):
    lock = try_lock(tmp_path / "lock")
    assert lock is not None
    assert try_lock(tmp_path / "lock") is None
    os.close(lock)
    assert is_free(tmp_path / "lock")


def test_a_lock_lasts_as_long_as_a_child_that_was_given_it(tmp_path):
    lock = try_lock(tmp_path / "lock")
    assert lock is not None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,)) as child:
        os.close(lock)
        assert not is_free(tmp_path / "lock")
        child.communicate()
    assert is_free(tmp_path / "lock")


def test_a_child_that_was_not_given_the_lock_does_not_keep_it(tmp_path):
    lock = try_lock(tmp_path / "lock")
    assert lock is not None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        os.close(lock)
        assert is_free(tmp_path / "lock")
        child.communicate()


def test_a_lock_that_is_given_up_is_free_although_a_child_has_it_open(tmp_path):
    lock = try_lock(tmp_path / "lock")
    assert lock is not None
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(lock,)) as child:
        unlock(lock)
        assert is_free(tmp_path / "lock")
        child.communicate()


def test_a_lock_is_waited_for(tmp_path):
    lock = try_lock(tmp_path / "lock")
    assert lock is not None
    assert lock_within(tmp_path / "lock", 0.02) is None
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lock_within, tmp_path / "lock", 10)
        unlock(lock)
        taken = waiting.result()
    assert taken is not None
    unlock(taken)


def test_a_lock_is_held_during_the_block_and_only_then(tmp_path):
    with locked(tmp_path / "lock"):
        assert not is_free(tmp_path / "lock")
    assert is_free(tmp_path / "lock")


def test_nobody_else_can_open_a_lock_and_so_hold_us_up(tmp_path):
    with locked(tmp_path / "lock"):
        assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o600


def test_a_link_in_the_place_of_a_lock_is_refused(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="lock"):
        try_lock(tmp_path / "lock")
