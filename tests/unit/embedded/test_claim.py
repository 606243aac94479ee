import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headwater.embedded import claim as claim_module
from headwater.embedded.claim import claim_directory
from headwater.embedded.process import Command, Process, spawn, wait_until
from headwater.errors import HeadwaterError, SettingsError

# Claims a directory, starts a process there that does not end by itself, and waits to be killed.
OWNER = """
import sys, pathlib
from headwater.embedded.claim import claim_directory
from headwater.embedded.process import Command, Process, spawn
root, directory = sys.argv[1:]
claim = claim_directory(pathlib.Path(root), pathlib.Path(directory) if directory else None, "sleeper")
with claim.hold() as hold:
    spawn(Command(["/bin/sh", "-c", "sleep 1000 & echo up; wait"]), record=claim.record, log=claim.log, hold=hold)
while claim.log.read_text() != "up\\n":
    pass
print(claim.directory, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def abandon(tmp_path):
    """Leave a server behind whose owner was killed; gives its directory and its process."""

    def leave(directory: Path | None) -> tuple[Path, Process]:
        command = [sys.executable, "-c", OWNER, str(tmp_path), str(directory or "")]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
            assert owner.stdout is not None
            claimed = Path(owner.stdout.readline().strip())
            owner.kill()
        process = Process.read(claimed / "process")
        assert process is not None
        assert process.is_running()
        return claimed, process

    return leave


def entries(root: Path) -> list[Path]:
    return list((root / "servers").iterdir())


def test_a_temporary_directory_is_gone_after_release(tmp_path):
    claim = claim_directory(tmp_path, None, "postgres")
    assert claim.is_temporary
    assert entries(tmp_path) == [claim.directory]
    claim.release()
    assert entries(tmp_path) == []


def test_a_lasting_directory_is_kept_after_release(tmp_path):
    claim = claim_directory(tmp_path, tmp_path / "lasting", "postgres")
    assert not claim.is_temporary
    assert [entry.resolve() for entry in entries(tmp_path)] == [tmp_path / "lasting"]
    claim.release()
    assert entries(tmp_path) == []
    assert (tmp_path / "lasting").is_dir()


def test_a_directory_in_use_is_refused(tmp_path):
    claim = claim_directory(tmp_path, tmp_path / "lasting", "postgres")
    with pytest.raises(SettingsError, match="lasting is in use by another process"):
        claim_directory(tmp_path, tmp_path / "lasting", "postgres")
    claim.release()
    claim_directory(tmp_path, tmp_path / "lasting", "postgres").release()


def test_a_start_leaves_servers_alone_whose_owner_lives(tmp_path):
    claim = claim_directory(tmp_path, None, "sleeper")
    with claim.hold() as hold:
        child = spawn(Command(["sleep", "1000"]), record=claim.record, log=claim.log, hold=hold)
    claim_directory(tmp_path, None, "other").release()
    assert child.poll() is None
    assert claim.directory.is_dir()
    claim.end_server(grace_seconds=10)
    child.wait()
    claim.release()


@pytest.mark.parametrize("is_temporary", [True, False])
def test_any_start_stops_servers_whose_owner_is_gone(tmp_path, abandon, is_temporary):
    directory, process = abandon(None if is_temporary else tmp_path / "lasting")
    claim_directory(tmp_path, None, "other").release()
    assert not process.is_running()
    assert directory.exists() == (not is_temporary)
    assert entries(tmp_path) == []


def test_a_lasting_directory_is_taken_over_from_an_owner_that_is_gone(tmp_path, abandon):
    directory, process = abandon(tmp_path / "lasting")
    claim = claim_directory(tmp_path, directory, "sleeper")
    assert not process.is_running()
    claim.release()


def test_a_lasting_directory_is_taken_over_also_when_it_was_listed_elsewhere(tmp_path, abandon):
    directory, process = abandon(tmp_path / "lasting")
    claim = claim_directory(tmp_path / "elsewhere", directory, "sleeper")
    assert not process.is_running()
    claim.release()


def test_a_directory_is_not_served_while_anything_of_an_earlier_server_lives(tmp_path):
    claim = claim_directory(tmp_path, None, "sleeper")
    with claim.hold() as hold:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(hold,))
    with pytest.raises(HeadwaterError, match="still run in"), claim.hold():
        pass
    child.communicate()
    claim.end_server(grace_seconds=1)
    with claim.hold():
        pass
    claim.release()


def test_children_that_other_threads_start_meanwhile_do_not_disturb(tmp_path):
    claim = claim_directory(tmp_path, None, "sleeper")
    with ThreadPoolExecutor(2) as pool:
        started = [pool.submit(subprocess.run, ["true"], start_new_session=True) for _ in range(100)]
        while not all(child.done() for child in started):
            with claim.hold():
                pass
    claim.release()


def test_a_directory_that_has_disappeared_is_forgotten(tmp_path):
    claim = claim_directory(tmp_path, tmp_path / "lasting", "postgres")
    (tmp_path / "servers" / "stale").symlink_to(tmp_path / "none")
    claim_directory(tmp_path, None, "other").release()
    assert [entry.resolve() for entry in entries(tmp_path)] == [claim.directory]
    claim.release()


@pytest.mark.parametrize("moment", ["try_lock", "is_free"])
def test_a_directory_that_its_owner_removes_meanwhile_does_not_disturb_another_start(tmp_path, monkeypatch, moment):
    (tmp_path / "lasting").mkdir(mode=0o700)
    (tmp_path / "servers").mkdir(mode=0o700)
    entry = tmp_path / "servers" / "ending"
    entry.symlink_to(tmp_path / "lasting")
    looked = getattr(claim_module, moment)

    def remove_then_look(path):
        entry.unlink(missing_ok=True)
        return looked(path)

    monkeypatch.setattr(claim_module, moment, remove_then_look)
    claim_directory(tmp_path, None, "other").release()
    assert entries(tmp_path) == []


def test_a_record_that_others_could_have_written_is_not_followed(tmp_path):
    bystander = tmp_path / "bystander"
    claim = claim_directory(tmp_path / "mine", bystander, "sleeper")
    with claim.hold() as hold:
        child = spawn(Command(["sleep", "1000"]), record=claim.record, log=claim.log, hold=hold)
    assert wait_until(lambda: Process.read(claim.record) is not None, 10)
    claim.release()
    (tmp_path / "servers").mkdir(mode=0o700)
    (tmp_path / "servers" / "forged").symlink_to(bystander)
    bystander.chmod(0o777)
    claim_directory(tmp_path, None, "other").release()
    assert child.poll() is None
    assert entries(tmp_path) == []
    child.kill()
    child.wait()


def test_files_of_a_claim_are_closed_to_others(tmp_path):
    claim = claim_directory(tmp_path, None, "postgres")
    assert stat.S_IMODE(claim.directory.stat().st_mode) == (0o711 if os.geteuid() == 0 else 0o700)
    assert stat.S_IMODE((claim.directory / "owner.lock").stat().st_mode) == 0o600
    claim.release()
